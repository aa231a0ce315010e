// codec/cuda/frame/look_back.cuh - decoupled look-back scan: the offset of a payload is the sum of
// all sizes before it, found in what other warps have published. See docs/gpu.md.
#pragma once
#include "codec/cuda/frame/work.cuh"

namespace snug::cuda {

// A published size, in units of 16 bytes. Two bits say whether it is the size of the block or that
// of everything up to its end. 0: not published yet.
inline constexpr unsigned long long kOwnSize = 1ull << 62;
inline constexpr unsigned long long kSumSize = 2ull << 62;
inline constexpr unsigned long long kSizeMask = kOwnSize - 1;

__device__ __forceinline__ unsigned long long read_size(const unsigned long long* p) {
  return *reinterpret_cast<const volatile unsigned long long*>(p);
}
__device__ __forceinline__ void publish_size(unsigned long long* p, unsigned long long v) {
  *reinterpret_cast<volatile unsigned long long*>(p) = v;
}

// By one thread: publishes the size of a block. `sizes` belongs to the item; `before_item` is the
// size of what precedes its first block.
__device__ __forceinline__ void publish_block(unsigned long long* sizes, u64 block, u64 units,
                                              u64 before_item) {
  publish_size(sizes + block, block == 0 ? kSumSize | (before_item + units) : kOwnSize | units);
}

// By a whole warp, after publish_block: the units before this block. Looks at 256 blocks at a time,
// as many as are in flight. Missing sizes are read again together: a read takes longer than most of
// them are late.
inline __device__ __noinline__ u64 find_place(unsigned long long* sizes, u64 block, u64 units,
                                              u64 before_item) {
  const unsigned lane = lane_id();
  if (block == 0) return before_item;
  constexpr int kWindows = 8;
  constexpr auto kStep = static_cast<i64>(kWarpSize);
  u64 before = 0;
  for (i64 last = static_cast<i64>(block) - 1 - lane;; last -= kWindows * kStep) {
    unsigned long long seen[kWindows];
#pragma unroll
    for (int w = 0; w < kWindows; ++w)
      seen[w] = last - w * kStep >= 0 ? read_size(sizes + (last - w * kStep)) : kSumSize;
    for (;;) {
      // Only blocks up to the nearest sum matter.
      bool complete = true, ends = false;
      u64 sum = 0;
#pragma unroll
      for (int w = 0; w < kWindows; ++w) {
        if (ends || !complete) break;
        const unsigned sums = __ballot_sync(kAllLanes, (seen[w] & kSumSize) != 0),
                       missing = __ballot_sync(kAllLanes, seen[w] == 0),
                       needed = sums == 0 ? kAllLanes : sums ^ (sums - 1);
        complete = (missing & needed) == 0;
        ends = sums != 0;
        if ((needed >> lane & 1) != 0) sum += seen[w] & kSizeMask;
      }
      if (complete) {
        before += warp_sum(sum);
        if (!ends) break;
        if (lane == 0) publish_size(sizes + block, kSumSize | (before + units));
        return before;
      }
#pragma unroll
      for (int w = 0; w < kWindows; ++w)
        if (seen[w] == 0) seen[w] = read_size(sizes + (last - w * kStep));
    }
  }
}

__device__ __forceinline__ u64 place_block(unsigned long long* sizes, u64 block, u64 units,
                                           u64 before_item) {
  if (lane_id() == 0) publish_block(sizes, block, units, before_item);
  return find_place(sizes, block, units, before_item);
}

}  // namespace snug::cuda
