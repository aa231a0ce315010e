// codec/cuda/encode_fixed/fixed_escapes.cuh - values that miss in the first table of a palette:
// their indices, and the list of escapes in a payload.
#pragma once
#include "codec/cuda/encode_fixed/encode_ring.cuh"

namespace snug::cuda {

// Looks up the values that missed, one by one: sets their indices and returns the flags (bit 4i) of
// escapes.
__device__ __forceinline__ std::uint32_t resolve_misses(const Lookup& look, std::uint32_t lut,
                                                        std::uint32_t& word) {
  std::uint32_t escapes = 0;
  for (std::uint32_t flags = look.miss_flags(); flags != 0; flags &= flags - 1) {
    const std::uint32_t bit = first_set(flags),
                        idx = load_shared_u8(lut + (look.top_byte(bit / 4) & 127));
    word = (word & ~(7u << bit)) | idx << bit;
    if (idx == 7) escapes |= 1u << bit;
  }
  return escapes;
}

// Sets the indices of values that missed in the first table; returns the flags (bit 4i) of escapes.
__device__ __forceinline__ std::uint32_t set_missed_indices(const BlockInfo& info,
                                                            const Lookup& look,
                                                            std::uint32_t& word) {
  if (info.num_tables == 0) return resolve_misses(look, shared_address(info.lut), word);
  std::uint32_t flags = look.miss_flags();
  if (info.num_tables == 2) {
    const PackTables second = info.tables[1];
    const Lookup next = look.with(second.value);
    const std::uint32_t mask = flags * 7;
    word = (word & ~mask) | (next.indices(second.index) & mask);
    flags &= next.miss_flags();
  }
  word |= flags * 7;
  return flags;
}

// The escapes of a part.
struct EscapeList {
  std::uint8_t* payload;
  std::uint32_t at;  // offset of the next one

  template <int kWidth>
  static __device__ __forceinline__ EscapeList of(const BlockInfo& info, std::uint8_t* payload,
                                                  unsigned part) {
    std::uint32_t before = 0;
#pragma unroll
    for (unsigned i = 0; i < kMaxParts; i += kWarpSize)
      if (i + lane_id() < part) before += info.escapes_of[i + lane_id()];
    return {payload, FixedParts(info.job.n, kWidth, info.plane_modes).head +
                         static_cast<std::uint32_t>(codec::FixedHeader::kBytes) +
                         4 * __reduce_add_sync(kAllLanes, before)};
  }

  // By a whole warp: adds those (bit 4i) of the values from `first` on; returns checksum terms.
  __device__ __forceinline__ std::uint64_t add(const Lookup& look, std::uint32_t flags,
                                               std::uint32_t first) {
    const unsigned lanes = __ballot_sync(kAllLanes, flags != 0);
    if (lanes == 0) return 0;
    const std::uint32_t below = (1u << lane_id()) - 1;
    std::uint64_t sum = 0;
    const auto put = [&](std::uint32_t where) {
      const std::uint32_t value = first_set(flags) / 4;
      const std::uint32_t escape = (first + value) | look.top_byte(value) << 24;
      store_streaming(payload + where, escape);
      sum = mad_wide(escape, checksum_factor(where / 4), sum);
    };
    // Common case: no lane has two.
    if (!__any_sync(kAllLanes, (flags & (flags - 1)) != 0)) {
      if (flags != 0) put(at + 4 * __popc(lanes & below));
      at += 4 * __popc(lanes);
      return sum;
    }
    const std::uint32_t count = __popc(flags);
    std::uint32_t mine = at;
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
