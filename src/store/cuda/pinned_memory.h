// store/cuda/pinned_memory.h - host memory that a GPU copies from at full speed.
#pragma once
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <cstddef>
#include <utility>

#include "gpu/relaxed_capture.h"

namespace snug::cuda {

// In huge pages where the system has them: to pin these takes a fraction of the time that
// cudaMallocHost takes, and a loader is mostly used once.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(const PinnedMemory&) = delete;
  ~PinnedMemory() { release(); }

  // At least that many bytes; what it held may be lost.
  cudaError_t ensure(std::size_t num_bytes) {
    if (num_bytes <= num_bytes_) return cudaSuccess;
    release();
    num_bytes = (num_bytes + kHugePage - 1) / kHugePage * kHugePage;
    void* mapped = ::mmap(nullptr, num_bytes + kHugePage, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return cudaErrorMemoryAllocation;
    mapping_ = static_cast<std::byte*>(mapped);
    mapped_bytes_ = num_bytes + kHugePage;
    const auto address = reinterpret_cast<std::size_t>(mapping_);
    std::byte* const data = mapping_ + (kHugePage - address % kHugePage) % kHugePage;
    (void)::madvise(data, num_bytes, MADV_HUGEPAGE);
    // Here, and not while the driver lets no other thread in.
    for (std::size_t at = 0; at < num_bytes; at += kPage) data[at] = std::byte{0};
    const cudaError_t error = cudaHostRegister(data, num_bytes, kEverywhere);
    if (error != cudaSuccess) {
      release();
      return error;
    }
    data_ = data;
    num_bytes_ = num_bytes;
    return cudaSuccess;
  }
  std::byte* data() const { return data_; }
  std::size_t num_bytes() const { return num_bytes_; }

 private:
  static constexpr std::size_t kHugePage = std::size_t{2} << 20, kPage = 4096;
  static constexpr unsigned kEverywhere = cudaHostRegisterPortable | cudaHostRegisterMapped;

  void release() {
    if (data_ != nullptr) {
      const RelaxedCapture relaxed;  // a loader may be destroyed by any thread
      (void)cudaHostUnregister(data_);
    }
    if (mapping_ != nullptr) ::munmap(mapping_, mapped_bytes_);
    data_ = mapping_ = nullptr;
    num_bytes_ = mapped_bytes_ = 0;
  }

  std::byte *mapping_ = nullptr, *data_ = nullptr;
  std::size_t mapped_bytes_ = 0, num_bytes_ = 0;
};

}  // namespace snug::cuda
