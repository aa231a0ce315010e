// codec/cuda/encode_fixed/fixed_escapes.cuh - values that miss in the first table of a palette:
// their indices, and the list of escapes in a payload.
#pragma once
#include "codec/cuda/encode_fixed/encode_ring.cuh"

namespace snug::cuda {

// Looks up the values that missed, one by one: sets indices and returns flags (bit 4i) of escapes.
__device__ __forceinline__ u32 resolve_misses(const Lookup& look, u32 lut, u32& word) {
  u32 escapes = 0;
  for (u32 flags = look.miss_flags(); flags != 0; flags &= flags - 1) {
    const u32 bit = first_set(flags), idx = load_shared_u8(lut + (look.top_byte(bit / 4) & 127));
    word = (word & ~(7u << bit)) | idx << bit;
    if (idx == 7) escapes |= 1u << bit;
  }
  return escapes;
}

// Sets the indices of values that missed in the first table; returns the flags (bit 4i) of escapes.
__device__ __forceinline__ u32 set_missed_indices(const BlockInfo& info, const Lookup& look,
                                                  u32& word) {
  if (info.num_tables == 0) return resolve_misses(look, shared_address(info.lut), word);
  u32 flags = look.miss_flags();
  if (info.num_tables == 2) {
    const PackTables second = info.tables[1];
    const Lookup next = look.with(second.value);
    const u32 mask = flags * 7;
    word = (word & ~mask) | (next.indices(second.index) & mask);
    flags &= next.miss_flags();
  }
  word |= flags * 7;
  return flags;
}

// The escapes of a part.
struct EscapeList {
  u8* payload;
  u32 at;  // offset of the next one

  template <int kWidth>
  static __device__ __forceinline__ EscapeList of(const BlockInfo& info, u8* payload,
                                                  unsigned part) {
    u32 before = 0;
#pragma unroll
    for (unsigned i = 0; i < kMaxParts; i += kWarpSize)
      if (i + lane_id() < part) before += info.escapes_of[i + lane_id()];
    return {payload, FixedParts(info.job.n, kWidth, info.plane_modes).head +
                         static_cast<u32>(codec::FixedHeader::kBytes) +
                         4 * __reduce_add_sync(kAllLanes, before)};
  }

  // By a whole warp: adds those (bit 4i) of the values from `first` on; returns checksum terms.
  __device__ __forceinline__ u64 add(const Lookup& look, u32 flags, u32 first) {
    const unsigned lanes = __ballot_sync(kAllLanes, flags != 0);
    if (lanes == 0) return 0;
    const u32 below = (1u << lane_id()) - 1;
    u64 sum = 0;
    const auto put = [&](u32 where) {
      const u32 value = first_set(flags) / 4;
      const u32 escape = (first + value) | look.top_byte(value) << 24;
      store_streaming(payload + where, escape);
      sum = mad_wide(escape, checksum_factor(where / 4), sum);
    };
    // Common case: no lane has two.
    if (!__any_sync(kAllLanes, (flags & (flags - 1)) != 0)) {
      if (flags != 0) put(at + 4 * __popc(lanes & below));
      at += 4 * __popc(lanes);
      return sum;
    }
    const u32 count = __popc(flags);
    u32 mine = at;
#pragma unroll
    for (unsigned b = 0; b < 4; ++b) {
      const unsigned some = __ballot_sync(kAllLanes, (count >> b & 1) != 0);
      mine += __popc(some & below) << (b + 2);
      at += __popc(some) << (b + 2);
    }
    for (; flags != 0; flags &= flags - 1, mine += 4) put(mine);
    __syncwarp();
    return sum;
  }
};

}  // namespace snug::cuda
