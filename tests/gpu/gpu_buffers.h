// gpu/gpu_buffers.h - device memory and one-call helpers for the GPU tests.
#pragma once
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "snug/cuda.h"
#include "support/checks.h"

namespace snug::test {

#define SNUG_CUDA_OK(call) ASSERT_EQ(call, cudaSuccess)

// Device memory filled with a pattern, so that nothing passes by being zero.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t num_bytes, std::size_t misalign = 0) : misalign_(misalign) {
    EXPECT_EQ(cudaMalloc(&base_, num_bytes + misalign + 16), cudaSuccess);
    EXPECT_EQ(cudaMemset(base_, 0xA5, num_bytes + misalign + 16), cudaSuccess);
    size_ = num_bytes;
  }
  DeviceBuffer(const Bytes& bytes, std::size_t misalign = 0)
      : DeviceBuffer(bytes.size(), misalign) {
    upload(bytes);
  }
  ~DeviceBuffer() { cudaFree(base_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  std::uint8_t* data() const { return static_cast<std::uint8_t*>(base_) + misalign_; }
  std::size_t size() const { return size_; }
  void upload(const Bytes& bytes) const {
    EXPECT_EQ(cudaMemcpy(data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  Bytes download(std::size_t num_bytes) const {
    Bytes bytes(num_bytes);
    EXPECT_EQ(cudaMemcpy(bytes.data(), data(), num_bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    return bytes;
  }
  // Whether the pattern right behind the buffer is still there.
  bool end_is_intact() const {
    std::uint8_t tail[16];
    EXPECT_EQ(cudaMemcpy(tail, data() + size_, 16, cudaMemcpyDeviceToHost), cudaSuccess);
    for (const auto b : tail)
      if (b != 0xA5) return false;
    return true;
  }

 private:
  void* base_ = nullptr;
  std::size_t size_ = 0, misalign_;
};

inline cuda::DeviceResult fetch_result(const DeviceBuffer& result) {
  cuda::DeviceResult r;
  const Bytes bytes = result.download(sizeof r);
  std::memcpy(&r, bytes.data(), sizeof r);
  return r;
}

// Encodes on the GPU; an empty frame on error, which fails the test.
inline Bytes gpu_encode(const Bytes& raw, const cuda::EncodeOptions& options,
                        std::size_t misalign = 0) {
  snug::EncodeOptions same{options.dtype, options.codec, options.log2_block, 1};
  DeviceBuffer src(raw, misalign), frame(encode_bound(raw.size(), same)),
      result(sizeof(cuda::DeviceResult));
  DeviceBuffer ws(cuda::encode_workspace_bytes(raw.size(), options));
  const Status status =
      cuda::encode({src.data(), raw.size()}, {frame.data(), frame.size()}, {ws.data(), ws.size()},
                   reinterpret_cast<cuda::DeviceResult*>(result.data()), options, nullptr);
  EXPECT_TRUE(status.ok()) << to_string(status);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const cuda::DeviceResult r = fetch_result(result);
  EXPECT_EQ(r.code, 0u) << to_string(cuda::to_status(r));
  EXPECT_TRUE(frame.end_is_intact());
  EXPECT_TRUE(ws.end_is_intact());
  return r.code == 0 ? frame.download(r.num_bytes) : Bytes();
}

// Decodes on the GPU into a buffer of raw_bytes.
inline Result<Bytes> gpu_decode(const Bytes& framed, std::size_t raw_bytes,
                                const cuda::DecodeOptions& options, std::size_t misalign = 0) {
  DeviceBuffer frame(framed), dst(raw_bytes, misalign), result(sizeof(cuda::DeviceResult));
  DeviceBuffer ws(cuda::decode_workspace_bytes(raw_bytes, options));
  const Status status =
      cuda::decode({frame.data(), framed.size()}, {dst.data(), raw_bytes}, {ws.data(), ws.size()},
                   reinterpret_cast<cuda::DeviceResult*>(result.data()), options, nullptr);
  EXPECT_TRUE(status.ok()) << to_string(status);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(dst.end_is_intact());
  const cuda::DeviceResult r = fetch_result(result);
  if (r.code != 0) return cuda::to_status(r);
  return dst.download(r.num_bytes);
}

}  // namespace snug::test
