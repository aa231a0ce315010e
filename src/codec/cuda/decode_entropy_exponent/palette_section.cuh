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
  u32 entry[256];
};

// A parsed section. Vectors are counted from the start of the payload.
struct PaletteSection {
  u32 num_words;
  u32 num_escapes;
  u32 first_vec;  // of the words
  u32 end_vec;    // of the section
  u32 escapes_at;
  u32 state;
};

inline constexpr unsigned kPaletteHeadVecs = (codec::kTableOffset + 32) / 16;

// The palette, a symbol a lane: value, frequency and end of its slots. False if the 32 bytes, one a
// lane, are no valid table.
__device__ __forceinline__ bool read_palette(u32 byte, u32 size, u32& value, u32& freq,
                                             u32& end_slot) {
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
__device__ __forceinline__ void fill_slot_entries(u32 slots, u32 list, u32 entry, u32 start,
                                                  bool live) {
  static_assert(8 % kStepsAtOnce == 0);
  const unsigned lane = lane_id(), below = (1u << lane) - 1;
  const unsigned live_mask = __ballot_sync(kAllLanes, live);
  if (live) store_shared(list + 4 * __popc(live_mask & below), entry - start);
  __syncwarp();
  u32 before = 0;
#pragma unroll 1
  for (unsigned step = 0; step < 8; step += kStepsAtOnce) {
    u32 entries[kStepsAtOnce];
#pragma unroll
    for (unsigned i = 0; i < kStepsAtOnce; ++i) {
      const unsigned starts = __reduce_or_sync(
          kAllLanes, live && start / kWarpSize == step + i ? 1u << (start % kWarpSize) : 0u);
      const u32 idx = before + __popc(starts & (below << 1 | 1)) - 1;
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
__device__ __forceinline__ bool open_palette_section(const u8* payload, u32 at, u32 num_bytes,
                                                     u32 n, u32 slots, u32 ring, u64& sum,
                                                     PaletteSection& section) {
  const unsigned lane = lane_id();
  if (num_bytes < at || num_bytes - at < codec::kTableOffset + 32) return false;
  const uint4* vecs = reinterpret_cast<const uint4*>(payload + at);
  const uint4 head = __ldg(vecs);
  const u32 byte = __ldg(payload + at + codec::kTableOffset + lane);  // values, then frequencies
  const uint4 vec = __ldg(vecs + min(lane, kPaletteHeadVecs - 1));
  section.state = __ldg(reinterpret_cast<const u32*>(payload + at + codec::kStatesOffset) + lane);
  const u32 palette_size = head.z >> 16 & 0xFF;
  const u64 words_at = at + codec::kTableOffset + 32;
  const u64 escapes_at = words_at + u64{head.x} * 2;
  const u64 end = align16(escapes_at + head.y);
  const bool good = head.w == 0 && head.z >> 24 == 0 && (head.z & 0xFFFF) == 32 &&
                    palette_size >= 1 && palette_size <= 15 &&
                    head.x <= codec::padded_symbols((std::size_t{n} + 1) / 2) && head.y <= n &&
                    end <= num_bytes;
  // No branch before all loads are used: the compiler would move loads behind it.
  if (lane < kPaletteHeadVecs) sum += checksum_term(vec, at / 16 + lane);
  u32 value, freq, end_slot;
  const bool is_table = read_palette(byte, palette_size, value, freq, end_slot);
  if (!__all_sync(kAllLanes, good && is_table)) return false;
  section.num_words = head.x;
  section.num_escapes = head.y;
  section.first_vec = static_cast<u32>(words_at / 16);
  section.end_vec = static_cast<u32>(end / 16);
  section.escapes_at = static_cast<u32>(escapes_at);
  const u32 escape = kInPlace ? 1u << 31 : 1u << 16;
  const u32 entry =
      freq << 8 | (lane == palette_size ? escape : 0u) | value << (kInPlace ? 23 : 24);
  fill_slot_entries<kStepsAtOnce>(slots, ring, entry, end_slot - freq, freq != 0);
  return true;
}

// The entry for a state's lowest byte. A dot product computes its address in one step.
__device__ __forceinline__ u32 load_slot(u32 x, u32 slots) {
  return load_shared_u32(__dp4a(x, 4u, slots));
}

// One step of one lane: two symbols, one renormalisation. Returns flag, value, flag, value from the
// lowest byte up. Dot products extract frequencies: the multiply pipe has time, the logic pipe less
// (2 % of the whole).
__device__ __forceinline__ u32 decode_pair(u32& x, u32 slots, u32& next, unsigned lanes_below) {
  const auto freq_of = [](u32 entry) { return __dp4a(entry, 0x100u, 0u); };
  const u32 a = load_slot(x, slots);
  x = freq_of(a) * (x >> 8) + (a & 255);
  const u32 b = load_slot(x, slots);
  x = freq_of(b) * (x >> 8) + (b & 255);
  take_word(x, next, lanes_below);
  return __byte_perm(a, b, 0x7632);
}

}  // namespace snug::cuda
