// y = x W^T on the GPU: close to the truth, equal to the uncompressed twin bit for
// bit, the same on every run, and untouched where nothing should be written.
#include <gtest/gtest.h>

#include <cmath>

#include "gpu/gemm_device.h"

namespace snug::test {
namespace {

using gemm::Kernel;
using gemm::Kind;
using gemm::Plan;

std::string name_of(const Plan& p, std::uint64_t m) {
  return "kernel " + std::to_string(static_cast<int>(p.kernel)) + ", split_k " +
         std::to_string(p.split_k) + ", warps " + std::to_string(p.warps) + ", strips " +
         std::to_string(p.strips) + ", tile_m " + std::to_string(p.tile_m) + ", m " +
         std::to_string(m);
}

double truth(const Weights& w, const LinearRun& run, std::uint64_t token, std::uint64_t row,
             bool with_bias) {
  double sum = with_bias ? from_bf16(run.bias[row]) : 0.0;
  for (std::uint64_t i = 0; i < run.k; ++i)
    sum +=
        static_cast<double>(from_bf16(run.x[token * run.ldx + i])) * from_bf16(w[row * run.k + i]);
  return sum;
}

void expect_close(const Weights& y, const Weights& w, const LinearRun& run, std::uint64_t m,
                  bool with_bias) {
  Prng prng(m);
  double error = 0, norm = 0;
  for (int i = 0; i < 300; ++i) {
    const std::uint64_t token = prng.below(m), row = prng.below(run.n);
    const double want = truth(w, run, token, row, with_bias),
                 got = from_bf16(y[token * run.ldy + row]);
    error += (got - want) * (got - want);
    norm += want * want;
  }
  EXPECT_LT(std::sqrt(error / norm), 4e-3);
}

void expect_gaps_untouched(const Weights& y, const LinearRun& run, std::uint64_t m) {
  for (std::uint64_t token = 0; token < m; ++token)
    for (std::uint64_t col = run.n; col < run.ldy; ++col)
      ASSERT_EQ(y[token * run.ldy + col], 0xA5A5);
}

struct Case {
  std::uint64_t n, k;
  std::size_t misalign;
  std::uint64_t pad;
  bool with_bias;
};

void check_case(const Case& c, const Weights& w, const std::vector<std::uint64_t>& ms,
                bool check_truth) {
  const DeviceMatrix packed(w, c.n, c.k, Kind::kFixed), twin(w, c.n, c.k, Kind::kRaw);
  ASSERT_TRUE(packed.status.ok()) << to_string(packed.status);
  ASSERT_TRUE(twin.status.ok()) << to_string(twin.status);
  LinearRun run(c.n, c.k, ms.back(), c.misalign, c.pad);
  for (const std::uint64_t m : ms)
    for (const Plan& plan : plans_for(c.n, c.k, m)) {
      SCOPED_TRACE(name_of(plan, m));
      const Weights y = run(packed.matrix, m, plan, c.with_bias);
      ASSERT_TRUE(run.status.ok()) << to_string(run.status);
      if (check_truth) expect_close(y, w, run, m, c.with_bias);
      if (c.pad != 0) expect_gaps_untouched(y, run, m);
      EXPECT_EQ(run(twin.matrix, m, plan, c.with_bias), y) << "differs from its twin";
      EXPECT_EQ(run(packed.matrix, m, plan, c.with_bias), y) << "differs from run to run";
    }
}

TEST(GemmLinear, LargeAndAligned) {
  check_case({1040, 2048, 0, 0, false}, normal_weights(1040 * 2048, 0.02f, 2000, 1),
             {1, 4, 8, 13, 16, 32, 64, 128, 300}, true);
}

TEST(GemmLinear, RaggedWithBiasAndGaps) {
  check_case({530, 1032, 0, 8, true}, normal_weights(530 * 1032, 0.02f, 1000, 2),
             {1, 7, 17, 33, 130}, true);
}

TEST(GemmLinear, OddShapesAndAddresses) {
  check_case({33, 131, 2, 1, true}, normal_weights(33 * 131, 0.02f, 500, 3), {1, 3, 20, 65}, true);
  check_case({1, 1, 0, 0, false}, normal_weights(1, 0.02f, 0, 4), {1, 2, 40}, true);
  check_case({17, 4099, 6, 3, false}, normal_weights(17 * 4099, 0.02f, 800, 5), {1, 9, 33}, true);
}

// NaN and infinities spread as they do in the twin; denormals count.
TEST(GemmLinear, SpecialWeights) {
  check_case({200, 512, 0, 0, false}, special_weights(200 * 512, 6), {1, 16, 40}, false);
}

TEST(GemmLinear, RowsDoNotDependOnTheirNumber) {
  const std::uint64_t n = 512, k = 1024;
  const Weights w = normal_weights(n * k, 0.02f, 1000, 7);
  const DeviceMatrix packed(w, n, k, Kind::kFixed);
  ASSERT_TRUE(packed.status.ok());
  LinearRun run(n, k, 64);
  for (const Plan& plan : plans_for(n, k, 8)) {
    const std::uint64_t most =
        plan.kernel == Kernel::kFewRows ? 8 : std::max(8, std::min(64, plan.tile_m));
    SCOPED_TRACE(name_of(plan, most));
    const Weights all = run(packed.matrix, most, plan);
    for (const std::uint64_t m : {std::uint64_t{1}, std::uint64_t{5}, most - 1}) {
      const Weights some = run(packed.matrix, m, plan);
      EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << m << " rows";
    }
  }
}

TEST(GemmLinear, AutoWorksForEveryM) {
  const std::uint64_t n = 768, k = 896;
  const Weights w = normal_weights(n * k, 0.02f, 1000, 8);
  const DeviceMatrix packed(w, n, k, Kind::kFixed);
  ASSERT_TRUE(packed.status.ok());
  LinearRun run(n, k, 700);
  EXPECT_LE(gemm::linear_workspace_bytes(n, k, 700), run.workspace.size());
  for (const std::uint64_t m : {1, 2, 16, 17, 32, 33, 64, 65, 256, 257, 511, 512, 700}) {
    const Weights y = run(packed.matrix, m, {}, true);
    ASSERT_TRUE(run.status.ok()) << m << ": " << to_string(run.status);
    expect_close(y, w, run, m, true);
  }
  EXPECT_TRUE(run(packed.matrix, 0, {}).empty());
  EXPECT_TRUE(run.status.ok());
}

TEST(GemmLinear, WorksInAGraphAndLeavesTheWorkspaceReady) {
  const std::uint64_t n = 640, k = 2048, m = 4;
  const DeviceMatrix packed(normal_weights(n * k, 0.02f, 1000, 9), n, k, Kind::kFixed);
  ASSERT_TRUE(packed.status.ok());
  LinearRun run(n, k, 64);
  const Plan cut{.kernel = Kernel::kFewRows, .split_k = 3, .warps = 8},
      batch{.kernel = Kernel::kBatch, .strips = 8, .tile_m = 64};
  const Weights want = run(packed.matrix, m, cut), want_batch = run(packed.matrix, 64, batch);
  cudaStream_t stream;
  SNUG_CUDA_OK(cudaStreamCreate(&stream));
  for (const auto& [plan, rows, expected] :
       {std::tuple(cut, m, &want), std::tuple(batch, std::uint64_t{64}, &want_batch)}) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    SNUG_CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < 5; ++i) {
      const Status status = gemm::linear(
          packed.matrix, {run.device_x.data(), k, rows, nullptr, run.device_y.data(), n},
          {run.workspace.data(), run.workspace.size()}, plan, stream);
      EXPECT_TRUE(status.ok()) << to_string(status);
    }
    SNUG_CUDA_OK(cudaStreamEndCapture(stream, &graph));
    SNUG_CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 20; ++i) {
      SNUG_CUDA_OK(cudaMemsetAsync(run.device_y.data(), 0x5A, run.device_y.size(), stream));
      SNUG_CUDA_OK(cudaGraphLaunch(exec, stream));
    }
    SNUG_CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(values_of(run.device_y.download(rows * n * 2)), *expected);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  }
  cudaStreamDestroy(stream);
}

