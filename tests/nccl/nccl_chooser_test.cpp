// The chooser finds the fastest mode of simulated links, and looking costs little.
#include <gtest/gtest.h>

#include <algorithm>

#include "nccl/mode_chooser.h"
#include "support/prng.h"

namespace snug::test {
namespace {

using nccl::CodecChoice;
using nccl::ModeChooser;

// A link and CPUs of given speeds, in GB/s; the slower one limits each chunk.
struct World {
  double link, entropy, fixed;
  double noise = 0;  // part by which a chunk may take longer or shorter

  double seconds(Codec codec, double bytes, double& wire) const {
    const double ratio = codec == Codec::kEntropy ? 0.66 : codec == Codec::kFixed ? 0.75 : 1;
    const double cpu = codec == Codec::kEntropy ? entropy : codec == Codec::kFixed ? fixed : 1e3;
    wire = bytes * ratio;
    return std::max(wire / link, bytes / cpu) / 1e9;
  }
};

struct Traffic {
  ModeChooser chooser{CodecChoice::kAuto};
  ModeChooser::Clock::time_point now{};
  Prng prng{7};

  // Sends so many bytes in chunks of 256 KiB; returns GB/s.
  double stream(const World& world, double bytes, DType dtype = DType::kBF16) {
    constexpr double kChunk = 256 << 10;
    double total = 0;
    chooser.busy(now, 0);
    for (double sent = 0; sent < bytes; sent += kChunk) {
      double wire = 0;
      double seconds = world.seconds(chooser.next_codec(dtype), kChunk, wire);
      seconds *= 1 + world.noise * (2 * prng.unit() - 1);
      total += seconds;
      now += std::chrono::duration_cast<ModeChooser::Clock::duration>(
          std::chrono::duration<double>(seconds));
      chooser.sent(static_cast<std::size_t>(kChunk), static_cast<std::size_t>(wire));
      if (chooser.window_is_full(now)) chooser.turn(now, 0);
    }
    chooser.idle(now, 0);
    return bytes / total / 1e9;
  }
};

constexpr double kGiB = 1 << 30;

double best_of(const World& world) {
  double wire = 0, best = 0;
  for (const Codec codec : {Codec::kRaw, Codec::kFixed, Codec::kEntropy})
    best = std::max(best, 1e-9 / world.seconds(codec, 1, wire));
  return best;
}

TEST(NcclChooser, ConvergesToTheFastest) {
  for (const double noise : {0.0, 0.5})
    for (const World world : {World{1.25, 6, 20, noise}, World{3.1, 4, 20, noise},
                              World{12, 5, 10, noise}, World{0.1, 6, 20, noise}}) {
      Traffic run;
      run.stream(world, 2 * kGiB);  // finds its way
      const double rate = run.stream(world, 8 * kGiB);
      EXPECT_GT(rate, 0.98 * best_of(world)) << "link " << world.link << ", noise " << noise;
    }
}

// While it searches, it never does much worse than plain sending.
TEST(NcclChooser, NeverMuchSlowerThanRaw) {
  const World fast_link{12, 5, 10};
  Traffic run;
  EXPECT_GT(run.stream(fast_link, 1 * kGiB), 0.95 * fast_link.link);
  EXPECT_GT(run.stream(fast_link, 8 * kGiB), 0.985 * fast_link.link);
}

// Between fixed rate and entropy coding lies a better mixture of both.
TEST(NcclChooser, MixesCodecs) {
  const World world{3.1, 3.4, 20};
  Traffic run;
  run.stream(world, 2 * kGiB);
  EXPECT_GT(run.stream(world, 4 * kGiB), 1.0 * best_of(world) - 0.1);
}

TEST(NcclChooser, FollowsChanges) {
  const World slow{1.25, 6, 20}, fast{12, 5, 10};
  Traffic run;
  run.stream(slow, 8 * kGiB);
  run.stream(fast, 2 * kGiB);
  EXPECT_GT(run.stream(fast, 8 * kGiB), 0.97 * best_of(fast));
  run.stream(slow, 2 * kGiB);
  EXPECT_GT(run.stream(slow, 8 * kGiB), 0.97 * best_of(slow));
}

// Types without a fixed rate move between raw and entropy coding.
TEST(NcclChooser, OtherTypes) {
  for (const World world : {World{1.25, 6, 20}, World{12, 5, 10}}) {
    Traffic run;
    run.stream(world, 2 * kGiB, DType::kF32);
    EXPECT_GT(run.stream(world, 8 * kGiB, DType::kF32), 0.97 * best_of(world));
  }
}

// Pauses of the application are no fault of the mode in use.
TEST(NcclChooser, PausesDoNotCount) {
  const World world{1.25, 6, 20};
  Traffic run;
  for (int i = 0; i < 2000; ++i) {
    run.stream(world, 4 << 20);
    run.now += std::chrono::milliseconds(20 + i % 50);
  }
  EXPECT_GT(run.stream(world, 1 * kGiB), 0.95 * best_of(world));
}

TEST(NcclChooser, ObeysTheSetting) {
  ModeChooser off(CodecChoice::kOff), fixed(CodecChoice::kFixed), entropy(CodecChoice::kEntropy);
  EXPECT_EQ(off.next_codec(DType::kBF16), Codec::kRaw);
  EXPECT_EQ(fixed.next_codec(DType::kBF16), Codec::kFixed);
  EXPECT_EQ(fixed.next_codec(DType::kF32), Codec::kRaw);
  EXPECT_EQ(entropy.next_codec(DType::kF16), Codec::kEntropy);
  EXPECT_FALSE(off.is_measuring());
}

}  // namespace
}  // namespace snug::test
