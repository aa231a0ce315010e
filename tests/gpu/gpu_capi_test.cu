// The C ABI of the GPU codecs: every call gives what the CPU's encoder gives.
#include <gtest/gtest.h>

#include <string>

#include "gpu/gpu_buffers.h"
#include "snug/snug_gpu.h"
#include "support/inputs.h"

namespace snug::test {
namespace {

snug_cuda_result* result_of(const DeviceBuffer& buffer) {
  return reinterpret_cast<snug_cuda_result*>(buffer.data());
}

snug_cuda_result fetch(const DeviceBuffer& buffer, std::size_t i = 0) {
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  snug_cuda_result r;
  std::memcpy(&r, buffer.download((i + 1) * sizeof r).data() + i * sizeof r, sizeof r);
  return r;
}

struct Case {
  Bytes raw, fixed, entropy;
  snug_cuda_options options{};

  explicit Case(std::size_t num_elems) {
    raw = make_input(input_named("outliers"), DType::kBF16, num_elems);
    fixed = encode_or_fail(view(raw), {DType::kBF16, Codec::kFixed, 12, 1});
    entropy = encode_or_fail(view(raw), {DType::kBF16, Codec::kEntropy, 12, 1});
    options.dtype = static_cast<int>(DType::kBF16);
    options.codec = static_cast<int>(Codec::kEntropy);
    options.log2_block = 12;
  }
};

void expect_bytes(const DeviceBuffer& buffer, const snug_cuda_result& r, const Bytes& expected) {
  ASSERT_EQ(snug_cuda_status(&r, nullptr), SNUG_OK) << r.reason;
  ASSERT_EQ(r.num_bytes, expected.size());
  EXPECT_TRUE(buffer.download(expected.size()) == expected);
}

TEST(GpuCApi, EncodeDecodeAndHostCopy) {
  Case c(9001);
  snug_cuda_result* host = nullptr;
  SNUG_CUDA_OK(cudaMallocHost(&host, sizeof *host));
  c.options.host_result = host;
  DeviceBuffer src(c.raw), frame(c.raw.size() + 4096), dst(c.raw.size()),
      result(sizeof(snug_cuda_result));
  DeviceBuffer ws(snug_cuda_encode_workspace_bytes(c.raw.size(), &c.options) +
                  snug_cuda_decode_workspace_bytes(c.raw.size(), &c.options));
  ASSERT_EQ(snug_cuda_encode(src.data(), c.raw.size(), frame.data(), frame.size(), ws.data(),
                             ws.size(), result_of(result), &c.options, nullptr, nullptr),
            SNUG_OK);
  expect_bytes(frame, fetch(result), c.entropy);
  EXPECT_EQ(host->num_bytes, c.entropy.size());
  ASSERT_EQ(snug_cuda_decode(frame.data(), frame.size(), dst.data(), dst.size(), ws.data(),
                             ws.size(), result_of(result), &c.options, nullptr, nullptr),
            SNUG_OK);
  expect_bytes(dst, fetch(result), c.raw);
  cudaFreeHost(host);
}

TEST(GpuCApi, Pages) {
  Case c(8192);
  c.options.codec = static_cast<int>(Codec::kFixed);
  DeviceBuffer src(c.raw), dst(c.raw.size()), frame(c.raw.size() + 4096),
      result(sizeof(snug_cuda_result));
  const std::size_t half = c.raw.size() / 2;
  const auto list_of = [&](const DeviceBuffer& b) {
    const snug_segment pages[2] = {{b.data(), half}, {b.data() + half, c.raw.size() - half}};
    Bytes bytes(sizeof pages);
    std::memcpy(bytes.data(), pages, sizeof pages);
    return bytes;
  };
  DeviceBuffer from(list_of(src)), to(list_of(dst)),
      ws(snug_cuda_paged_workspace_bytes(c.raw.size(), 2, &c.options));
  ASSERT_EQ(snug_cuda_encode_paged(reinterpret_cast<const snug_segment*>(from.data()), 2,
                                   c.raw.size(), frame.data(), frame.size(), ws.data(), ws.size(),
                                   result_of(result), &c.options, nullptr, nullptr),
            SNUG_OK);
  expect_bytes(frame, fetch(result), c.fixed);
  ASSERT_EQ(
      snug_cuda_decode_paged(frame.data(), frame.size(),
                             reinterpret_cast<const snug_segment*>(to.data()), 2, c.raw.size(),
                             ws.data(), ws.size(), result_of(result), &c.options, nullptr, nullptr),
      SNUG_OK);
  expect_bytes(dst, fetch(result), c.raw);
}

TEST(GpuCApi, BatchAndTranscode) {
  Case a(5000), b(777);
  DeviceBuffer src_a(a.raw), src_b(b.raw), frame_a(a.raw.size() + 4096),
      frame_b(b.raw.size() + 4096);
  const snug_cuda_item items[2] = {{src_a.data(), a.raw.size(), frame_a.data(), frame_a.size()},
                                   {src_b.data(), b.raw.size(), frame_b.data(), frame_b.size()}};
  Bytes bytes(sizeof items);
  std::memcpy(bytes.data(), items, sizeof items);
  DeviceBuffer list(bytes), results(2 * sizeof(snug_cuda_result));
  const std::size_t total = a.raw.size() + b.raw.size();
  DeviceBuffer ws(snug_cuda_batch_workspace_bytes(total, 2, &a.options));
  const auto* device_items = reinterpret_cast<const snug_cuda_item*>(list.data());
  ASSERT_EQ(snug_cuda_encode_batch(device_items, 2, total, ws.data(), ws.size(), result_of(results),
                                   &a.options, nullptr, nullptr),
            SNUG_OK);
  expect_bytes(frame_a, fetch(results, 0), a.entropy);
  expect_bytes(frame_b, fetch(results, 1), b.entropy);
  src_a.upload(Bytes(a.raw.size()));
  ASSERT_EQ(snug_cuda_decode_batch(device_items, 2, total, ws.data(), ws.size(), result_of(results),
                                   &a.options, nullptr, nullptr),
            SNUG_OK);
  expect_bytes(src_a, fetch(results, 0), a.raw);
  expect_bytes(src_b, fetch(results, 1), b.raw);

  a.options.codec = static_cast<int>(Codec::kFixed);
  DeviceBuffer next(a.raw.size() + 4096),
      more(snug_cuda_transcode_workspace_bytes(a.raw.size(), &a.options));
  ASSERT_EQ(snug_cuda_transcode(frame_a.data(), a.entropy.size(), src_a.data(), a.raw.size(),
                                next.data(), next.size(), more.data(), more.size(),
                                result_of(results), &a.options, nullptr, nullptr),
            SNUG_OK);
  expect_bytes(next, fetch(results), a.fixed);
}

TEST(GpuCApi, RefusesWhatItCannotDo) {
  snug_cuda_options options{};
  options.dtype = 99;
  EXPECT_EQ(snug_cuda_encode_workspace_bytes(100, &options), 0u);
  EXPECT_EQ(
      snug_cuda_encode(nullptr, 100, nullptr, 0, nullptr, 0, nullptr, &options, nullptr, nullptr),
      SNUG_USAGE);
  EXPECT_GT(snug_cuda_encode_workspace_bytes(100, nullptr), 0u);
  EXPECT_EQ(
      snug_cuda_encode(nullptr, 0, nullptr, 0, nullptr, 0, nullptr, nullptr, nullptr, nullptr),
      SNUG_USAGE);
}

}  // namespace
}  // namespace snug::test
