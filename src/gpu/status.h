// gpu/status.h - CUDA errors and wrong arguments as a Status.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <initializer_list>

#include "snug/status.h"

namespace snug::cuda {

// The text and the number of the CUDA error are kept. The runtime forgets it, or else the next
// launch on this thread would report it once more.
inline Status from_cuda(cudaError_t error) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();
  return {Code::kNoDevice, cudaGetErrorString(error), kNowhere, kNowhere,
          static_cast<std::uint64_t>(error)};
}
// The first that is an error.
inline Status from_cuda(std::initializer_list<cudaError_t> errors) {
  for (const cudaError_t error : errors)
    if (error != cudaSuccess) return from_cuda(error);
  return {};
}

inline Status usage(const char* what, std::uint64_t found = kNowhere,
                    std::uint64_t expected = kNowhere) {
  return {Code::kUsage, what, kNowhere, kNowhere, found, expected};
}

inline bool is_aligned(const void* p, std::uintptr_t to) {
  return reinterpret_cast<std::uintptr_t>(p) % to == 0;
}

inline Status check_workspace(const void* data, std::size_t num_bytes, std::size_t needed) {
  if (num_bytes < needed) return usage("workspace too small", num_bytes, needed);
  if (data == nullptr || !is_aligned(data, 256)) return usage("workspace is not 256-byte aligned");
  return {};
}

}  // namespace snug::cuda
