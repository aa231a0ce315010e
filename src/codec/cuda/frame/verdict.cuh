// codec/cuda/frame/verdict.cuh - what the verdict kernels share. A verdict ends a call on one
// tensor: one thread block that starts beside the kernel that does the work, waits for its end and
// writes the result. So the working thread blocks need not find out which of them is the last.
#pragma once
#include "codec/cuda/frame/device_frame.cuh"
#include "gpu/launch.h"

namespace snug::cuda {

inline constexpr unsigned kVerdictThreads = 256;

// The sum over all threads.
__device__ __forceinline__ u64 sum_all(u64 v) {
  __shared__ u64 of_warps[kVerdictThreads / kWarpSize];
  v = warp_sum(v);
  if (lane_id() == 0) of_warps[warp_id()] = v;
  __syncthreads();
  v = 0;
#pragma unroll
  for (unsigned w = 0; w < kVerdictThreads / kWarpSize; ++w) v += of_warps[w];
  return v;
}

}  // namespace snug::cuda
