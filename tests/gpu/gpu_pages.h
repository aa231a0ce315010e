// gpu/gpu_pages.h - device memory cut into pages that do not follow each other.
#pragma once
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "snug/cuda.h"
#include "support/inputs.h"

namespace snug::test {

class Pages {
 public:
  Pages(std::size_t num_bytes, std::size_t page_bytes) : num_bytes_(num_bytes) {
    const std::size_t num_pages = (num_bytes + page_bytes - 1) / page_bytes;
    room_ = 2 * num_pages * page_bytes;
    EXPECT_EQ(cudaMalloc(&memory_, room_), cudaSuccess);
    EXPECT_EQ(cudaMemset(memory_, 0xCD, room_), cudaSuccess);
    for (std::size_t i = 0; i < num_pages; ++i)
      segments_.push_back({static_cast<char*>(memory_) + (2 * (num_pages - 1 - i)) * page_bytes,
                           std::min(page_bytes, num_bytes - i * page_bytes)});
  }
  Pages(const Pages&) = delete;
  ~Pages() { cudaFree(memory_); }

  void fill(const Bytes& data) const {
    std::size_t at = 0;
    for (const cuda::Segment& page : segments_) {
      EXPECT_EQ(cudaMemcpy(page.data, data.data() + at, page.num_bytes, cudaMemcpyHostToDevice),
                cudaSuccess);
      at += page.num_bytes;
    }
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  Bytes read() const {
    Bytes data(num_bytes_);
    std::size_t at = 0;
    for (const cuda::Segment& page : segments_) {
      EXPECT_EQ(cudaMemcpy(data.data() + at, page.data, page.num_bytes, cudaMemcpyDeviceToHost),
                cudaSuccess);
      at += page.num_bytes;
    }
    return data;
  }
  // Whether what lies between the pages is as it was.
  bool gaps_are_intact() const {
    Bytes all(room_);
    EXPECT_EQ(cudaMemcpy(all.data(), memory_, room_, cudaMemcpyDeviceToHost), cudaSuccess);
    for (const cuda::Segment& page : segments_) {
      const auto at =
          static_cast<std::size_t>(static_cast<char*>(page.data) - static_cast<char*>(memory_));
      std::fill_n(all.begin() + static_cast<std::ptrdiff_t>(at), page.num_bytes, std::byte{0xCD});
    }
    return std::all_of(all.begin(), all.end(), [](std::byte b) { return b == std::byte{0xCD}; });
  }
  std::span<const cuda::Segment> segments() const { return segments_; }

 private:
  const std::size_t num_bytes_;
  std::size_t room_ = 0;
  void* memory_ = nullptr;
  std::vector<cuda::Segment> segments_;
};

}  // namespace snug::test
