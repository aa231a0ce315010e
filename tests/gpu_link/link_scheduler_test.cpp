// What a link's scheduler decides, and what a whole transfer would take by its own
// arithmetic: a simulation with a clock of its own, no timing of this machine.
#include "gpu_link/link_scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "gpu_link/link_simulation.h"
#include "gpu_link/staging_ring.h"

namespace snug::test {
namespace {

using gpu_link::LinkPlan;
using gpu_link::LinkScheduler;
using wire::Mode;

constexpr double kGB = 1e9;
constexpr std::size_t kMB = 1'000'000, kMiB = std::size_t{1} << 20;
constexpr int kEncoders = 3;

LinkScheduler on_link(double rate, Mode mode = Mode::kAuto) {
  LinkScheduler scheduler(mode, kEncoders, 4 * kMiB);
  const double seconds = static_cast<double>(kMiB) / rate;
  for (int i = 0; i < 100; ++i) scheduler.sent(kMiB, 2 * seconds, seconds);
  return scheduler;
}

// Of the median message, once the scheduler knows the link.
double gain_over_raw(double rate, std::uint64_t num_bytes, const TrueCosts& costs = {}) {
  double seconds[2] = {};
  for (const bool is_raw : {false, true}) {
    LinkSimulation link(rate, is_raw ? Mode::kRaw : Mode::kAuto, costs);
    for (int i = 0; i < 3; ++i) (void)link.send(32 * kMB);
    std::vector<double> all;
    for (int i = 0; i < 21; ++i) all.push_back(link.send(num_bytes));
    std::sort(all.begin(), all.end());
    seconds[is_raw] = all[10];
  }
  return seconds[1] / seconds[0] - 1;
}

TEST(LinkScheduler, KnowsTheLinkFromWhatItSends) {
  LinkScheduler scheduler(Mode::kAuto, kEncoders, 4 * kMiB);
  EXPECT_EQ(scheduler.link_rate(), 0);
  EXPECT_FALSE(scheduler.plan_coded(1000 * kMB, 0, {}));  // nothing is known yet: raw
  scheduler.sent(1000, 1, 1);                             // a crumb says nothing
  EXPECT_EQ(scheduler.link_rate(), 0);
  const double seconds = static_cast<double>(kMiB) / (50 * kGB);
  scheduler.sent(kMiB, 4 * seconds, 0);  // one that came alone: so fast at least
  EXPECT_NEAR(scheduler.link_rate(), 12.5 * kGB, 0.1 * kGB);
  for (int i = 0; i < 200; ++i) scheduler.sent(kMiB, 2 * seconds, seconds);
  EXPECT_NEAR(scheduler.link_rate(), 50 * kGB, 1 * kGB);
}

TEST(LinkScheduler, SmallMessagesGoRaw) {
  const LinkScheduler scheduler = on_link(50 * kGB);
  EXPECT_FALSE(scheduler.plan_coded(kMB, 0, {}));
  EXPECT_FALSE(scheduler.plan_coded(2 * kMB, 0, {}));
  EXPECT_TRUE(scheduler.plan_coded(16 * kMB, 0, {}));
}

TEST(LinkScheduler, FastLinksGoRaw) {
  EXPECT_FALSE(on_link(1500 * kGB).plan_coded(1024 * kMB, 0, {}));
}

TEST(LinkScheduler, SlowLinksGetTheSmallestFrames) {
  for (const double rate : {1 * kGB, 12.5 * kGB, 50 * kGB}) {
    const auto plan = on_link(rate).plan_coded(1024 * kMB, 0, {});
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->mode, Mode::kEntropy);
  }
}

TEST(LinkScheduler, WantedModesAreKept) {
  EXPECT_FALSE(on_link(kGB, Mode::kRaw).plan_coded(1024 * kMB, 0, {}));
  EXPECT_EQ(on_link(kGB, Mode::kFixed).plan_coded(1024 * kMB, 0, {})->mode, Mode::kFixed);
}

TEST(LinkScheduler, RandomBitsGoRawAfterOneAttempt) {
  LinkScheduler scheduler = on_link(50 * kGB);
  const LinkPlan plan = *scheduler.plan_coded(64 * kMB, 0, {});
  scheduler.encoded(plan.mode, plan.num_bytes, plan.num_bytes + 4096, 40 * kMicro);
  EXPECT_FALSE(scheduler.plan_coded(60 * kMB, 0, {}));
  (void)scheduler.begin_message(kMB);  // too small for an attempt
  EXPECT_FALSE(scheduler.plan_coded(60 * kMB, 0, {}));
  scheduler.begin_message(64 * kMB);  // another tensor: one frame will tell
  EXPECT_TRUE(scheduler.plan_coded(64 * kMB, 0, {}));
  const gpu_link::LinkFrame open[] = {{40 * kMicro, 50 * kMicro, 40 * kMicro}};
  EXPECT_FALSE(scheduler.plan_coded(64 * kMB, 0, open));
  scheduler.encoded(Mode::kEntropy, 4 * kMiB, 3 * kMiB, 40 * kMicro);
  EXPECT_TRUE(scheduler.plan_coded(64 * kMB, 0, open));
}

TEST(LinkScheduler, AttemptsGetRareWhereNothingCompresses) {
  LinkScheduler scheduler = on_link(50 * kGB);
  int num_attempts = 0;
  for (int i = 0; i < 1000; ++i) {
    scheduler.begin_message(64 * kMB);
    if (!scheduler.plan_coded(64 * kMB, 0, {})) continue;
    ++num_attempts;
    scheduler.encoded(Mode::kEntropy, 4 * kMiB, 4 * kMiB, 40 * kMicro);
  }
  EXPECT_GE(num_attempts, 10);
  EXPECT_LE(num_attempts, 25);
}

TEST(LinkScheduler, SlowCodecsAreNoticed) {
  LinkScheduler scheduler = on_link(50 * kGB);
  for (int i = 0; i < 40; ++i)  // as if the GPU were busy with other work
    for (const Mode mode : {Mode::kFixed, Mode::kEntropy})
      scheduler.encoded(mode, 4 * kMiB, 3 * kMiB, 0.01);
  EXPECT_FALSE(scheduler.plan_coded(1024 * kMB, 0, {}));
  // Nothing is measured now, but what was is forgotten in time.
  for (int i = 0; i < 200; ++i) scheduler.begin_message(64 * kMB);
  EXPECT_TRUE(scheduler.plan_coded(1024 * kMB, 0, {}));
}

TEST(LinkScheduler, TheClockHasTheLastWord) {
  constexpr std::uint64_t kBytes = 64 * kMB;
  const double raw_seconds = 1.1 * kBytes / (50 * kGB);  // a little longer than the link
  for (const double of_raw : {0.5, 0.95, 1.05}) {
    LinkScheduler scheduler = on_link(50 * kGB);
    int num_coded = 0;
    for (int i = 0; i < 640; ++i) {
      const bool codes = scheduler.begin_message(kBytes);
      num_coded += codes;
      scheduler.message_done(kBytes, codes, raw_seconds * (codes ? of_raw : 1));
    }
    if (of_raw < 0.9)
      EXPECT_EQ(num_coded, 639);  // one comparison was enough
    else if (of_raw < 1)
      EXPECT_EQ(num_coded, 630);  // one of 64 goes the other way
    else
      EXPECT_LE(num_coded, 14);
    EXPECT_TRUE(scheduler.begin_message(300 * kMB));  // another size
    EXPECT_TRUE(scheduler.begin_message(1000));
  }
}

TEST(LinkScheduler, OneSlowMessageIsNoReason) {
  constexpr std::uint64_t kBytes = 8 * kMB;
  LinkScheduler scheduler = on_link(50 * kGB);
  int num_coded = 0;
  for (int i = 0; i < 64; ++i) {
    const bool codes = scheduler.begin_message(kBytes);
    num_coded += codes;
    // The first one allocates, one of ten is unlucky.
    const double usual = codes ? 160 : 185;
    scheduler.message_done(kBytes, codes,
                           kMicro * (i == 0        ? 20'000
                                     : i % 10 == 9 ? 3 * usual
                                                   : usual));
  }
  EXPECT_GE(num_coded, 60);
}

TEST(LinkScheduler, OneSlowCallIsNoReason) {
  LinkScheduler scheduler = on_link(50 * kGB);
  scheduler.encoded(Mode::kEntropy, 4 * kMiB, 2'810'000, 0.5);  // allocated its memory
  scheduler.placed(Mode::kEntropy, 4 * kMiB, 0.5);
  EXPECT_EQ(scheduler.plan_coded(64 * kMB, 0, {})->mode, Mode::kEntropy);
}

TEST(LinkScheduler, APeerThatLiesIsBounded) {
  LinkScheduler scheduler = on_link(50 * kGB);
  scheduler.placed(Mode::kEntropy, 4 * kMiB, 1e12);
  scheduler.placed(Mode::kFixed, 4 * kMiB, -1);
  for (int i = 0; i < 40; ++i) scheduler.placed(Mode::kEntropy, 4 * kMiB, 45 * kMicro);
  EXPECT_TRUE(scheduler.plan_coded(1024 * kMB, 0, {}));
}

// The shape of the whole table, by arithmetic. The measured one is in bench/results.
TEST(LinkScheduler, NeverSlowerThanRaw) {
  for (const double slowness : {1.0, 1.5, 4.0})
    for (const double rate : {5.0, 12.5, 25.0, 50.0, 100.0, 200.0, 400.0, 1500.0})
      for (const std::uint64_t mb : {1, 2, 3, 4, 6, 8, 11, 16, 32, 64, 214})
        EXPECT_GE(gain_over_raw(rate * kGB, mb * kMB, {.slowness = slowness}), -0.01)
            << rate << " GB/s, " << mb << " MB, codecs that take " << slowness << " times as long";
}

// Encoders may slow the link itself: only the clock can tell, after the first comparison.
TEST(LinkScheduler, NeverSlowerThanRawWhereEncodersSlowTheLink) {
  for (const double contention : {1.3, 1.6, 2.0})
    for (const double rate : {50.0, 100.0, 200.0})
      for (const std::uint64_t mb : {16, 64, 214})
        EXPECT_GE(gain_over_raw(rate * kGB, mb * kMB, {.contention = contention}), -0.01)
            << rate << " GB/s, " << mb << " MB, " << contention;
}

// A chunk that did not compress is no reason for ever, in any mode and with small messages.
TEST(LinkScheduler, AttemptsAreMadeInEveryMode) {
  for (const Mode mode : {Mode::kAuto, Mode::kEntropy}) {
    for (const std::uint64_t bytes : {4 * kMB, 64 * kMB}) {
      LinkScheduler scheduler = on_link(5 * kGB, mode);
      scheduler.encoded(Mode::kEntropy, kMiB, kMiB, 40 * kMicro);
      EXPECT_FALSE(scheduler.plan_coded(bytes, 0, {}));
      bool is_tried = false;
      for (int i = 0; i < 10 && !is_tried; ++i) {
        (void)scheduler.begin_message(bytes);
        is_tried = scheduler.plan_coded(bytes, 0, {}).has_value();
      }
      EXPECT_TRUE(is_tried);
    }
  }
}

TEST(LinkScheduler, MessagesGainWhatTheLinkAllows) {
  EXPECT_GE(gain_over_raw(50 * kGB, 8 * kMB), 0.18);
  EXPECT_GE(gain_over_raw(50 * kGB, 16 * kMB), 0.28);
  EXPECT_GE(gain_over_raw(50 * kGB, 32 * kMB), 0.37);
  EXPECT_GE(gain_over_raw(50 * kGB, 214 * kMB), 0.46);
  EXPECT_GE(gain_over_raw(12.5 * kGB, 1024 * kMB), 0.48);
  // Twice as many bytes in the time of a codec: the same picture at twice the size.
  EXPECT_GE(gain_over_raw(100 * kGB, 16 * kMB), 0.15);
  EXPECT_GE(gain_over_raw(100 * kGB, 32 * kMB), 0.28);
  EXPECT_GE(gain_over_raw(100 * kGB, 214 * kMB), 0.43);
}

// What was measured: the first message of a size took three times as long, whatever way it went,
// and the very first one with frames waited for memory.
TEST(LinkScheduler, SlowFirstMessagesCondemnNothing) {
  LinkSimulation link(100 * kGB, Mode::kAuto);
  link.stall_next(0.007);
  for (const std::uint64_t mb : {8, 16, 32, 64, 214}) {
    link.stall_next(0.001);
    std::uint64_t wire_bytes = 0;
    for (int i = 0; i < 40; ++i) {
      (void)link.send(mb * kMB);
      wire_bytes += link.wire_bytes();
    }
    EXPECT_LT(static_cast<double>(wire_bytes), 0.96 * 40.0 * static_cast<double>(mb * kMB)) << mb;
  }
}

TEST(LinkScheduler, GapsAreFilled) {
  const LinkScheduler scheduler = on_link(50 * kGB);
  EXPECT_NEAR(static_cast<double>(scheduler.gap_piece(64 * kMiB, 40 * kMicro)), 2e6, 1e5);
  EXPECT_EQ(scheduler.gap_piece(64 * kMiB, 1), 4 * kMiB);
  EXPECT_EQ(scheduler.gap_piece(500'000, 1e-9), 500'000u);
}

TEST(LinkScheduler, RawPiecesFit) {
  for (const double rate : {0.1, 10.0, 50.0, 5000.0}) {
    const LinkScheduler scheduler = on_link(rate * kGB);
    for (std::uint64_t rest = 1; rest < 64 * kMiB; rest = rest * 3 + 1) {
      EXPECT_GT(scheduler.raw_piece(rest), 0u);
      EXPECT_LE(scheduler.raw_piece(rest), std::min<std::uint64_t>(rest, 4 * kMiB));
    }
  }
}

TEST(StagingRing, PlacesDoNotOverlapAndComeBack) {
  gpu_link::StagingRing ring(1000 * 256);
  struct Taken {
    std::size_t start, end;
  };
  std::vector<Taken> taken;
  std::uint64_t seed = 1;
  for (int round = 0; round < 20'000; ++round) {
    seed = seed * 6364136223846793005 + 1442695040888963407;
    const std::size_t n = 1 + static_cast<std::size_t>(seed >> 40) % 80'000;
    const auto place = ring.take(n);
    if (!place) {
      ASSERT_FALSE(taken.empty());
      ring.free_oldest();
      taken.erase(taken.begin());
      continue;
    }
    EXPECT_EQ(*place % 256, 0u);
    ASSERT_LE(*place + n, 1000u * 256);
    for (const Taken& other : taken) ASSERT_TRUE(*place + n <= other.start || *place >= other.end);
    taken.push_back({*place, *place + n});
  }
  EXPECT_FALSE(ring.take(1000 * 256 + 1));
}

}  // namespace
}  // namespace snug::test
