// The cache of decoded pieces: what is decoded, how often, and what stays in memory.
#include "mount/piece_cache.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <new>
#include <thread>

#include "mount/read_ahead.h"
#include "support/prng.h"

// Of this thread, the allocation after so many fails; none if negative.
static thread_local int fail_after = -1;

[[gnu::noinline]] void* operator new(std::size_t num_bytes) {
  void* const bytes = fail_after >= 0 && fail_after-- == 0 ? nullptr : std::malloc(num_bytes);
  if (bytes == nullptr) throw std::bad_alloc();
  return bytes;
}
[[gnu::noinline]] void operator delete(void* bytes) noexcept { std::free(bytes); }
[[gnu::noinline]] void operator delete(void* bytes, std::size_t) noexcept { std::free(bytes); }

namespace snug::mount {
namespace {

using test::Prng;

constexpr std::uint64_t kSmall = 1000;

std::byte byte_of(std::size_t file, std::uint64_t at) {
  return static_cast<std::byte>((at * 0x9E3779B97F4A7C15u >> 56) + file);
}

Piece piece(std::uint64_t idx, std::size_t file = 0, std::uint64_t num_bytes = kSmall) {
  return {file, idx * num_bytes, num_bytes};
}

// Makes up bytes, and counts.
class FakeSource : public PieceSource {
 public:
  StoreStatus decode(std::span<const Piece> pieces, std::span<std::byte* const> dst,
                     Scratch&) const override {
    while (is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::lock_guard lock(mutex);
    ++num_calls;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      order.push_back(pieces[i].offset);
      if (pieces[i].offset == damaged) return {{Code::kCorrupt, "damaged"}, "file", "tensor"};
      for (std::uint64_t at = 0; at < pieces[i].num_bytes; ++at)
        dst[i][at] = byte_of(pieces[i].file, pieces[i].offset + at);
    }
    return {};
  }

