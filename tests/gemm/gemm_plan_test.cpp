// Plans, for GPUs that need not be there: complete, runnable, and found without delay.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "gemm/plan.h"

namespace snug::test {
namespace {

using gemm::auto_plan;
using gemm::complete_plan;
using gemm::CompletePlan;
using gemm::Device;
using gemm::Kernel;
using gemm::Problem;

const Device kH200{132, 9, 0, 232448, "NVIDIA H200"};
const Device kUnknownHopper{114, 9, 0, 232448, "A Hopper of the test"};
const Device kAmpere{108, 8, 0, 166912, "An Ampere of the test"};
const Device kWithBlas{
    108, 8, 0, 166912, "Another Ampere of the test", []() noexcept { return true; }};

TEST(GemmPlan, IsCompleteOnEveryGpu) {
  for (const Device* device : {&kH200, &kUnknownHopper, &kAmpere, &kWithBlas})
    for (const std::uint64_t n : {1, 512, 4096, 14336})
      for (const std::uint64_t k : {1, 1000, 4096, 28672})
        for (const std::uint64_t m : {1, 8, 9, 16, 17, 64, 65, 300, 8192}) {
          const CompletePlan c = complete_plan(*device, {n, k, m}, {});
          SCOPED_TRACE(testing::Message() << device->name << ' ' << n << 'x' << k << ", m " << m);
          EXPECT_EQ(c.plan.kernel == Kernel::kFewRows, c.fit.split_k != 0);
          EXPECT_EQ(c.plan.kernel == Kernel::kFewRows, c.plan.warps != 0);
          EXPECT_EQ(c.plan.kernel == Kernel::kBatch, c.plan.strips != 0 && c.plan.tile_m != 0);
          if (device->hopper())
            EXPECT_TRUE(c.plan.kernel == Kernel::kFewRows || gemm::batch_fits(c.plan, k));
          else
            EXPECT_EQ(c.plan.kernel,
                      device == &kWithBlas && m > 64 ? Kernel::kUnpack : Kernel::kGeneric);
        }
}

// Rows of x that do not fit beside the rings, nothing to multiply, hardly a GPU: choose() takes all
// of them, and linear() all that have a packed matrix.
TEST(GemmPlan, OfEveryShapeOnEveryGpuIsOneThatRuns) {
  const Device two_sms{2, 9, 0, 232448, "The least Hopper"}, one_sm{1, 9, 0, 232448, "Not even"};
  const std::uint64_t most = (std::uint64_t{1} << 31) - 1;
  for (const Device* device : {&kH200, &two_sms, &one_sm, &kAmpere, &kWithBlas})
    for (const std::uint64_t n : {std::uint64_t{0}, std::uint64_t{1}, most / 256, most})
      for (const std::uint64_t k : {std::uint64_t{0}, std::uint64_t{1}, most / 4096, most})
        for (const std::uint64_t m : {0, 1, 8, 9, 17, 300}) {
          const CompletePlan c = complete_plan(*device, {n, k, m}, {});
          SCOPED_TRACE(testing::Message() << device->name << ' ' << n << 'x' << k << ", m " << m);
          EXPECT_NE(c.plan.kernel, Kernel::kAuto);
          EXPECT_EQ(c.plan.kernel == Kernel::kFewRows, c.fit.split_k != 0);
          EXPECT_TRUE(std::isfinite(c.gain));
        }
  for (const std::uint64_t beyond : {most + 1, most * most, ~std::uint64_t{0}})
    for (const Problem problem :
         {Problem{beyond, 4096, 300}, {4096, beyond, 300}, {4096, 4096, beyond}})
      EXPECT_EQ(complete_plan(kH200, problem, {}).plan.kernel, Kernel::kGeneric) << beyond;
  // The batch kernel is offered to few rows, too, where nothing faster fits.
  EXPECT_EQ(complete_plan(kH200, {4096, most / 256, 8}, {}).plan.kernel, Kernel::kBatch);
}

// Sixteen rows of 2^27 columns have 2^32 bytes, of which 32 bits count none.
TEST(GemmPlan, RowsOfXFitIntoSharedMemoryWhateverTheirLength) {
  for (const Device* device : {&kH200, &kUnknownHopper})
    for (std::uint64_t k = std::uint64_t{1} << 12; k <= std::uint64_t{1} << 31; k *= 2)
      for (const std::uint64_t odd : {0, 1})
        for (std::uint64_t m = 1; m <= gemm::kMaxFewRows; ++m) {
          const Problem problem{64, k - odd, m};
          const gemm::FewRowsFit fit = gemm::fit_few_rows(*device, problem, {});
          if (fit.split_k == 0) continue;
          const gemm::FewRowsSmem smem(gemm::few_rows_token_tiles(m), fit.warps, problem.kind);
          const std::uint64_t rows = m * fit.max_split_tiles * gemm::kTileCols * 2;
          EXPECT_LE(smem.rows(fit.stages) + rows, device->max_smem) << problem.k << ", m " << m;
        }
}

TEST(GemmPlan, TheTableDecidesWhereItCan) {
  const Problem problem{640, 2048, 4};
  const CompletePlan ruled = auto_plan(kUnknownHopper, problem);
  EXPECT_EQ(ruled.plan.kernel, Kernel::kFewRows);
  EXPECT_FALSE(ruled.measured);
  EXPECT_GT(ruled.gain, 1) << "is expected";
  const std::string key = "n=640 k=2048 m=4 ", device = " device=A Hopper of the test\n";
  ASSERT_TRUE(
      gemm::load_tuning(key + "kernel=generic split_k=0 warps=0 strips=0 tile_m=0 gain=2" + device)
          .ok());
  EXPECT_EQ(auto_plan(kUnknownHopper, problem).plan.kernel, Kernel::kGeneric) << "kept from before";
  EXPECT_EQ(auto_plan(kUnknownHopper, problem).gain, 2);

  ASSERT_TRUE(gemm::load_tuning(
                  key + "kernel=few_rows split_k=99 warps=8 strips=0 tile_m=0 gain=3" + device)
                  .ok());
  EXPECT_EQ(auto_plan(kUnknownHopper, problem).plan.split_k, ruled.plan.split_k) << "cannot run";
  EXPECT_FALSE(auto_plan(kUnknownHopper, problem).measured);
}

TEST(GemmPlan, AMeasuredGainCountsForItsRowsOnly) {
  ASSERT_TRUE(gemm::load_tuning("n=8192 k=2048 m=256 kernel=batch split_k=-1 warps=0 strips=8 "
                                "tile_m=128 gain=9 device=A Hopper of the test\n")
                  .ok());
  const CompletePlan there = auto_plan(kUnknownHopper, {8192, 2048, 256});
  EXPECT_TRUE(there.measured);
  EXPECT_EQ(there.gain, 9);
  for (const std::uint64_t m : {129, 200, 255, 257}) {
    const CompletePlan other = auto_plan(kUnknownHopper, {8192, 2048, m});
    EXPECT_FALSE(other.measured) << m;
    EXPECT_LT(other.gain, 3) << m;
  }
}

// Measured where cuBLAS could not be: policy speed must not take that for a gain of 0.
TEST(GemmPlan, AGainThatWasNotMeasuredIsExpected) {
  const std::string shape = "n=10240 k=2048 ", device = " gain=0 device=A Hopper of the test\n";
  ASSERT_TRUE(
      gemm::load_tuning(shape + "m=4 kernel=few_rows split_k=1 warps=8 strips=0 tile_m=0" + device +
                        shape + "m=64 kernel=batch split_k=1 warps=0 strips=8 tile_m=64" + device +
                        shape + "m=1 kernel=generic split_k=0 warps=0 strips=0 tile_m=0" + device)
          .ok());
  for (const std::uint64_t m : {4, 64}) {
    const CompletePlan plan = auto_plan(kUnknownHopper, {10240, 2048, m});
    EXPECT_EQ(plan.plan.kernel, m == 4 ? Kernel::kFewRows : Kernel::kBatch);
    EXPECT_FALSE(plan.measured);
    EXPECT_GT(plan.gain, 1) << m;
  }
  EXPECT_EQ(auto_plan(kUnknownHopper, {10240, 2048, 1}).gain, 0) << "has no model";
}

TEST(GemmPlan, RowsOfABucketShareTheirDivision) {
  for (const std::uint64_t k : {1000, 14336, 28672}) {
    const auto eight = complete_plan(kUnknownHopper, {4096, k, 8}, {});
    for (const std::uint64_t m : {5, 6, 7}) {
      const auto fewer = complete_plan(kUnknownHopper, {4096, k, m}, {});
      EXPECT_EQ(fewer.plan.split_k, eight.plan.split_k);
      EXPECT_EQ(fewer.plan.warps, eight.plan.warps);
    }
  }
}

// Rows of x that exist only as padding of a tile are multiplied like others.
TEST(GemmPlan, RaggedRowsCostWhatTheirTilesCost) {
  for (const Device* device : {&kH200, &kUnknownHopper})
    for (const Problem shape : {Problem{2560, 2048, 0}, {4096, 4096, 0}, {37888, 3584, 0}})
      for (std::uint64_t m = 17; m < 3000; m += m / 16) {
        const auto plan = complete_plan(*device, {shape.n, shape.k, m}, {}).plan;
        ASSERT_EQ(plan.kernel, Kernel::kBatch);
        const auto tile_m = static_cast<std::uint64_t>(plan.tile_m);
        EXPECT_LE((m + tile_m - 1) / tile_m * tile_m, m + m / 4 + 16)
            << shape.n << 'x' << shape.k << ", m " << m << ", tiles of " << tile_m;
      }
}

// Long rows of x need more parts of k than a list of a few has, or the batch kernel.
TEST(GemmPlan, TuningMeasuresWhatIsTakenWithoutIt) {
  for (const Device* device : {&kH200, &kUnknownHopper, &kAmpere, &kWithBlas})
    for (const std::uint64_t k : {64, 4096, 25600, 131072, 1 << 20, 1 << 24})
      for (const std::uint64_t m : {1, 8, 16, 32, 64, 512}) {
        const Problem problem{4096, k, m};
        const gemm::Plan taken = complete_plan(*device, problem, {}).plan;
        const auto measured = gemm::candidates(*device, problem);
        EXPECT_EQ(std::ranges::count_if(measured,
                                        [&](const gemm::Plan& plan) {
                                          return plan.kernel == taken.kernel &&
                                                 plan.split_k == taken.split_k &&
                                                 plan.warps == taken.warps &&
                                                 plan.strips == taken.strips &&
                                                 plan.tile_m == taken.tile_m;
                                        }),
                  1)
            << device->name << ", k " << k << ", m " << m;
      }
}

TEST(GemmPlan, ShapesThatDoNotFitAreRefused) {
  const Problem problem{4096, 4096, 8};
  for (const gemm::Plan& wish : {gemm::Plan{.kernel = Kernel::kFewRows, .split_k = 33},
                                 gemm::Plan{.kernel = Kernel::kFewRows, .split_k = -1},
                                 gemm::Plan{.kernel = Kernel::kFewRows, .warps = 5}})
    EXPECT_EQ(complete_plan(kH200, problem, wish).fit.split_k, 0u);
  EXPECT_EQ(gemm::fit_few_rows(kH200, {4096, 4096, 17}, {}).split_k, 0u);
  EXPECT_EQ(gemm::fit_few_rows(kAmpere, problem, {}).split_k, 0u);
  EXPECT_FALSE(gemm::batch_fits({.split_k = 2, .strips = 8, .tile_m = 16}, 128));
  EXPECT_FALSE(gemm::batch_fits({.split_k = 3, .strips = 8, .tile_m = 16}, 4096));
  EXPECT_FALSE(gemm::batch_fits({.split_k = 1, .strips = 16, .tile_m = 16}, 4096));
  EXPECT_FALSE(gemm::batch_fits({.split_k = 1, .strips = 12, .tile_m = 256}, 4096));
}

// What each call of a linear layer pays: a decode step has hundreds, each of some 10 us.
TEST(GemmPlan, AKnownProblemTakesLessThanAMicrosecond) {
  std::vector<Problem> problems;
  for (const auto& [n, k] : {std::pair(6144, 4096),
                             {4096, 4096},
                             {28672, 4096},
                             {4096, 14336},
                             {128256, 4096},
                             {5120, 13824},
                             {8192, 28672},
                             {10240, 8192}})
    for (const std::uint64_t m : {1, 8})
      problems.push_back({static_cast<std::uint64_t>(n), static_cast<std::uint64_t>(k), m});
  double best = std::numeric_limits<double>::max();
  for (int round = 0; round < 50; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; ++i)
      for (const Problem& problem : problems)
        ASSERT_NE(auto_plan(kH200, problem).plan.kernel, Kernel::kAuto);
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
    best = std::min(best, spent.count() / static_cast<double>(20 * problems.size()));
  }
  std::printf("%.0f ns a lookup\n", best);
  EXPECT_LT(best, 1000);
}

}  // namespace
}  // namespace snug::test
