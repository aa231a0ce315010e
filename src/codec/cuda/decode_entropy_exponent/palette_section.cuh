// codec/cuda/decode_entropy_exponent/palette_section.cuh - the head of a palette section
// (docs/format.md, "Entropy blocks") as a decoding warp reads it, and one decoding step.
#pragma once
#include "codec/cuda/decode_entropy_exponent/word_ring.cuh"
#include "codec/entropy/rans.h"
#include "codec/sections.h"

namespace snug::cuda {

using codec::entropy::kStateLow;

inline constexpr unsigned kGroupElems = 256;  // 4 steps of 32 pairs

// The first table of a stream: a slot is rank | freq << 8 | is_escape << 16 | value << 24,
// or kInPlace: rank | freq << 8 | value << 23 | is_escape << 31, whose upper half is a BF16 without
// sign and mantissa. The value of an escape is 0. Aligned, because tables of byte streams, in the
// same place, are addressed by a logical operation.
struct alignas(1024) SlotTable {
  std::uint32_t entry[256];
};

// A parsed section. Vectors are counted from the start of the payload.
struct PaletteSection {
  std::uint32_t num_words;
  std::uint32_t num_escapes;
  std::uint32_t first_vec;  // of the words
  std::uint32_t end_vec;    // of the section
  std::uint32_t escapes_at;
  std::uint32_t state;
};

inline constexpr unsigned kPaletteHeadVecs = (codec::kTableOffset + 32) / 16;

// The palette, a symbol a lane: value, frequency and end of its slots. False if the 32 bytes, one a
// lane, are no valid table.
__device__ __forceinline__ bool read_palette(std::uint32_t byte, std::uint32_t size,
                                             std::uint32_t& value, std::uint32_t& freq,
                                             std::uint32_t& end_slot) {
  const unsigned lane = lane_id();
  value = __shfl_sync(kAllLanes, byte, lane & 15);
  freq = __shfl_sync(kAllLanes, byte, 16 | lane);
  if (lane >= 16) freq = 0;
  const bool stray = lane < 16 && ((lane >= size && value != 0) || (lane > size && freq != 0));
  end_slot = warp_inclusive_sum<16>(freq);
  return !__any_sync(kAllLanes, stray) && __shfl_sync(kAllLanes, end_slot, 15) == 256;
}

// Gives each of the 256 slots at `slots` the entry of its symbol: bits mark where symbols start,
// and the number of bits up to a slot tells its symbol. `list` is room for 16 words. More steps at
// once are faster, but take registers from loads in flight.
template <unsigned kStepsAtOnce>
__device__ __forceinline__ void fill_slot_entries(std::uint32_t slots, std::uint32_t list,
                                                  std::uint32_t entry, std::uint32_t start,
                                                  bool live) {
  static_assert(8 % kStepsAtOnce == 0);
  const unsigned lane = lane_id(), below = (1u << lane) - 1;
  const unsigned live_mask = __ballot_sync(kAllLanes, live);
  if (live) store_shared(list + 4 * __popc(live_mask & below), entry - start);
  __syncwarp();
  std::uint32_t before = 0;
#pragma unroll 1
  for (unsigned step = 0; step < 8; step += kStepsAtOnce) {
    std::uint32_t entries[kStepsAtOnce];
#pragma unroll
    for (unsigned i = 0; i < kStepsAtOnce; ++i) {
      const unsigned starts = __reduce_or_sync(
          kAllLanes, live && start / kWarpSize == step + i ? 1u << (start % kWarpSize) : 0u);
      const std::uint32_t idx = before + __popc(starts & (below << 1 | 1)) - 1;
      entries[i] = load_shared_u32(list + 4 * idx) + kWarpSize * (step + i) + lane;
      before += __popc(starts);
    }
#pragma unroll
    for (unsigned i = 0; i < kStepsAtOnce; ++i)
      store_shared(slots + 4 * (kWarpSize * (step + i) + lane), entries[i]);
  }
  __syncwarp();
}

// Opens the section at `at` (16-byte aligned; the payload has num_bytes): fills the slots, with the
// ring as scratch memory, and adds the checksum terms of header, states and table. False if the
// section is not valid. All loads are issued before the first one is used.
template <bool kInPlace = false, unsigned kStepsAtOnce = 2>
__device__ __forceinline__ bool open_palette_section(const std::uint8_t* payload, std::uint32_t at,
                                                     std::uint32_t num_bytes, std::uint32_t n,
                                                     std::uint32_t slots, std::uint32_t ring,
                                                     std::uint64_t& sum, PaletteSection& section) {
  const unsigned lane = lane_id();
  if (num_bytes < at || num_bytes - at < codec::kTableOffset + 32) return false;
  const uint4* vecs = reinterpret_cast<const uint4*>(payload + at);
  const uint4 head = __ldg(vecs);
  const std::uint32_t byte =
      __ldg(payload + at + codec::kTableOffset + lane);  // values, then frequencies
  const uint4 vec = __ldg(vecs + min(lane, kPaletteHeadVecs - 1));
  section.state =
      __ldg(reinterpret_cast<const std::uint32_t*>(payload + at + codec::kStatesOffset) + lane);
  const std::uint32_t palette_size = head.z >> 16 & 0xFF;
  const std::uint64_t words_at = at + codec::kTableOffset + 32;
  const std::uint64_t escapes_at = words_at + std::uint64_t{head.x} * 2;
  const std::uint64_t end = align16(escapes_at + head.y);
  const bool good = head.w == 0 && head.z >> 24 == 0 && (head.z & 0xFFFF) == 32 &&
                    palette_size >= 1 && palette_size <= 15 &&
                    head.x <= codec::padded_symbols((std::size_t{n} + 1) / 2) && head.y <= n &&
                    end <= num_bytes;
  // No branch before all loads are used: the compiler would move loads behind it.
  if (lane < kPaletteHeadVecs) sum += checksum_term(vec, at / 16 + lane);
  std::uint32_t value, freq, end_slot;
  const bool is_table = read_palette(byte, palette_size, value, freq, end_slot);
  if (!__all_sync(kAllLanes, good && is_table)) return false;
  section.num_words = head.x;
  section.num_escapes = head.y;
  section.first_vec = static_cast<std::uint32_t>(words_at / 16);
  section.end_vec = static_cast<std::uint32_t>(end / 16);
  section.escapes_at = static_cast<std::uint32_t>(escapes_at);
  const std::uint32_t escape = kInPlace ? 1u << 31 : 1u << 16;
  const std::uint32_t entry =
      freq << 8 | (lane == palette_size ? escape : 0u) | value << (kInPlace ? 23 : 24);
  fill_slot_entries<kStepsAtOnce>(slots, ring, entry, end_slot - freq, freq != 0);
  return true;
}

// The entry for a state's lowest byte. A dot product computes its address in one step.
__device__ __forceinline__ std::uint32_t load_slot(std::uint32_t x, std::uint32_t slots) {
  return load_shared_u32(__dp4a(x, 4u, slots));
}

// One step of one lane: two symbols, one renormalisation. Returns flag, value, flag, value from the
// lowest byte up. Dot products extract frequencies: the multiply pipe has time, the logic pipe less
// (2 % of the whole).
__device__ __forceinline__ std::uint32_t decode_pair(std::uint32_t& x, std::uint32_t slots,
                                                     std::uint32_t& next, unsigned lanes_below) {
  const auto freq_of = [](std::uint32_t entry) { return __dp4a(entry, 0x100u, 0u); };
  const std::uint32_t a = load_slot(x, slots);
  x = freq_of(a) * (x >> 8) + (a & 255);
  const std::uint32_t b = load_slot(x, slots);
  x = freq_of(b) * (x >> 8) + (b & 255);
  take_word(x, next, lanes_below);
  return __byte_perm(a, b, 0x7632);
}

}  // namespace snug::cuda
