// delta/cuda/gpu_delta_host.h - what the host sides of the delta kernels share: checks and
// launches.
#pragma once
#include <cuda_runtime.h>

#include "delta/cuda/delta_device.cuh"
#include "snug/cuda.h"

namespace snug::cuda::deltas {

inline Status usage(const char* what, std::uint64_t found = kNowhere,
                    std::uint64_t expected = kNowhere) {
  return {Code::kUsage, what, kNowhere, kNowhere, found, expected};
}

inline Status from_cuda(cudaError_t error) {
  if (error == cudaSuccess) return {};
  return {Code::kNoDevice, cudaGetErrorString(error), kNowhere, kNowhere,
          static_cast<std::uint64_t>(error)};
}

inline bool is_aligned(const void* p, std::uintptr_t to) {
  return reinterpret_cast<std::uintptr_t>(p) % to == 0;
}

inline int log2_block_of(const DeltaOptions& options) {
  return options.log2_block == 0 ? kDefaultGpuLog2Block : options.log2_block;
}

inline Status check_options(const DeltaOptions& options, std::size_t raw_bytes) {
  if (elem_bytes(options.dtype) == 0)
    return usage("not a dtype", static_cast<std::uint64_t>(options.dtype));
  if (elem_bytes(options.dtype) > 2)
    return usage("deltas on the GPU are for elements of one or two bytes",
                 elem_bytes(options.dtype), 2);
  const int log2_block = log2_block_of(options);
  if (log2_block < delta::kMinLog2Block || log2_block > kMaxGpuLog2Block)
    return usage("log2_block must be 0 or 12 to 14", static_cast<std::uint64_t>(log2_block));
  if (raw_bytes > delta::kMaxRawBytes)
    return usage("tensor too large for a delta", raw_bytes, delta::kMaxRawBytes);
  return {};
}

inline Status check_memory(Target workspace, std::size_t needed, const DeviceResult* result) {
  if (workspace.num_bytes < needed)
    return usage("workspace too small", workspace.num_bytes, needed);
  if (!is_aligned(workspace.data, 256)) return usage("workspace is not 256-byte aligned");
  if (result == nullptr) return usage("no place for the result");
  return {};
}

template <class Kernel, class Work>
cudaError_t launch(Kernel kernel, const Work& work, u32 grid, u32 threads, std::size_t shared_bytes,
                   cudaStream_t stream) {
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(shared_bytes));
  if (error != cudaSuccess) return error;
  kernel<<<grid, threads, shared_bytes, stream>>>(work);
  return cudaGetLastError();
}

inline Status copy_result(cudaError_t error, const DeviceResult* result, DeviceResult* host_result,
                          Stream stream) {
  if (error == cudaSuccess && host_result != nullptr)
    error = cudaMemcpyAsync(host_result, result, sizeof *result, cudaMemcpyDeviceToHost, stream);
  return from_cuda(error);
}

}  // namespace snug::cuda::deltas
