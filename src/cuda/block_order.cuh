// cuda/block_order.cuh - where a block's payload goes: the sum of all sizes
// before it, found by looking back over what other warps have published.
#pragma once
#include "cuda/work.cuh"

namespace snug::cuda {

// A published size: two bits say whether the value is the block's own size or
// that of everything up to and including it, in units of 16 bytes.
inline constexpr unsigned long long kOwnSize = 1ull << 62;
inline constexpr unsigned long long kSumSize = 2ull << 62;
inline constexpr unsigned long long kSizeMask = kOwnSize - 1;

__device__ __forceinline__ unsigned long long read_size(const unsigned long long* p) {
  return *reinterpret_cast<const volatile unsigned long long*>(p);
}
__device__ __forceinline__ void publish_size(unsigned long long* p, unsigned long long v) {
  *reinterpret_cast<volatile unsigned long long*>(p) = v;
}

// Called by one whole warp. `sizes` belongs to the item; `before_item` is what
// precedes the first block. Returns the units before this block. Windows of 128
// blocks: with 32, waves of blocks that end together would wait on each other.
inline __device__ __noinline__ std::uint64_t place_block(unsigned long long* sizes,
                                                         std::uint64_t block, std::uint64_t units,
                                                         std::uint64_t before_item) {
  const unsigned lane = lane_id();
  if (lane == 0)
    publish_size(sizes + block, block == 0 ? kSumSize | (before_item + units) : kOwnSize | units);
  if (block == 0) return before_item;
  constexpr int kWindows = 4;
  std::uint64_t before = 0;
  for (std::int64_t last = static_cast<std::int64_t>(block) - 1;;
       last -= kWindows * static_cast<std::int64_t>(kWarp)) {
    unsigned long long seen[kWindows];
#pragma unroll
    for (int w = 0; w < kWindows; ++w) {
      const std::int64_t at = last - w * static_cast<std::int64_t>(kWarp) - lane;
      seen[w] = at >= 0 ? read_size(sizes + at) : kSumSize;
    }
#pragma unroll
    for (int w = 0; w < kWindows; ++w) {
      const std::int64_t at = last - w * static_cast<std::int64_t>(kWarp) - lane;
      unsigned sums;
      for (;;) {
        // Only blocks nearer than the first sum matter.
        sums = __ballot_sync(kAll, (seen[w] & kSumSize) != 0);
        const unsigned missing = __ballot_sync(kAll, seen[w] == 0);
        const unsigned needed = sums == 0 ? kAll : (sums & (0u - sums)) - 1;
        if ((missing & needed) == 0) break;
        if (seen[w] == 0) seen[w] = read_size(sizes + at);
      }
      const unsigned nearest =
          sums == 0 ? kWarp : static_cast<unsigned>(__ffs(static_cast<int>(sums)) - 1);
      before += warp_sum64(lane <= nearest ? seen[w] & kSizeMask : 0);
      if (sums != 0) {
        if (lane == 0) publish_size(sizes + block, kSumSize | (before + units));
        return before;
      }
    }
  }
}

}  // namespace snug::cuda
