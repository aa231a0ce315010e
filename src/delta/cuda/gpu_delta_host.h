// delta/cuda/gpu_delta_host.h - argument checks that the host sides of the delta kernels share.
#pragma once
#include <cuda_runtime.h>

#include "delta/cuda/delta_device.cuh"
#include "gpu/launch.h"
#include "gpu/status.h"
#include "snug/cuda.h"

namespace snug::cuda::deltas {

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
  if (Status s = check_workspace(workspace.data, workspace.num_bytes, needed); !s.ok()) return s;
  if (result == nullptr) return usage("no place for the result");
  return {};
}

inline Status copy_result(cudaError_t error, const DeviceResult* result, DeviceResult* host_result,
                          Stream stream) {
  if (error == cudaSuccess && host_result != nullptr)
    error = cudaMemcpyAsync(host_result, result, sizeof *result, cudaMemcpyDeviceToHost, stream);
  return from_cuda(error);
}

}  // namespace snug::cuda::deltas