  std::atomic<bool> is_slow{false};
  std::uint64_t damaged = ~std::uint64_t{0};
  mutable std::mutex mutex;
  mutable std::uint64_t num_calls = 0;
  mutable std::vector<std::uint64_t> order;
};

bool right(const PieceCache::Hold& hold, std::span<const Piece> pieces) {
  for (std::size_t i = 0; i < pieces.size(); ++i)
    for (std::uint64_t at = 0; at < pieces[i].num_bytes; ++at)
      if (hold.bytes(i)[at] != byte_of(pieces[i].file, pieces[i].offset + at)) return false;
  return true;
}

// Waits until that many pieces were decoded.
void wait_for(const PieceCache& cache, std::uint64_t num_decoded) {
  for (int i = 0; i < 20000 && cache.counters().num_decoded < num_decoded; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_EQ(cache.counters().num_decoded, num_decoded);
}

TEST(PieceCache, DecodesOnceAndKeeps) {
  FakeSource source;
  PieceCache cache(source, 1 << 20, 2);
  const Piece pieces[] = {piece(0), piece(1), piece(2), piece(0, 1)};
  for (int i = 0; i < 3; ++i) {
    const auto hold = cache.get(pieces);
    ASSERT_TRUE(hold.ok());
    EXPECT_TRUE(right(*hold, pieces));
  }
  EXPECT_EQ(cache.counters().num_decoded, 4u);
}

TEST(PieceCache, ReadersOfOnePieceShareOneDecoding) {
  FakeSource source;
  source.is_slow = true;
  PieceCache cache(source, 1 << 20, 3);
  const Piece pieces[] = {piece(7)};
  std::atomic<int> num_right{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 24; ++i)
    readers.emplace_back([&] {
      const auto hold = cache.get(pieces);
      if (hold.ok() && right(*hold, pieces)) ++num_right;
    });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  source.is_slow = false;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(num_right, 24);
  EXPECT_EQ(cache.counters().num_decoded, 1u);
}

TEST(PieceCache, DecodesNeighboursTogether) {
  FakeSource source;
  source.is_slow = true;
  PieceCache cache(source, 1 << 20, 1);
  const Piece ahead[] = {piece(0), piece(1), piece(2), piece(3), piece(5)};
  cache.read_ahead(ahead);
  source.is_slow = false;
  wait_for(cache, 5);
  // The first one may have been taken before its neighbour was there.
  EXPECT_LE(source.num_calls, 4u);
  EXPECT_GE(source.num_calls, 3u);
}

TEST(PieceCache, StaysWithinItsBytes) {
  FakeSource source;
  PieceCache cache(source, 10 * kPieceBytes, 2);
  Prng random(1);
  for (int i = 0; i < 80; ++i) {
    const Piece pieces[] = {piece(random.next() % 40, 0, kPieceBytes),
                            piece(random.next() % 40, 1, kPieceBytes - 5)};
    auto hold = cache.get(pieces);
    ASSERT_TRUE(hold.ok());
    ASSERT_EQ(hold->bytes(1)[3], byte_of(1, pieces[1].offset + 3));
    if (i % 2 == 0) hold->delivered(0, kPieceBytes);
  }
  EXPECT_LE(cache.counters().max_bytes, 10 * kPieceBytes);
  EXPECT_GE(cache.counters().max_bytes, 9 * kPieceBytes);
}

TEST(PieceCache, ForgetsFirstWhatTheKernelHas) {
  FakeSource source;
  PieceCache cache(source, 4 * kSmall, 1);
  for (std::uint64_t i = 0; i < 4; ++i) {
    const Piece pieces[] = {piece(2 * i)};
    auto hold = cache.get(pieces);
    ASSERT_TRUE(hold.ok());
    hold->delivered(0, i == 2 ? kSmall : kSmall / 2);
  }
  const Piece more[] = {piece(10)};
  ASSERT_TRUE(cache.get(more).ok());
  const std::uint64_t before = cache.counters().num_decoded;
  for (const std::uint64_t i : {0, 1, 3}) {
    const Piece pieces[] = {piece(2 * i)};
    ASSERT_TRUE(cache.get(pieces).ok());
  }
  EXPECT_EQ(cache.counters().num_decoded, before);
  const Piece gone[] = {piece(4)};
  ASSERT_TRUE(cache.get(gone).ok());
  EXPECT_EQ(cache.counters().num_decoded, before + 1);
}

TEST(PieceCache, ReadersMayHoldMoreThanFits) {
  FakeSource source;
  PieceCache cache(source, 2 * kSmall, 2);
  std::vector<Piece> pieces;
  for (std::uint64_t i = 0; i < 20; ++i) pieces.push_back(piece(i));
  {
    const auto hold = cache.get(pieces);
    ASSERT_TRUE(hold.ok());
    EXPECT_TRUE(right(*hold, pieces));
  }
  EXPECT_LE(cache.counters().num_bytes, 2 * kSmall);
}

TEST(PieceCache, WhatReadersWaitForComesFirst) {
  FakeSource source;
  source.is_slow = true;
  PieceCache cache(source, 1 << 20, 1);
  std::vector<Piece> ahead;
  for (std::uint64_t i = 0; i < 100; ++i) ahead.push_back(piece(2 * i));
  cache.read_ahead(ahead);
  std::thread reader([&] {
    const Piece pieces[] = {piece(198), piece(1001)};  // one of them is queued already
    EXPECT_TRUE(cache.get(pieces).ok());
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  source.is_slow = false;
  reader.join();
  wait_for(cache, 101);
  const auto place = [&](std::uint64_t offset) {
    return std::find(source.order.begin(), source.order.end(), offset) - source.order.begin();
  };
  EXPECT_LE(place(198 * kSmall), 3);
  EXPECT_LE(place(1001 * kSmall), 3);
}

TEST(PieceCache, ReadingAheadTakesHalfAndDropsWhatNobodyWanted) {
  FakeSource source;
  PieceCache cache(source, 20 * kSmall, 1);
  for (std::uint64_t i = 0; i < 100; ++i) {
    const Piece ahead[] = {piece(2 * i)};
    const std::uint64_t before = cache.counters().num_decoded;
    cache.read_ahead(ahead);
    wait_for(cache, before + 1);
    ASSERT_LE(cache.counters().num_bytes, 10 * kSmall);
  }
  const std::uint64_t before = cache.counters().num_decoded;
  const Piece newest[] = {piece(198)};
  ASSERT_TRUE(cache.get(newest).ok());
  EXPECT_EQ(cache.counters().num_decoded, before);
}

TEST(PieceCache, DamageIsForThoseWhoAskForIt) {
  FakeSource source;
  source.damaged = kSmall;
  PieceCache cache(source, 1 << 20, 2);
  const Piece all[] = {piece(0), piece(1), piece(2)}, bad[] = {piece(1)},
              good[] = {piece(0), piece(2)};
  cache.read_ahead(all);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(cache.get(all).status().status.code, Code::kCorrupt);
    EXPECT_EQ(cache.get(bad).status().tensor, "tensor");
    const auto hold = cache.get(good);
    ASSERT_TRUE(hold.ok());
    EXPECT_TRUE(right(*hold, good));
  }
  {  // a file that can be read again
    const std::lock_guard lock(source.mutex);
    source.damaged = ~std::uint64_t{0};
  }
  const auto hold = cache.get(all);
  ASSERT_TRUE(hold.ok());
  EXPECT_TRUE(right(*hold, all));
}

TEST(PieceCache, ManyReadersGetTheRightBytes) {
  FakeSource source;
  source.damaged = 33 * kSmall;
  PieceCache cache(source, 30 * kSmall, 4);
  std::atomic<int> num_wrong{0};
  std::vector<std::thread> readers;
  for (std::uint64_t r = 0; r < 8; ++r)
    readers.emplace_back([&, r] {
      Prng random(r);
      for (int i = 0; i < 400; ++i) {
        const std::uint64_t first = random.next() % 60;
        std::vector<Piece> pieces;
        for (std::uint64_t k = 0; k <= random.next() % 4; ++k) pieces.push_back(piece(first + k));
        bool has_damage = false;
        for (const Piece& p : pieces) has_damage |= p.offset == source.damaged;
        std::vector<Piece> ahead = {piece(first + 6), piece(first + 7)};
        cache.read_ahead(ahead);
        auto hold = cache.get(pieces);
        if (hold.ok() == has_damage || (hold.ok() && !right(*hold, pieces))) ++num_wrong;
        if (hold.ok()) hold->delivered(0, random.next() % 2000);
      }
    });
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(num_wrong, 0);
  EXPECT_LE(cache.counters().num_bytes, 30 * kSmall);
}

// Runs `call` with its first allocation failing, then its second, until it needs no more.
template <class Call>
int fail_each_allocation(Call call) {
  for (int num_failed = 0;; ++num_failed) {
    fail_after = num_failed;
    try {
      call(static_cast<std::uint64_t>(num_failed));
      const bool has_failed = fail_after < 0;
      fail_after = -1;
      if (!has_failed) return num_failed;
    } catch (const std::bad_alloc&) {
    }
  }
}

TEST(PieceCache, LackOfMemoryLeavesNothingBehind) {
  FakeSource source;
  PieceCache cache(source, 1000 * kSmall, 2);
  const auto pieces_of = [](std::uint64_t step) {
    return std::array{piece(4 * step), piece(4 * step + 1), piece(4 * step + 3)};
  };
  EXPECT_GE(fail_each_allocation([&](std::uint64_t step) { (void)cache.get(pieces_of(step)); }), 5);
  EXPECT_GE(
      fail_each_allocation([&](std::uint64_t step) { cache.read_ahead(pieces_of(100 + step)); }),
      5);
  // Nobody waits for a piece that no thread knows of.
  for (const std::uint64_t first : {0, 100})
    for (std::uint64_t step = 0; step < 20; ++step) {
      const auto pieces = pieces_of(first + step);
      const auto hold = cache.get(pieces);
      ASSERT_TRUE(hold.ok());
      EXPECT_TRUE(right(*hold, pieces));
    }
}

TEST(PieceCache, StartsWithFewerThreadsOrNotAtAll) {
  FakeSource source;
  const Piece pieces[] = {piece(3)};
  EXPECT_GE(fail_each_allocation([&](std::uint64_t) {
              PieceCache cache(source, 1 << 20, 3);
              if (fail_after >= 0) fail_after = 1000;  // only the constructor is to fail
              EXPECT_TRUE(cache.get(pieces).ok());
            }),
            3);
}

TEST(PieceCache, EndsWithWorkLeft) {
  FakeSource source;
  PieceCache cache(source, 1 << 20, 2);
  std::vector<Piece> ahead;
  for (std::uint64_t i = 0; i < 500; ++i) ahead.push_back(piece(i));
  cache.read_ahead(ahead);
}

// ---- what to read ahead -------------------------------------------------------

constexpr std::uint64_t kKiB = 1 << 10, kMiB = 1 << 20;

TEST(ReadAhead, FollowsWhoReadsInOrder) {
  ReadAhead ahead;
  std::uint64_t covered = 0;
  for (std::uint64_t at = 0; at < 64 * kMiB; at += 128 * kKiB) {
    const auto range = ahead.next(at, at + 128 * kKiB, 4 * kMiB);
    if (range.begin == range.end) continue;
    EXPECT_TRUE(covered == 0 || range.begin == covered) << "a gap, or twice";
    EXPECT_LE(range.end, at + 128 * kKiB + 4 * kMiB);
    covered = range.end;
  }
  EXPECT_GE(covered, 64 * kMiB);
}

TEST(ReadAhead, IgnoresWhoJumps) {
  ReadAhead ahead;
  Prng random(1);
  std::uint64_t sum = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t at = random.next() % (std::uint64_t{1} << 40);
    const auto range = ahead.next(at, at + 4096, 4 * kMiB);
    sum += range.end - range.begin;
  }
  EXPECT_EQ(sum, 0u);
}

TEST(ReadAhead, TellsReadersApart) {
  ReadAhead ahead;
  std::map<std::uint64_t, std::uint64_t> covered;
  for (std::uint64_t step = 0; step < 100; ++step)
    for (std::uint64_t reader = 0; reader < 24; ++reader) {
      const std::uint64_t at = reader * 1024 * kMiB + step * 128 * kKiB;
      const auto range = ahead.next(at, at + 128 * kKiB, 4 * kMiB);
      if (range.begin != range.end) covered[reader] = range.end - reader * 1024 * kMiB;
    }
  for (std::uint64_t reader = 0; reader < 24; ++reader)
    EXPECT_GE(covered[reader], 100 * 128 * kKiB) << reader;
}

TEST(ReadAhead, BearsRequestsOutOfOrder) {
  ReadAhead ahead;
  std::uint64_t covered = 0;
  for (std::uint64_t at = 0; at < 16 * kMiB; at += 256 * kKiB)
    for (const std::uint64_t begin : {at + 128 * kKiB, at}) {
      const auto range = ahead.next(begin, begin + 128 * kKiB, 4 * kMiB);
      covered = std::max(covered, range.end);
    }
  EXPECT_GE(covered, 16 * kMiB);
}

}  // namespace
}  // namespace snug::mount
