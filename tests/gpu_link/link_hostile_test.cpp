// A peer that writes whatever it likes into the shared memory of a link.
#include <functional>

#include "gpu_link/link_ends.h"

namespace snug::test {
namespace {

using namespace std::chrono_literals;
using gpu_link::LinkChunk;

constexpr std::size_t kBytes = 300'000;  // five grains, the last one short
constexpr std::uint64_t kGrain = 65'536;

// A receiver whose sender is this test.
struct HostileSender {
  LinkEnds ends;
  gpu_link::LinkDirection& out = ends.at_a->outgoing();
  Bytes got = Bytes(kBytes);
  std::uint64_t num_offers = 0, num_chunks = 0;

  wire::Transfer recv() { return ends.recv(1, got); }
  void offer(std::uint64_t number, std::uint64_t num_bytes = kBytes) {
    out.offers.put(num_offers, {number, 1, num_bytes, static_cast<std::uint64_t>(DType::kBF16)});
    out.receiver_bell.ring();
  }
  // With the checksum that is right, if there are bytes.
  void chunk(LinkChunk chunk) {
    if (chunk.place <= kTestStaging && chunk.payload_bytes <= kTestStaging - chunk.place)
      chunk.checksum = raw_checksum(ends.staging.data() + chunk.place, chunk.payload_bytes);
    put(chunk);
  }
  void put(const LinkChunk& chunk) {
    out.chunks.put(num_chunks, chunk);
    out.receiver_bell.ring();
  }
  void wait_for_answer() const {
    EXPECT_TRUE(comes_true([&] { return out.answers.written.load() != 0; }));
  }
  // The message is accepted, then comes what `attack` does.
  void expect_refused(Code code, const std::function<void()>& attack) {
    const auto received = recv();
    offer(1);
    wait_for_answer();
    attack();
    const Status s = received.wait_for(60s);
    EXPECT_EQ(s.code, code) << to_string(s);
    EXPECT_FALSE(ends.receiver->status().ok());
  }
};

TEST(LinkHostile, GoodChunksAreTaken) {
  HostileSender peer;
  const auto received = peer.recv();
  peer.offer(1);
  peer.wait_for_answer();
  std::fill(peer.ends.staging.begin(), peer.ends.staging.end(), std::byte{7});
  peer.chunk({1, 2 * kGrain, kBytes - 2 * kGrain, 0, kBytes - 2 * kGrain, 0, 0});
  peer.chunk({1, 0, 2 * kGrain, 256, 2 * kGrain, 0, 0});
  expect_ok(received);
  EXPECT_TRUE(peer.got == Bytes(kBytes, std::byte{7}));
}

TEST(LinkHostile, ChunksThatDoNotBelong) {
  const LinkChunk good{1, 0, kGrain, 0, kGrain, 0, 0};
  std::vector<LinkChunk> bad;
  const auto with = [&](auto change) {
    bad.push_back(good);
    change(bad.back());
  };
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  with([](LinkChunk& c) { c.number = 2; });
  with([](LinkChunk& c) { c.offset = 1; });
  with([](LinkChunk& c) { c.offset = kHuge - kGrain + 1; });
  with([](LinkChunk& c) { c.offset = 4 * kGrain; });  // beyond the end
  with([](LinkChunk& c) { c.num_bytes = 0, c.payload_bytes = 0; });
  with([](LinkChunk& c) { c.num_bytes = kHuge, c.payload_bytes = kHuge; });
  with([](LinkChunk& c) { c.num_bytes = c.payload_bytes = kGrain - 2; });
  with([](LinkChunk& c) { c.place = 1; });
  with([](LinkChunk& c) { c.place = kTestStaging; });
  with([](LinkChunk& c) { c.place = kHuge & ~std::uint64_t{255}; });
  with([](LinkChunk& c) { c.payload_bytes = kGrain - 1; });
  with([](LinkChunk& c) { c.mode = 2; });  // a frame as long as the chunk
  with([](LinkChunk& c) { c.mode = 2, c.payload_bytes = 0; });
  with([](LinkChunk& c) { c.mode = 3; });
  with([](LinkChunk& c) { c.mode = kHuge; });
  for (const LinkChunk& chunk : bad) {
    HostileSender peer;
    peer.expect_refused(Code::kPeer, [&] { peer.chunk(chunk); });
  }
}

TEST(LinkHostile, ChunksThatComeTwice) {
  HostileSender peer;
  peer.expect_refused(Code::kPeer, [&] {
    peer.chunk({1, kGrain, kGrain, 0, kGrain, 0, 0});
    peer.chunk({1, 0, 2 * kGrain, 0, 2 * kGrain, 0, 0});
  });
}

TEST(LinkHostile, FramesThatAreNone) {
  HostileSender peer;
  peer.expect_refused(Code::kCorrupt, [&] { peer.chunk({1, 0, kGrain, 0, 5000, 2, 0}); });
}

// Raw bytes that changed in the staging memory, or on the way there.
TEST(LinkHostile, RawBytesThatWereDamaged) {
  for (const std::size_t bit : {std::size_t{0}, std::size_t{100'001}, 8 * kGrain - 1}) {
    HostileSender peer;
    Bytes& staging = peer.ends.staging;
    std::fill(staging.begin(), staging.end(), std::byte{7});
    LinkChunk chunk{1, 0, kGrain, 512, kGrain, 0, 0};
    chunk.checksum = raw_checksum(staging.data() + 512, kGrain);
    staging[512 + bit / 8] ^= std::byte{1} << bit % 8;
    peer.expect_refused(Code::kCorrupt, [&] { peer.put(chunk); });
  }
  HostileSender peer;  // nobody made a checksum
  peer.expect_refused(Code::kCorrupt, [&] { peer.put({1, 0, kGrain, 0, kGrain, 0, 0}); });
}

TEST(LinkHostile, QueuesThatAreTornApart) {
  HostileSender a;
  a.expect_refused(Code::kPeer, [&] { a.out.chunks.written.store(1'000'000); });
  HostileSender b;
  b.expect_refused(Code::kPeer, [&] { b.out.offers.written.store(1ull << 63); });
  HostileSender c;
  c.expect_refused(Code::kPeer, [&] { c.offer(1); });  // a number that was there
}

TEST(LinkHostile, MoreOffersThanAllowed) {
  HostileSender peer;
  Bytes other(10);
  const auto received = peer.ends.recv(2, other);  // starts the receiver
  for (std::uint64_t i = 1; peer.ends.receiver->status().ok() && i < 100'000; ++i) {
    ASSERT_TRUE(comes_true([&] {
      return !peer.ends.receiver->status().ok() || *peer.out.offers.has_room(peer.num_offers);
    }));
    peer.offer(i);
  }
  EXPECT_EQ(received.wait_for(60s).code, Code::kPeer);
}

// A sender whose receiver is this test.
void expect_sender_gives_up(const std::function<void(gpu_link::LinkDirection&)>& attack) {
  LinkEnds ends;
  Bytes data(kBytes);
  const auto sent = ends.send(1, data);
  gpu_link::LinkDirection& in = ends.at_a->outgoing();
  ASSERT_TRUE(comes_true([&] { return in.offers.written.load() != 0; }));
  attack(in);
  in.sender_bell.ring();
  EXPECT_EQ(sent.wait_for(60s).code, Code::kPeer);
}

TEST(LinkHostile, AnswersThatMakeNoSense) {
  std::uint64_t n = 0;
  expect_sender_gives_up([&](gpu_link::LinkDirection& in) { in.answers.put(n = 0, {9, 0}); });
  expect_sender_gives_up([&](gpu_link::LinkDirection& in) { in.answers.put(n = 0, {1, 1}); });
  expect_sender_gives_up([&](gpu_link::LinkDirection& in) {
    in.answers.put(n = 0, {1, 0});
    in.answers.put(n, {1, 0});
  });
  expect_sender_gives_up([&](gpu_link::LinkDirection& in) { in.answers.written.store(5000); });
  expect_sender_gives_up([&](gpu_link::LinkDirection& in) { in.chunks.read.store(77); });
  expect_sender_gives_up([&](gpu_link::LinkDirection& in) { in.failure.store(0xFFFFFFFF); });
}

}  // namespace
}  // namespace snug::test
