// gpu/warp.cuh - the lanes of a warp, sums over them, and teams of threads.
#pragma once
#include <cstdint>

namespace snug::cuda {

inline constexpr unsigned kWarpSize = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__device__ __forceinline__ unsigned lane_id() { return threadIdx.x % kWarpSize; }
__device__ __forceinline__ unsigned warp_id() { return threadIdx.x / kWarpSize; }

// The mask of the lanes below this one.
__device__ __forceinline__ unsigned lanes_below_mask() {
  unsigned mask;
  asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(mask));
  return mask;
}

// The sum over this lane and the lanes below it, among the first kLanes of a warp.
template <int kLanes = kWarpSize>
__device__ __forceinline__ std::uint32_t warp_inclusive_sum(std::uint32_t v) {
#pragma unroll
  for (int d = 1; d < kLanes; d *= 2) {
    const std::uint32_t below = __shfl_up_sync(kAllLanes, v, d);
    if (lane_id() >= static_cast<unsigned>(d)) v += below;
  }
  return v;
}

// The same with the shuffle's own predicate for the addition: an instruction less a step. The
// codec's kernels keep the other form, on which their registers are tuned.
template <int kLanes = kWarpSize>
__device__ __forceinline__ std::uint32_t warp_inclusive_sum_fused(std::uint32_t v) {
#pragma unroll
  for (int d = 1; d < kLanes; d *= 2) {
    std::uint32_t sum;
    asm volatile(
        "{ .reg .pred p;\n"
        "shfl.sync.up.b32 %0|p, %1, %2, 0, 0xffffffff;\n"
        "@p add.u32 %0, %0, %1; }"
        : "=&r"(sum)
        : "r"(v), "r"(d));
    v = sum;
  }
  return v;
}

// The sum over all lanes modulo 2^64. It adds parts of 27 bits, whose sums fit into the 32 bits of
// the reduction instruction.
__device__ __forceinline__ std::uint64_t warp_sum(std::uint64_t v) {
  constexpr unsigned kPart = 27, kMask = (1u << kPart) - 1;
  const std::uint64_t low = __reduce_add_sync(kAllLanes, static_cast<unsigned>(v) & kMask);
  const std::uint64_t middle =
      __reduce_add_sync(kAllLanes, static_cast<unsigned>(v >> kPart) & kMask);
  const std::uint64_t high = __reduce_add_sync(kAllLanes, static_cast<unsigned>(v >> 2 * kPart));
  return low + (middle << kPart) + (high << 2 * kPart);
}

// Threads that work on one block together: a warp, or the first kThreads of a thread block.
struct WarpTeam {
  static constexpr unsigned kSize = kWarpSize;
  __device__ static unsigned idx() { return lane_id(); }
  __device__ static void sync() { __syncwarp(); }
  __device__ static bool all(bool v) { return __all_sync(kAllLanes, v); }
};
template <unsigned kThreads>
struct BarrierTeam {
  static constexpr unsigned kSize = kThreads;
  __device__ static unsigned idx() { return threadIdx.x; }
  __device__ static void sync() { asm volatile("bar.sync 1, %0;" ::"n"(kSize) : "memory"); }
  __device__ static bool all(bool v) {
    unsigned good;
    asm volatile(
        "{\n\t.reg .pred p, q;\n\tsetp.ne.u32 p, %1, 0;\n\tbar.red.and.pred q, 1, %2, "
        "p;\n\tselp.u32 %0, 1, 0, q;\n\t}"
        : "=r"(good)
        : "r"(static_cast<unsigned>(v)), "n"(kSize)
        : "memory");
    return good != 0;
  }
};

}  // namespace snug::cuda