TEST(GemmLinear, TunesAndExplains) {
  const std::uint64_t n = 512, k = 512;
  const DeviceMatrix packed(normal_weights(n * k, 0.02f, 0, 10), n, k, Kind::kFixed);
  LinearRun run(n, k, 8);
  const auto best =
      gemm::tune(packed.matrix, {run.device_x.data(), k, 8, nullptr, run.device_y.data(), n},
                 {run.workspace.data(), run.workspace.size()}, nullptr);
  ASSERT_TRUE(best.ok()) << to_string(best.status());
  const gemm::Choice choice = gemm::choose(n, k, 8, gemm::Policy::kSpeed);
  EXPECT_EQ(choice.plan.kernel, best->plan.kernel);
  EXPECT_EQ(choice.packed, best->gain >= 1.0f);
  EXPECT_TRUE(gemm::choose(n, k, 8, gemm::Policy::kMemory).packed);
  EXPECT_NE(gemm::explain(n, k, 8, gemm::Policy::kSpeed).find("512x512, m=8"), std::string::npos);
}

TEST(GemmLinear, BadArgumentsAreRefused) {
  const std::uint64_t n = 64, k = 256;
  const DeviceMatrix packed(normal_weights(n * k, 0.02f, 0, 11), n, k, Kind::kFixed);
  LinearRun run(n, k, 8);
  gemm::LinearArgs good{run.device_x.data(), k, 8, nullptr, run.device_y.data(), n};
  const cuda::Target workspace{run.workspace.data(), run.workspace.size()};
  const auto code = [&](const gemm::Matrix& matrix, const gemm::LinearArgs& args, cuda::Target ws,
                        const Plan& plan = {}) {
    return gemm::linear(matrix, args, ws, plan, nullptr).code;
  };
  EXPECT_EQ(code(packed.matrix, good, workspace), Code::kOk);
  gemm::Matrix bad = packed.matrix;
  bad.k = 255 + 256;
  EXPECT_EQ(code(bad, good, workspace), Code::kUsage);
  bad = packed.matrix;
  bad.data = static_cast<const char*>(bad.data) + 16;
  EXPECT_EQ(code(bad, good, workspace), Code::kUsage);
  for (auto change :
       {+[](gemm::LinearArgs& a) { a.x = nullptr; }, +[](gemm::LinearArgs& a) { a.ldx = 255; },
        +[](gemm::LinearArgs& a) { a.ldy = 63; }, +[](gemm::LinearArgs& a) { a.y = nullptr; },
        +[](gemm::LinearArgs& a) { a.x = static_cast<const char*>(a.x) + 1; },
        +[](gemm::LinearArgs& a) { a.m = std::uint64_t{1} << 40; }}) {
    gemm::LinearArgs args = good;
    change(args);
    EXPECT_EQ(code(packed.matrix, args, workspace), Code::kUsage);
  }
  EXPECT_EQ(code(packed.matrix, good, {workspace.data, 1000}), Code::kUsage);
  EXPECT_EQ(
      code(packed.matrix, good, {static_cast<char*>(workspace.data) + 8, workspace.num_bytes - 8}),
      Code::kUsage);
  EXPECT_EQ(code(packed.matrix, good, workspace, {.kernel = static_cast<Kernel>(99)}),
            Code::kUsage);
  EXPECT_EQ(code(packed.matrix, good, workspace, {.kernel = Kernel::kFewRows, .warps = 5}),
            Code::kUsage);
  EXPECT_EQ(
      code(packed.matrix, good, workspace, {.kernel = Kernel::kBatch, .strips = 8, .tile_m = 24}),
      Code::kUsage);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace snug::test
