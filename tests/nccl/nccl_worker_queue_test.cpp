// The queue between the plugin and the codec workers, with threads that play the workers.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "nccl/cpu_crew.h"
#include "nccl/launch_rule.h"
#include "nccl/worker_desk.h"

namespace snug::test {
namespace {

using namespace nccl;
using namespace std::chrono_literals;
using Answer = WorkerDesk::Answer;

// The "codec": every byte plus one.
CpuGpu::Done add_one(const Order& order) {
  const auto* from = reinterpret_cast<const unsigned char*>(order.tensor);
  auto* to = reinterpret_cast<unsigned char*>(order.frame);
  for (std::uint32_t i = 0; i < order.tensor_bytes; ++i)
    to[i] = static_cast<unsigned char>(from[i] + 1);
  return {0, order.tensor_bytes};
}

struct Floor {
  std::unique_ptr<CpuGpu> gpu;
  WorkerDesk desk;
  explicit Floor(std::chrono::milliseconds idle_time = 10min)
      : gpu(std::make_unique<CpuGpu>(add_one, idle_time)) {
    desk.open(&gpu->board(), {}, 1);
  }

  void wait_until_manned() {
    while (!desk.is_manned()) std::this_thread::sleep_for(100us);
  }
};

struct Memory {
  explicit Memory(std::size_t size) : bytes(2 * size + 64) {
    auto at = reinterpret_cast<std::uintptr_t>(bytes.data());
    std::byte* start = bytes.data() + (16 - at % 16) % 16;
    tensor = {start, size};
    frame = {start + size, size};
  }
  std::vector<std::byte> bytes;
  std::span<std::byte> tensor, frame;

