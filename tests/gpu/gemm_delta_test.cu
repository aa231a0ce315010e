// Deltas of matrices in the form that linear() multiplies from: what the CPU gets by applying
// the delta and packing, or the old matrix and an error.
#include "delta/delta_format.h"
#include "gpu/gemm_device.h"
#include "snug/delta.h"
#include "snug/gemm.h"
#include "support/delta_versions.h"

namespace snug::test {
namespace {

using gemm::Kind;

// Weights and what a step of training makes of them.
struct Step {
  Weights before, after;

  Step(std::uint64_t num_weights, std::size_t one_in, std::uint64_t seed)
      : before(normal_weights(num_weights, 0.02f, 600, seed)), after(before) {
    Prng prng(seed);
    for (auto& w : after)
      if (prng.one_in(one_in)) w = static_cast<std::uint16_t>(w + (prng.one_in(2) ? 1 : 0xFFFF));
  }
  Bytes delta() const {
    return encode_delta({bytes_of(before), bytes_of(after)}, {DType::kBF16, 13, false, 1});
  }
};

struct Updated {
  Bytes packed;  // empty on error
  Status status;
};

Updated update(const DeviceMatrix& old, const Bytes& delta, Kind kind) {
  const gemm::Matrix& m = old.matrix;
  const DeviceBuffer update(delta), out(gemm::packed_bound(m.n, m.k, kind));
  const DeviceBuffer workspace(gemm::apply_delta_workspace_bytes(m.n, m.k)),
      result(sizeof(gemm::DeviceResult));
  const Bytes before = old.buffer.download(old.buffer.size());
  Updated updated;
  updated.status =
      gemm::apply_delta(m, {update.data(), update.size()}, kind, {out.data(), out.size()},
                        {workspace.data(), workspace.size()}, result_in(result), {}, nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(out.end_is_intact());
  EXPECT_TRUE(workspace.end_is_intact());
  EXPECT_TRUE(old.buffer.download(old.buffer.size()) == before);
  if (!updated.status.ok()) return updated;
  const gemm::DeviceResult r = fetch_result(result);
  updated.status = cuda::to_status(r);
  if (updated.status.ok()) updated.packed = out.download(r.num_bytes);
  return updated;
}

Bytes packed_on_cpu(const Weights& w, std::uint64_t n, std::uint64_t k, Kind kind) {
  Bytes packed(gemm::packed_bound(n, k, kind));
  const auto used = gemm::pack_host(w.data(), k, n, k, kind, packed);
  EXPECT_TRUE(used.ok()) << to_string(used.status());
  packed.resize(used.ok() ? *used : 0);
  return packed;
}

TEST(GemmDelta, WhatTheCpuApplies) {
  constexpr std::uint64_t kShapes[][2] = {{1, 1}, {16, 128}, {333, 777}, {256, 2048}};
  for (const auto& [n, k] : kShapes)
    for (const Kind from : {Kind::kFixed, Kind::kRaw})
      for (const Kind to : {Kind::kFixed, Kind::kRaw}) {
        const Step step(n * k, 30, n + k);
        const DeviceMatrix old(step.before, n, k, from);
        ASSERT_TRUE(old.status.ok()) << to_string(old.status);
        const Updated updated = update(old, step.delta(), to);
        ASSERT_TRUE(updated.status.ok()) << to_string(updated.status);
        EXPECT_TRUE(updated.packed == packed_on_cpu(step.after, n, k, to)) << n << " x " << k;
      }
}

TEST(GemmDelta, AnotherBaseIsRefused) {
  const Step step(64 * 512, 30, 1), other(64 * 512, 30, 2);
  const DeviceMatrix old(step.before, 64, 512, Kind::kFixed);
  ASSERT_TRUE(old.status.ok()) << to_string(old.status);
  EXPECT_EQ(update(old, other.delta(), Kind::kFixed).status.code, Code::kWrongBase);
  EXPECT_EQ(update(old, Step(64 * 511, 30, 1).delta(), Kind::kFixed).status.code, Code::kWrongBase);
}

// Every damaged delta is refused, or does what the CPU does with it.
TEST(GemmDelta, DamageGivesAnErrorOrTheRightMatrix) {
  constexpr std::uint64_t kN = 48, kK = 256;
  const Step step(kN * kK, 20, 3);
  const DeviceMatrix old(step.before, kN, kK, Kind::kFixed);
  ASSERT_TRUE(old.status.ok()) << to_string(old.status);
  const Bytes delta = step.delta();
  Prng prng(4);
  for (int i = 0; i < 100; ++i) {
    Bytes damaged = delta;
    damaged[prng.below(damaged.size())] ^= static_cast<std::byte>(1 << prng.below(8));
    Bytes on_cpu = bytes_of(step.before);
    const Status cpu = delta::apply_in_place(view(damaged), on_cpu);
    const Updated updated = update(old, damaged, Kind::kFixed);
    ASSERT_EQ(updated.status.ok(), cpu.ok()) << to_string(cpu);
    if (cpu.ok())
      EXPECT_TRUE(updated.packed == packed_on_cpu(values_of(on_cpu), kN, kK, Kind::kFixed));
  }
}

TEST(GemmDelta, TooManyNewExponentsNeedTheRawForm) {
  Step step(256 * 256, 30, 5);
  Prng prng(6);
  for (auto& w : step.after) w = static_cast<std::uint16_t>(prng.next());
  const DeviceMatrix old(step.before, 256, 256, Kind::kFixed);
  ASSERT_TRUE(old.status.ok()) << to_string(old.status);
  EXPECT_EQ(update(old, step.delta(), Kind::kFixed).status.code, Code::kDstTooSmall);
  EXPECT_TRUE(update(old, step.delta(), Kind::kRaw).packed ==
              packed_on_cpu(step.after, 256, 256, Kind::kRaw));
}

TEST(GemmDelta, Usage) {
  const Step step(16 * 128, 30, 7);
  const DeviceMatrix old(step.before, 16, 128, Kind::kRaw);
  const DeviceBuffer update(step.delta()), out(old.buffer.size()),
      result(sizeof(gemm::DeviceResult)), workspace(gemm::apply_delta_workspace_bytes(16, 128));
  const auto call = [&](void* to, std::size_t workspace_bytes, DType dtype) {
    cuda::DeltaOptions options;
    options.dtype = dtype;
    return gemm::apply_delta(old.matrix, {update.data(), update.size()}, Kind::kRaw,
                             {to, out.size()}, {workspace.data(), workspace_bytes},
                             result_in(result), options, nullptr)
        .code;
  };
  EXPECT_EQ(call(old.buffer.data(), workspace.size(), DType::kBF16), Code::kUsage);
  EXPECT_EQ(call(out.data(), workspace.size() - 1, DType::kBF16), Code::kUsage);
  EXPECT_EQ(call(out.data(), workspace.size(), DType::kF16), Code::kUsage);
  EXPECT_EQ(gemm::apply_delta_workspace_bytes(0, 128), 0u);
}

}  // namespace
}  // namespace snug::test
