// codec/cuda/decode_any_block/escape_patch.cuh - puts escaped bytes into a decoded group of a
// palette plane, for decode_planes.cuh.
#pragma once
#include "codec/cuda/frame/device_frame.cuh"

namespace snug::cuda {

// Escapes of a section, 32 of them in registers: loads would be too late.
struct EscapeWindow {
  u32 used;   // escapes so far
  u32 first;  // the lane holds escape first + lane
  u32 byte;
};

struct Patched {
  u32 pairs[4];
  EscapeWindow window;
};

__device__ __forceinline__ void put_escape(Patched& r, u32 byte, int k, unsigned selector) {
  // Selects: a store to an element would put the array into local memory.
#pragma unroll
  for (int i = 0; i < 4; ++i)
    r.pairs[i] = __byte_perm(r.pairs[i], byte, i == k ? selector : 0x3210);
}

// Puts escaped bytes into the four results of decode_pair, lane by lane. Out of line: it takes no
// registers from the loop.
inline __device__ __noinline__ Patched patch_escapes(u32 p0, u32 p1, u32 p2, u32 p3,
                                                     const u8* escapes, u32 num_escapes,
                                                     u32 num_values, EscapeWindow window) {
  const unsigned lane = lane_id();
  Patched r{{p0, p1, p2, p3}, window};
  // Value 2k is bit k, value 2k + 1 is bit 16 + k.
  constexpr u32 kFlag = 0x00010001u;
  u32 flags = (p0 & kFlag) | (p1 & kFlag) << 1 | (p2 & kFlag) << 2 | (p3 & kFlag) << 3;
  if (8 * lane + 8 > num_values) {
    const u32 here = num_values > 8 * lane ? num_values - 8 * lane : 0;
    flags &= ((1u << (here + 1) / 2) - 1) | ((1u << here / 2) - 1) << 16;
  }
  const unsigned holders = __ballot_sync(kAllLanes, flags != 0);
  u32 before = __popc(holders & ((1u << lane) - 1)), total = __popc(holders);
  const bool several = __any_sync(kAllLanes, (flags & (flags - 1)) != 0);
  if (several) {
    const u32 count = __popc(flags);
    before = warp_inclusive_sum(count);
    total = __shfl_sync(kAllLanes, before, 31);
    before -= count;
  }
  if (window.used + total > window.first + kWarpSize) {
    r.window.first = window.used;
    r.window.byte = window.used + lane < num_escapes ? __ldg(escapes + window.used + lane) : 0;
  }
  u32 next = window.used + before;
  r.window.used += total;
  const auto selector_of = [&](int k) {
    return flags == 0 ? 0x3210u : flags >> (k & 31) & 1 ? 0x3240u : 0x4210u;
  };
  if (!several) {
    const u32 byte =
        __shfl_sync(kAllLanes, r.window.byte, static_cast<int>(next - r.window.first) & 31);
    const int k = __ffs(static_cast<int>(flags | flags >> 16)) - 1;
    put_escape(r, byte, k, selector_of(k));
    return r;
  }
#pragma unroll 1
  while (__any_sync(kAllLanes, flags != 0)) {
    u32 byte = __shfl_sync(kAllLanes, r.window.byte, static_cast<int>(next - r.window.first) & 31);
    if (next - r.window.first >= kWarpSize) byte = next < num_escapes ? __ldg(escapes + next) : 0;
    const int k = __ffs(static_cast<int>(flags | flags >> 16)) - 1;
    put_escape(r, byte, k, selector_of(k));
    if (flags != 0) flags &= ~(flags >> (k & 31) & 1 ? 1u << k : 0x10000u << k);
    ++next;
  }
  return r;
}

}  // namespace snug::cuda
