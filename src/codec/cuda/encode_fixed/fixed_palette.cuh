// codec/cuda/encode_fixed/fixed_palette.cuh - the `fixed` palette: commonest upper exponent bits.
#pragma once
#include "codec/cuda/frame/device_frame.cuh"

namespace snug::cuda {

// Threads count into copies of the histogram, whose bins lie side by side: few bins get most
// values, and atomics on one address wait for each other.
inline constexpr unsigned kHistogramCopies = 4;

// By one warp: the 7 commonest values in falling order (of equal counts the smaller first), in two
// registers. The histogram has 128 bins of kCopies counters. most_common gets the highest count.
template <unsigned kCopies>
__device__ inline uint2 make_fixed_palette(const u32* histogram, u32* most_common = nullptr) {
  const unsigned lane = lane_id();
  u32 keys[4];
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned v = i * kWarpSize + lane;
    u32 count = 0;
#pragma unroll
    for (unsigned c = 0; c < kCopies; ++c) count += histogram[v * kCopies + c];
    keys[i] = (count << 7 | (127 - v)) + 1;  // 0: none
  }
  // Sorts each lane's keys: the maximum is then among the lanes' first ones.
  const auto order = [&](unsigned i, unsigned k) {
    const u32 high = max(keys[i], keys[k]);
    keys[k] = min(keys[i], keys[k]);
    keys[i] = high;
  };
  order(0, 1);
  order(2, 3);
  order(0, 2);
  order(1, 3);
  order(1, 2);
  u64 palette = 0;
#pragma unroll
  for (int s = 0; s < 7; ++s) {
    const u32 best = __reduce_max_sync(kAllLanes, keys[0]);
    palette |= u64{127 - ((best - 1) & 127)} << (8 * s);
    if (s == 0 && most_common != nullptr) *most_common = (best - 1) >> 7;
    if (keys[0] == best) {
      keys[0] = keys[1];
      keys[1] = keys[2];
      keys[2] = keys[3];
      keys[3] = 0;
    }
  }
  return {static_cast<u32>(palette), static_cast<u32>(palette >> 32)};
}

}  // namespace snug::cuda
