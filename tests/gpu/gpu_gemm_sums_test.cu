// Checksums of packed matrices on the GPU: equal to the CPU's, and damage is found in its strip.
#include <gtest/gtest.h>

#include "gpu/gemm_device.h"
#include "snug/snug_gpu.h"

namespace snug::test {
namespace {

using gemm::Kind;
using Sums = std::vector<std::uint64_t>;

Bytes bytes_of_sums(const Sums& sums) {
  Bytes bytes(8 * sums.size());
  std::memcpy(bytes.data(), sums.data(), bytes.size());
  return bytes;
}

Sums sums_on_cpu(const Bytes& packed, std::uint64_t n) {
  Sums sums(gemm::num_strips(n));
  const Status s = gemm::strip_sums_host(packed, sums);
  EXPECT_TRUE(s.ok()) << to_string(s);
  return sums;
}

Sums sums_on_gpu(const gemm::Matrix& matrix) {
  Sums sums(gemm::num_strips(matrix.n));
  const DeviceBuffer device(8 * sums.size());
  const Status s =
      gemm::strip_sums(matrix, reinterpret_cast<std::uint64_t*>(device.data()), nullptr);
  EXPECT_TRUE(s.ok()) << to_string(s);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(device.end_is_intact());
  const Bytes bytes = device.download(device.size());
  std::memcpy(sums.data(), bytes.data(), bytes.size());
  return sums;
}

Status verify_on_gpu(const gemm::Matrix& matrix, const Sums& sums) {
  const DeviceBuffer device(bytes_of_sums(sums)), result(sizeof(gemm::DeviceResult));
  const Status s = gemm::verify(matrix, reinterpret_cast<const std::uint64_t*>(device.data()),
                                result_in(result), nullptr);
  EXPECT_TRUE(s.ok()) << to_string(s);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const gemm::DeviceResult r = fetch_result(result);
  EXPECT_EQ(r.num_bytes, r.code == 0 ? matrix.num_bytes : 0);
  return cuda::to_status(r);
}

void expect_same_as_cpu(const Weights& w, std::uint64_t n, std::uint64_t k, Kind kind) {
  const DeviceMatrix packed(w, n, k, kind);
  if (packed.status.code == Code::kDstTooSmall) return;  // too many escapes
  ASSERT_TRUE(packed.status.ok()) << to_string(packed.status);
  const Sums want = sums_on_cpu(packed.buffer.download(packed.matrix.num_bytes), n);
  EXPECT_EQ(sums_on_gpu(packed.matrix), want) << n << " x " << k;
  const Status s = verify_on_gpu(packed.matrix, want);
  EXPECT_TRUE(s.ok()) << to_string(s);
}

TEST(GemmSumsOnGpu, SameAsTheCpu) {
  // Around the 512 threads of a block, and 32 tiles of a warp: 4 and 5 loads a thread, and more.
  constexpr std::uint64_t kShapes[][2] = {{1, 1},      {16, 128},    {17, 129},  {100, 1000},
                                          {64, 4096},  {333, 777},   {33, 1366}, {40, 8 * 128},
                                          {48, 11000}, {20, 140000}, {5000, 256}};
  for (const auto& [n, k] : kShapes)
    for (const Kind kind : {Kind::kFixed, Kind::kRaw}) {
      expect_same_as_cpu(normal_weights(n * k, 0.02f, 0, n), n, k, kind);
      if (n * k > 10'000) expect_same_as_cpu(normal_weights(n * k, 0.02f, 3000, k), n, k, kind);
    }
}

// A strip with overflows, as in tests/gemm.
Weights weights_with_overflows(std::uint64_t n, std::uint64_t k) {
  Weights w = normal_weights(n * k, 0.02f, 2000, 1);
  for (std::uint32_t i = 0; i < 200; ++i)
    w[(16 + i % 16) * k + 120 + i / 16] = static_cast<std::uint16_t>(i * 0x0153);
  return w;
}

TEST(GemmSumsOnGpu, OverflowsAreCovered) {
  const std::uint64_t n = 48, k = 5000;
  const DeviceMatrix packed(weights_with_overflows(n, k), n, k, Kind::kFixed);
  ASSERT_TRUE(packed.status.ok());
  const gemm::Layout layout(n, k, Kind::kFixed);
  ASSERT_GE(packed.matrix.num_bytes, layout.overflows + 2 * gemm::kOverflowBytes);
  expect_same_as_cpu(weights_with_overflows(n, k), n, k, Kind::kFixed);
  const Sums sums = sums_on_gpu(packed.matrix);
  for (std::uint64_t at = layout.overflows; at < packed.matrix.num_bytes; at += 97) {
    Bytes byte = packed.buffer.download(at + 1);
    const auto was = std::to_integer<int>(byte.back());
    SNUG_CUDA_OK(cudaMemset(packed.buffer.data() + at, was ^ 1, 1));
    const Status s = verify_on_gpu(packed.matrix, sums);
    EXPECT_EQ(s.code, Code::kCorrupt) << at;
    SNUG_CUDA_OK(cudaMemset(packed.buffer.data() + at, was, 1));
  }
}

TEST(GemmSumsOnGpu, FlippedBitsAreFoundInTheirStrip) {
  const std::uint64_t n = 70, k = 640;
  for (const Kind kind : {Kind::kFixed, Kind::kRaw}) {
    const DeviceMatrix packed(normal_weights(n * k, 0.02f, 0, 4), n, k, kind);
    ASSERT_TRUE(packed.status.ok());
    const Bytes bytes = packed.buffer.download(packed.matrix.num_bytes);
    const Sums sums = sums_on_cpu(bytes, n);
    const gemm::Layout layout(n, k, kind);
    const std::uint64_t strip_bytes = layout.tiles_per_strip * layout.tile_bytes;
    Prng prng(7);
    for (int round = 0; round < 200; ++round) {
      const std::uint64_t at = layout.tiles + prng.below(layout.strips * strip_bytes);
      const int was = std::to_integer<int>(bytes[at]), bit = static_cast<int>(prng.below(8));
      SNUG_CUDA_OK(cudaMemset(packed.buffer.data() + at, was ^ 1 << bit, 1));
      const Status s = verify_on_gpu(packed.matrix, sums);
      EXPECT_EQ(s.code, Code::kCorrupt) << at;
      EXPECT_EQ(s.block, (at - layout.tiles) / strip_bytes);
      SNUG_CUDA_OK(cudaMemset(packed.buffer.data() + at, was, 1));
    }
    EXPECT_TRUE(verify_on_gpu(packed.matrix, sums).ok());
    if (kind == Kind::kRaw) continue;
    for (const std::uint64_t at : {layout.palettes + 8 * 3 + 2, layout.escapes + 16 * 5 * 3 + 7}) {
      SNUG_CUDA_OK(cudaMemset(packed.buffer.data() + at, std::to_integer<int>(bytes[at]) ^ 16, 1));
      const Status s = verify_on_gpu(packed.matrix, sums);
      EXPECT_EQ(to_string(s),
                "corrupt: block 3: 16 rows, from row 16 x block on, do not match their checksum");
      SNUG_CUDA_OK(cudaMemset(packed.buffer.data() + at, std::to_integer<int>(bytes[at]), 1));
    }
  }
}

// Of several damaged strips the first is named.
TEST(GemmSumsOnGpu, TheFirstDamagedStripIsNamed) {
  const std::uint64_t n = 4000, k = 512;
  const DeviceMatrix packed(normal_weights(n * k, 0.02f, 0, 5), n, k, Kind::kFixed);
  ASSERT_TRUE(packed.status.ok());
  Sums sums = sums_on_gpu(packed.matrix);
  for (const std::uint64_t strip : {249, 200, 77, 3}) {
    ++sums[strip];
    EXPECT_EQ(verify_on_gpu(packed.matrix, sums).block, strip);
  }
}

TEST(GemmSumsOnGpu, BadArgumentsAreRefused) {
  const DeviceMatrix packed(normal_weights(64 * 256, 0.02f, 0, 6), 64, 256, Kind::kFixed);
  ASSERT_TRUE(packed.status.ok());
  const DeviceBuffer sums(8 * 4), result(sizeof(gemm::DeviceResult));
  auto* const list = reinterpret_cast<std::uint64_t*>(sums.data());
  EXPECT_EQ(gemm::strip_sums(packed.matrix, nullptr, nullptr).code, Code::kUsage);
  EXPECT_EQ(gemm::strip_sums({}, list, nullptr).code, Code::kUsage);
  EXPECT_EQ(gemm::verify(packed.matrix, list, nullptr, nullptr).code, Code::kUsage);
  EXPECT_EQ(gemm::verify(packed.matrix, nullptr, result_in(result), nullptr).code, Code::kUsage);
}

TEST(GemmSumsOnGpu, TheCAbiGivesTheSame) {
  const DeviceMatrix packed(normal_weights(64 * 256, 0.02f, 0, 8), 64, 256, Kind::kFixed);
  ASSERT_TRUE(packed.status.ok());
  const gemm::Matrix& m = packed.matrix;
  const snug_gemm_matrix matrix{m.data, m.num_bytes, m.n, m.k, m.num_escaped, SNUG_GEMM_FIXED, 0};
  const DeviceBuffer sums(8 * 4), result(sizeof(snug_cuda_result));
  auto* const list = reinterpret_cast<std::uint64_t*>(sums.data());
  ASSERT_EQ(snug_gemm_strip_sums(&matrix, list, nullptr, nullptr), SNUG_OK);
  SNUG_CUDA_OK(cudaDeviceSynchronize());
  EXPECT_EQ(sums.download(32), bytes_of_sums(sums_on_gpu(m)));
  SNUG_CUDA_OK(cudaMemset(sums.data() + 16, 0xEE, 8));
  ASSERT_EQ(snug_gemm_verify(&matrix, list, reinterpret_cast<snug_cuda_result*>(result.data()),
                             nullptr, nullptr),
            SNUG_OK);
  SNUG_CUDA_OK(cudaDeviceSynchronize());
  const gemm::DeviceResult found = fetch_result(result);
  EXPECT_EQ(found.code, static_cast<std::uint32_t>(SNUG_CORRUPT));
  EXPECT_EQ(found.block, 2u);
}

}  // namespace
}  // namespace snug::test
