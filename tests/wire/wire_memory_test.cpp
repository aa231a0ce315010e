// What all connections of a process may hold together: who wants more waits, and nobody waits for
// ever or in a circle.
#include <atomic>
#include <future>

#include "wire/memory_budget.h"
#include "wire/wire_pairs.h"

namespace snug::test {
namespace {

using namespace std::chrono_literals;
using wire::BufferPool;
using wire::MemoryBudget;
using wire::Reservation;

TEST(WireMemory, MoreThanThereIsNeedsPatience) {
  MemoryBudget budget(100);
  ASSERT_TRUE(budget.take(60, net::after(0ms)).ok());
  EXPECT_EQ(budget.take(60, net::after(20ms)).code, Code::kTimeout);
  EXPECT_EQ(budget.take(101, net::after(20s)).code, Code::kUsage);
  EXPECT_EQ(budget.take(60, net::after(20s), [] { return false; }).code, Code::kPeer);
  auto waiting = std::async(std::launch::async, [&] { return budget.take(60, net::after(20s)); });
  budget.give_back(60);
  EXPECT_TRUE(waiting.get().ok());
  EXPECT_TRUE(budget.take(40, net::after(0ms)).ok());
}

// Small requests do not overtake a large one for ever.
TEST(WireMemory, FirstComeFirstServed) {
  MemoryBudget budget(100);
  ASSERT_TRUE(budget.take(50, net::after(0ms)).ok());
  std::atomic<bool> large_waits{false};
  auto large = std::async(std::launch::async, [&] {
    return budget.take(100, net::after(20s), [&] { return large_waits = true; });
  });
  while (!large_waits) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(budget.take(10, net::after(20ms)).code, Code::kTimeout);
  budget.give_back(50);
  EXPECT_TRUE(large.get().ok());
}

TEST(WireMemory, SharesComeBackByThemselves) {
  MemoryBudget budget(100);
  {
    ASSERT_TRUE(budget.take(100, net::after(0ms)).ok());
    Reservation share(budget, 100);
    share.shrink_to(30);
    EXPECT_TRUE(budget.take(70, net::after(0ms)).ok());
    Reservation moved = std::move(share);
    budget.give_back(70);
  }
  EXPECT_TRUE(budget.take(100, net::after(0ms)).ok());
}

TEST(WireMemory, BuffersAreUsedAgain) {
  BufferPool pool(1 << 20);
  const BufferPool::User user(pool);
  auto first = pool.take(100'000, net::after(0ms));
  ASSERT_TRUE(first.ok());
  EXPECT_GE(first->span().size(), 100'000u);
  const std::byte* const place = first->data();
  first->reset();
  auto again = pool.take(99'000, net::after(0ms));
  EXPECT_EQ(again->data(), place);
  // What lies idle makes room for another size.
  again->reset();
  auto all = pool.take(1 << 20, net::after(0ms));
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(pool.take(1, net::after(10ms)).status().code, Code::kTimeout);
  all->reset();
  EXPECT_TRUE(pool.take(1, net::after(10ms)).ok());
}

// Both ends of many connections in one process want more than there is: all of it arrives.
TEST(WireMemory, ManyConnectionsShareTheBuffers) {
  constexpr int kNumPairs = 6;
  wire::Options options;
  options.num_lanes = 8;
  options.chunk_bytes = wire::kMaxChunkBytes;
  options.mode = wire::Mode::kEntropy;
  const Bytes data = gaussian_bf16(24 << 20);
  std::vector<Pair> pairs;
  for (int i = 0; i < kNumPairs; ++i) pairs.push_back(make_pair(options));
  std::vector<std::future<void>> transfers;
  for (Pair& pair : pairs)
    transfers.push_back(
        std::async(std::launch::async, [&] { expect_round_trip(pair, DType::kBF16, data, 1); }));
  for (auto& transfer : transfers) transfer.get();
}

}  // namespace
}  // namespace snug::test
