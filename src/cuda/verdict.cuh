// cuda/verdict.cuh - what the kernels have in common that end a call on one tensor: one
// thread block each, which starts beside the kernel that does the work, waits for its end,
// and writes the result. So thread blocks of the latter need not find out which is last.
#pragma once
#include "cuda/device_frame.cuh"
#include "cuda/prepared_launch.cuh"

namespace snug::cuda {

inline constexpr unsigned kVerdictThreads = 256;

// The largest or the sum of what all threads have.
template <class Combine>
__device__ __forceinline__ unsigned long long combine_all(unsigned long long v, Combine combine) {
  __shared__ unsigned long long of_warps[kVerdictThreads / kWarp];
#pragma unroll
  for (unsigned d = kWarp / 2; d != 0; d /= 2) v = combine(v, __shfl_xor_sync(kAll, v, d));
  if (lane_id() == 0) of_warps[threadIdx.x / kWarp] = v;
  __syncthreads();
  v = of_warps[0];
#pragma unroll
  for (unsigned w = 1; w < kVerdictThreads / kWarp; ++w) v = combine(v, of_warps[w]);
  __syncthreads();
  return v;
}

}  // namespace snug::cuda
