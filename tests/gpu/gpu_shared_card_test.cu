// Encoding while another kernel holds most multiprocessors and does not end before the encoder has:
// no block may wait for a thread block that cannot start.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "gpu/gpu_buffers.h"
#include "support/inputs.h"

namespace snug::test {
namespace {

using Clock = std::chrono::steady_clock;

__global__ void hold_kernel(unsigned* started, const volatile unsigned* may_end) {
  extern __shared__ unsigned room[];  // so that nobody else fits
  room[0] = 0;
  if (threadIdx.x == 0) atomicAdd_system(started, 1u);
  while (*may_end == 0) {
  }
}

// Thread blocks that each hold a multiprocessor while this object lives.
class Holders {
 public:
  explicit Holders(int count) {
    int most = 0;
    EXPECT_EQ(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
              cudaSuccess);
    EXPECT_EQ(cudaFuncSetAttribute(hold_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
              cudaSuccess);
    EXPECT_EQ(cudaMallocHost(&words_, 2 * sizeof(unsigned)), cudaSuccess);
    words_[0] = words_[1] = 0;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    hold_kernel<<<count, 32, most, stream_>>>(words_, words_ + 1);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    const auto end = Clock::now() + std::chrono::seconds(20);
    while (started() < static_cast<unsigned>(count) && Clock::now() < end) {
    }
    EXPECT_EQ(started(), static_cast<unsigned>(count));
  }
  ~Holders() {
    *const_cast<volatile unsigned*>(words_ + 1) = 1;
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    cudaStreamDestroy(stream_);
    cudaFreeHost(words_);
  }
  Holders(const Holders&) = delete;
  Holders& operator=(const Holders&) = delete;

 private:
  unsigned started() const { return *const_cast<const volatile unsigned*>(words_); }

  unsigned* words_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

void check(Codec codec, int log2_block) {
  const Bytes raw = make_input(input_named("gaussian"), DType::kBF16, (300u << log2_block) + 77);
  const Bytes expected = encode_or_fail(view(raw), {DType::kBF16, codec, log2_block, 1});
  cuda::EncodeOptions options;
  options.codec = codec;
  options.log2_block = log2_block;
  DeviceBuffer src(raw), frame(expected.size() + 4096), result(sizeof(cuda::DeviceResult));
  DeviceBuffer ws(cuda::encode_workspace_bytes(raw.size(), options));
  cudaStream_t stream;
  SNUG_CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const auto encode = [&] {
    return cuda::encode({src.data(), raw.size()}, {frame.data(), frame.size()},
                        {ws.data(), ws.size()},
                        reinterpret_cast<cuda::DeviceResult*>(result.data()), options, stream);
  };
  ASSERT_TRUE(encode().ok());  // loads the code, which nothing may hold up later
  SNUG_CUDA_OK(cudaStreamSynchronize(stream));
  int num_sms = 0;
  SNUG_CUDA_OK(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0));
  for (const int left : {1, 2, num_sms / 2}) {
    SCOPED_TRACE("codec " + std::to_string(static_cast<int>(codec)) + " log2_block " +
                 std::to_string(log2_block) + " multiprocessors left " + std::to_string(left));
    bool ended = false;
    {
      const Holders holders(num_sms - left);
      ASSERT_TRUE(encode().ok());
      const auto end = Clock::now() + std::chrono::seconds(20);
      while (!ended && Clock::now() < end) ended = cudaStreamQuery(stream) == cudaSuccess;
    }
    EXPECT_TRUE(ended);
    SNUG_CUDA_OK(cudaStreamSynchronize(stream));
    ASSERT_EQ(fetch_result(result).code, 0u);
    ASSERT_EQ(fetch_result(result).num_bytes, expected.size());
    EXPECT_TRUE(frame.download(expected.size()) == expected);
  }
  cudaStreamDestroy(stream);
}

TEST(GpuSharedCard, FixedEncodeNeedsOneMultiprocessor) {
  for (const int log2_block : {12, 15}) check(Codec::kFixed, log2_block);
}

TEST(GpuSharedCard, EntropyEncodeNeedsOneMultiprocessor) { check(Codec::kEntropy, 13); }

}  // namespace
}  // namespace snug::test
