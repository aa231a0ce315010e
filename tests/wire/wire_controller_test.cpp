// The controller against simulated links and codecs: it must end up with the mode
// that moves most, and must not spend much on finding out.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "wire/controller.h"

namespace snug::test {
namespace {

using wire::Controller;
using wire::Mode;

// A pipeline that moves one chunk at a time at the rate of its slowest stage.
struct Simulation {
  double link;                    // wire bytes a second
  double codec[wire::kNumModes];  // original bytes a second through encoder and decoder
  double ratio[wire::kNumModes] = {1.0, 0.75, 0.66};

  double goodput(int mode) const { return std::min(link / ratio[mode], codec[mode]); }

  // Original bytes a second for `num_chunks` of 1 MiB, what is still on the way
  // being reported `lag` chunks late.
  double run(Controller& controller, int num_chunks, int lag = 8) {
    constexpr double kChunk = 1 << 20;
    std::vector<wire::ReceiveProgress> reports;
    const double start = seconds;
    for (int i = 0; i < num_chunks; ++i) {
      const int mode = static_cast<int>(controller.pick(1 << 20));
      seconds += kChunk / goodput(mode);
      sums.raw_bytes[mode] += 1 << 20;
      sums.wire_bytes[mode] += static_cast<std::uint64_t>(kChunk * ratio[mode]);
      sums.active_nanoseconds = static_cast<std::uint64_t>(seconds * 1e9);
      reports.push_back(sums);
      if (i >= lag && i % 4 == 0) controller.progress(reports[static_cast<std::size_t>(i - lag)]);
    }
    return num_chunks * kChunk / (seconds - start);
  }

  wire::ReceiveProgress sums = {};
  double seconds = 0;
};

TEST(WireController, SlowLinksGetEntropy) {
  Controller controller(Mode::kAuto);
  Simulation simulation{125e6, {9e9, 6e9, 3e9}};
  const double reached = simulation.run(controller, 512);
  EXPECT_GT(reached, 0.98 * simulation.goodput(2));
}

TEST(WireController, FastLinksStayRawWithinOnePercent) {
  Controller controller(Mode::kAuto);
  Simulation simulation{10e9, {8e9, 5e9, 2e9}};
  (void)simulation.run(controller, 512);  // the first trials
  const double reached = simulation.run(controller, 20'000);
  EXPECT_GT(reached, 0.99 * simulation.goodput(0));
}

TEST(WireController, InBetweenFixedWins) {
  Controller controller(Mode::kAuto);
  Simulation simulation{4e9, {9e9, 5.3e9, 3.5e9}};
  (void)simulation.run(controller, 512);
  const double reached = simulation.run(controller, 20'000);
  EXPECT_GT(reached, 0.99 * simulation.goodput(1));
}

TEST(WireController, FollowsALinkThatGetsSlower) {
  Controller controller(Mode::kAuto);
  Simulation simulation{10e9, {8e9, 5e9, 2e9}};
  (void)simulation.run(controller, 4096);
  simulation.link = 100e6;
  (void)simulation.run(controller, 2048);
  EXPECT_EQ(controller.pick(0), Mode::kEntropy);
}

TEST(WireController, ReportsThatWereOvertakenDoNoHarm) {
  Controller controller(Mode::kEntropy);
  wire::ReceiveProgress early, late;
  early.active_nanoseconds = 50'000'000;
  early.raw_bytes[2] = 16 << 20;
  late.active_nanoseconds = 100'000'000;
  late.raw_bytes[2] = 32 << 20;
  controller.progress(late);
  const double before = controller.goodput(Mode::kEntropy);
  controller.progress(early);
  EXPECT_EQ(controller.goodput(Mode::kEntropy), before);
}

TEST(WireController, DoesWhatItIsTold) {
  for (const Mode mode : {Mode::kRaw, Mode::kFixed, Mode::kEntropy}) {
    Controller controller(mode);
    for (int i = 0; i < 100; ++i) EXPECT_EQ(controller.pick(1 << 20), mode);
  }
}

TEST(WireController, RandomBitsAreRarelyTried) {
  wire::CompressionProbe probe;
  int tried = 0;
  for (int i = 0; i < 1000; ++i)
    if (probe.worth_trying()) {
      ++tried;
      probe.tried(1000, 1000);
    }
  EXPECT_LT(tried, 15);
  probe.tried(1000, 660);
  EXPECT_TRUE(probe.worth_trying());
  EXPECT_TRUE(probe.worth_trying());
}

}  // namespace
}  // namespace snug::test