  WorkerDesk::Job job() const {
    return {OrderKind::kEncode, DType::kBF16, Codec::kEntropy, tensor, frame};
  }
  bool is_done(unsigned char first) const {
    return frame.front() == std::byte(first + 1) && frame.back() == std::byte(first + 1);
  }
};

TEST(NcclWorkerQueue, NobodyPostsToACrewThatIsNotThere) {
  Floor floor;
  const Memory memory(64 << 10);
  EXPECT_FALSE(floor.desk.post(memory.job()));
  WorkerDesk no_desk;
  EXPECT_FALSE(no_desk.post(memory.job()));
  floor.gpu->launch(0, 2);
  floor.wait_until_manned();
  floor.gpu->mark();
  floor.gpu->join();
  EXPECT_FALSE(floor.desk.is_manned());
  EXPECT_FALSE(floor.desk.post(memory.job()));
}

TEST(NcclWorkerQueue, RefusesWhatIsNotForWorkers) {
  Floor floor;
  floor.gpu->launch(0, 2);
  floor.wait_until_manned();
  const Memory memory(64 << 10), large((1 << 20) + 32);
  EXPECT_FALSE(floor.desk.post(large.job()));
  WorkerDesk::Job odd = memory.job();
  odd.tensor = odd.tensor.subspan(1);
  EXPECT_FALSE(floor.desk.post(odd));
  odd = memory.job();
  odd.tensor = odd.tensor.first(1001);  // no whole elements
  EXPECT_FALSE(floor.desk.post(odd));
  floor.gpu->mark();
}

// Crews come and go while threads post. Every order is either done right or comes back.
TEST(NcclWorkerQueue, NoOrderIsLostWhenCrewsLeave) {
  Floor floor;
  constexpr int kPosters = 4, kOrders = 150;
  std::atomic<int> done{0}, came_back{0}, not_posted{0}, wrong{0}, at_work{kPosters};
  std::vector<std::thread> posters;
  for (int p = 0; p < kPosters; ++p)
    posters.emplace_back([&, p] {
      std::mt19937 random(static_cast<unsigned>(p));
      Memory memory(128 << 10);
      for (int i = 0; i < kOrders; ++i) {
        const auto first = static_cast<unsigned char>(random());
        std::memset(memory.tensor.data(), first, memory.tensor.size());
        const auto posted = floor.desk.post(memory.job());
        if (!posted) {
          ++not_posted;
          std::this_thread::sleep_for(100us);
          continue;
        }
        OrderResult result{};
        switch (floor.desk.wait(*posted, result, 60s)) {
          case Answer::kDone: ++done, wrong += !memory.is_done(first) || result.code != 0; break;
          case Answer::kNotTaken: ++came_back; break;
          case Answer::kPending: ++wrong; break;
        }
      }
      --at_work;
    });
  std::mt19937 random(99);
  while (at_work > 0) {
    floor.gpu->launch(0, 3);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    floor.gpu->mark();
    floor.gpu->join();
  }
  for (std::thread& poster : posters) poster.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(done + came_back + not_posted, kPosters * kOrders);
  EXPECT_EQ(static_cast<std::uint64_t>(done), floor.desk.totals()->orders);
  EXPECT_GT(done, 0);
}

// More orders than boxes: what does not fit is refused at once.
TEST(NcclWorkerQueue, FullBoxesAreRefused) {
  Floor floor;
  floor.gpu->launch(0, 1);
  floor.wait_until_manned();
  const Memory memory(1 << 10);
  std::vector<WorkerDesk::Posted> posted;
  while (const auto one = floor.desk.post(memory.job())) {
    posted.push_back(*one);
    ASSERT_LE(posted.size(), kOrderBoxes);
  }
  EXPECT_EQ(posted.size(), kOrderBoxes);
  OrderResult result{};
  for (const auto& one : posted) EXPECT_EQ(floor.desk.wait(one, result, 60s), Answer::kDone);
  const auto again = floor.desk.post(memory.job());
  ASSERT_TRUE(again);
  EXPECT_EQ(floor.desk.wait(*again, result, 60s), Answer::kDone);
  floor.gpu->mark();
}

// Two launches at once, as a CUDA graph can cause: one crew works for both kernels.
TEST(NcclWorkerQueue, ASecondCrewEndsAtOnceAndTheFirstServesBoth) {
  Floor floor;
  floor.gpu->launch(0, 2);
  floor.wait_until_manned();
  floor.gpu->launch(1, 2);
  while (floor.gpu->num_started() < 2) std::this_thread::sleep_for(100us);
  floor.gpu->mark();
  std::this_thread::sleep_for(5ms);
  const Memory memory(64 << 10);
  OrderResult result{};
  const auto posted = floor.desk.post(memory.job());
  ASSERT_TRUE(posted);
  EXPECT_EQ(floor.desk.wait(*posted, result, 60s), Answer::kDone);
  floor.gpu->mark();
  floor.gpu->join();
  EXPECT_FALSE(floor.desk.is_manned());
  EXPECT_EQ(floor.desk.totals()->crews, 1u);
}

TEST(NcclWorkerQueue, ACrewStaysWhileMessagesAreSentButNotForEver) {
  Floor floor;
  floor.desk.count_send(1);
  floor.gpu->launch(0, 1);
  floor.wait_until_manned();
  const auto begin = std::chrono::steady_clock::now();
  floor.gpu->mark();
  floor.gpu->join();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::nanoseconds(kMostLingerNs));
  EXPECT_EQ(floor.desk.totals()->idle_exits, 0u);
}

TEST(NcclWorkerQueue, ACrewWithoutOrdersLeavesBeforeItsKernelEnds) {
  Floor floor(50ms);
  floor.gpu->launch(0, 1);
  floor.wait_until_manned();
  floor.gpu->join();  // without a mark
  EXPECT_EQ(floor.desk.totals()->idle_exits, 1u);
  floor.gpu->mark();
  floor.gpu->launch(0, 1);  // the next one is not confused
  floor.wait_until_manned();
  floor.gpu->mark();
}

TEST(NcclWorkerQueue, WorkersThatDoNotAnswerAreNotAskedAgain) {
  Floor floor;
  WorkerBoard& board = floor.gpu->board();
  CpuTeam::store_host(&board.opened, 1u);  // a crew that died
  const Memory memory(64 << 10);
  const auto posted = floor.desk.post(memory.job());
  ASSERT_TRUE(posted);
  OrderResult result{};
  EXPECT_EQ(floor.desk.wait(*posted, result, 20ms), Answer::kPending);
  EXPECT_FALSE(floor.desk.post(memory.job()));
}

TEST(NcclLaunchRule, SmallOperationsGetNoWorkersAndIdleOnesFewer) {
  LaunchRule rule;
  rule.called(1 << 20);
  EXPECT_FALSE(rule.is_worth_it(0));
  rule.called(3 << 20);
  rule.called(3 << 20);  // a group
  EXPECT_TRUE(rule.is_worth_it(0));
  EXPECT_TRUE(rule.is_worth_it(0));  // its second kernel
  const auto launches = [&](std::uint64_t orders, int operations) {
    int count = 0;
    for (int i = 0; i < operations; ++i) {
      rule.called(64 << 20);
      count += rule.is_worth_it(orders);
    }
    return count;
  };
  EXPECT_LT(launches(0, 1000), 120);
  EXPECT_EQ(launches(5, 30), 30);  // orders came: all of them
}

}  // namespace
}  // namespace snug::test
