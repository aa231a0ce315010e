// The C ABI of deltas on the GPU: every call gives what the CPU gives.
#include <cstring>

#include "gpu/gemm_device.h"
#include "snug/delta.h"
#include "snug/snug_gpu.h"
#include "support/delta_versions.h"

namespace snug::test {
namespace {

snug_cuda_result* c_result_in(const DeviceBuffer& buffer) {
  return reinterpret_cast<snug_cuda_result*>(buffer.data());
}

struct Case {
  Versions versions = training_step(100'000, 2e-6);
  Bytes delta = encode_delta(versions, {DType::kBF16, 12, false, 1});
  snug_cuda_delta_options options{SNUG_BF16, 12, nullptr};
  DeviceBuffer base{versions.base}, next{versions.next}, result{sizeof(snug_cuda_result)};
  DeviceBuffer workspace{snug_cuda_delta_encode_workspace_bytes(versions.next.size(), &options)};
  std::size_t num_bytes = versions.next.size();
};

TEST(GpuDeltaCApi, EncodeWithACopyOfTheResult) {
  Case c;
  snug_cuda_result* host = nullptr;
  SNUG_CUDA_OK(cudaMallocHost(&host, sizeof *host));
  c.options.host_result = host;
  const DeviceBuffer out(c.num_bytes + 4096);
  ASSERT_EQ(snug_cuda_delta_encode(c.base.data(), c.next.data(), c.num_bytes, out.data(),
                                   out.size(), c.workspace.data(), c.workspace.size(),
                                   c_result_in(c.result), &c.options, nullptr, nullptr),
            SNUG_OK);
  SNUG_CUDA_OK(cudaDeviceSynchronize());
  ASSERT_EQ(snug_cuda_status(host, nullptr), SNUG_OK) << host->reason;
  ASSERT_EQ(host->num_bytes, c.delta.size());
  EXPECT_TRUE(out.download(c.delta.size()) == c.delta);
  cudaFreeHost(host);
}

TEST(GpuDeltaCApi, ApplyInPlaceAndElsewhere) {
  Case c;
  const DeviceBuffer update(c.delta), target(c.num_bytes);
  ASSERT_GE(c.workspace.size(), snug_cuda_delta_apply_workspace_bytes(c.num_bytes, &c.options));
  ASSERT_EQ(snug_cuda_delta_apply_to(update.data(), update.size(), c.base.data(), target.data(),
                                     c.num_bytes, c.workspace.data(), c.workspace.size(),
                                     c_result_in(c.result), &c.options, nullptr, nullptr),
            SNUG_OK);
  EXPECT_EQ(fetch_result(c.result).code, 0u);
  EXPECT_TRUE(target.download(c.num_bytes) == c.versions.next);
  ASSERT_EQ(snug_cuda_delta_apply(update.data(), update.size(), c.base.data(), c.num_bytes,
                                  c.workspace.data(), c.workspace.size(), c_result_in(c.result),
                                  &c.options, nullptr, nullptr),
            SNUG_OK);
  EXPECT_EQ(fetch_result(c.result).code, 0u);
  EXPECT_TRUE(c.base.download(c.num_bytes) == c.versions.next);
  // A second time, the base is another one.
  ASSERT_EQ(snug_cuda_delta_apply(update.data(), update.size(), c.base.data(), c.num_bytes,
                                  c.workspace.data(), c.workspace.size(), c_result_in(c.result),
                                  &c.options, nullptr, nullptr),
            SNUG_OK);
  snug_cuda_result refused;
  std::memcpy(&refused, c.result.download(sizeof refused).data(), sizeof refused);
  snug_status status;
  EXPECT_EQ(snug_cuda_status(&refused, &status), SNUG_WRONG_BASE);
  EXPECT_EQ(status.code, SNUG_WRONG_BASE);
  EXPECT_NE(std::string(status.what), "");
  EXPECT_TRUE(c.base.download(c.num_bytes) == c.versions.next);
}

TEST(GpuDeltaCApi, Hash) {
  Case c;
  const DeviceBuffer hash(8);
  ASSERT_EQ(snug_cuda_tensor_hash(c.next.data(), c.num_bytes,
                                  reinterpret_cast<std::uint64_t*>(hash.data()), c.workspace.data(),
                                  c.workspace.size(), nullptr, nullptr),
            SNUG_OK);
  std::uint64_t found;
  std::memcpy(&found, hash.download(8).data(), 8);
  EXPECT_EQ(found, snug_tensor_hash(c.versions.next.data(), c.num_bytes, 1));
}

TEST(GpuDeltaCApi, PackedMatrix) {
  Case c;
  const std::uint64_t n = 100, k = 1000;
  const DeviceMatrix old(values_of(c.versions.base), n, k, gemm::Kind::kFixed);
  const snug_gemm_matrix matrix{old.matrix.data,        old.matrix.num_bytes, n, k,
                                old.matrix.num_escaped, SNUG_GEMM_FIXED,      0};
  const DeviceBuffer update(c.delta), out(snug_gemm_packed_bound_bytes(n, k, SNUG_GEMM_FIXED)),
      workspace(snug_gemm_apply_delta_workspace_bytes(n, k));
  snug_status status;
  ASSERT_EQ(snug_gemm_apply_delta(&matrix, update.data(), update.size(), SNUG_GEMM_FIXED,
                                  out.data(), out.size(), workspace.data(), workspace.size(),
                                  c_result_in(c.result), &c.options, nullptr, &status),
            SNUG_OK);
  const DeviceMatrix expected(values_of(c.versions.next), n, k, gemm::Kind::kFixed);
  const cuda::DeviceResult r = fetch_result(c.result);
  ASSERT_EQ(r.num_bytes, expected.matrix.num_bytes);
  EXPECT_TRUE(out.download(r.num_bytes) == expected.buffer.download(r.num_bytes));
  EXPECT_EQ(snug_gemm_apply_delta(nullptr, update.data(), update.size(), SNUG_GEMM_FIXED,
                                  out.data(), out.size(), workspace.data(), workspace.size(),
                                  c_result_in(c.result), &c.options, nullptr, &status),
            SNUG_USAGE);
}

TEST(GpuDeltaCApi, OptionsOutOfRange) {
  const snug_cuda_delta_options dtype{1000, 0, nullptr}, block{SNUG_BF16, 15, nullptr};
  EXPECT_EQ(snug_cuda_delta_encode_workspace_bytes(1000, &dtype), 0u);
  EXPECT_EQ(snug_cuda_delta_encode_workspace_bytes(1000, &block), 0u);
  EXPECT_NE(snug_cuda_delta_encode_workspace_bytes(1000, nullptr), 0u);
}

}  // namespace
}  // namespace snug::test
