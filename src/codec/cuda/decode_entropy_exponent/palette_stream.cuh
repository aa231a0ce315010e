// codec/cuda/decode_entropy_exponent/palette_stream.cuh - a palette stream as a warp decodes it:
// the lane's state, and words prefetched through shared memory.
#pragma once
#include <type_traits>

#include "codec/cuda/decode_entropy_exponent/palette_section.cuh"

namespace snug::cuda {

// kAhead: words are in shared memory together with the table's entry for their low byte, so that a
// lane that takes a word has its next look-up done. The chain of a step is shorter (7 % of a call
// of 16 MiB) but has more instructions: for calls with few warps a multiprocessor.
template <bool kAhead>
struct PaletteStream {
  using Vec = std::conditional_t<kAhead, uint2, uint4>;
  static constexpr u32 kWordRoom = kAhead ? 8 : 2;  // bytes of a word in shared memory
  static constexpr u32 kChunk = kWarpSize * sizeof(Vec) / 2 * kWordRoom;
  static constexpr u32 kRoom = 3 * kChunk;
  // Groups that take at most one chunk.
  static constexpr unsigned kGroups = kChunk / kWordRoom / (kGroupElems / 2);

  const Vec* vecs;  // of the payload
  u32 first_vec, next_vec, end_vec;
  u32 slots;  // address of the table
  // Two chunks in turn, and a copy of the first behind the second: words stay contiguous.
  u32 ring;   // address
  u32 next;   // address of the next word
  u32 limit;  // end of the words in the ring
  unsigned lanes_below;
  Vec ahead;
  u32 x;
  u32 entry, high, word;  // kAhead: the entry for x, x >> 8, and the word that x took

  // Loads the first words, bounded by the payload: the end of the section may not be known yet.
  __device__ __forceinline__ PaletteStream(const u8* payload, u32 words_at, u32 num_bytes,
                                           u32 slots_at, u32 ring_at)
      : vecs(reinterpret_cast<const Vec*>(payload)),
        first_vec(words_at / sizeof(Vec)),
        next_vec(first_vec + lane_id()),
        end_vec(num_bytes / sizeof(Vec)),
        slots(slots_at),
        ring(ring_at),
        next(ring_at),
        limit(ring_at),
        lanes_below(lanes_below_mask()) {
    load_ahead();
  }
  // When the table is filled.
  __device__ __forceinline__ void start(u32 state) {
    x = state;
    if constexpr (kAhead) {
      entry = load_slot(x, slots);
      high = x >> 8;
    }
  }

  __device__ __forceinline__ void load_ahead() {
    // Lanes beyond the end load the last vector: a select would wait for the load.
    ahead = __ldcs(vecs + min(next_vec, end_vec - 1));
  }
  __device__ __forceinline__ u64 ahead_terms() const {
    return next_vec < end_vec ? checksum_term(ahead, next_vec) : 0;
  }

  // Provides the words of kGroups groups. Adds the checksum terms of new ones.
  __device__ __forceinline__ void refill(u64& sum) {
    if (static_cast<i32>(limit - next) >= static_cast<i32>(kChunk)) return;
    __syncwarp();
    const bool is_second = limit == ring + kChunk || limit == ring + 3 * kChunk;
    store_chunk(is_second ? ring + kChunk : ring, !is_second);
    if (limit == ring + 3 * kChunk) {
      limit -= kChunk;
      next -= 2 * kChunk;
    } else {
      limit += kChunk;
    }
    sum += ahead_terms();
    next_vec += kWarpSize;
    load_ahead();
    __syncwarp();
  }
  __device__ __forceinline__ void store_chunk(u32 at, bool twice) const {
    if constexpr (kAhead) {
      const u32 mine = at + 32 * lane_id();
      const uint4 a{ahead.x & 0xFFFF, load_slot(ahead.x, slots), ahead.x >> 16,
                    load_slot(ahead.x >> 16, slots)};
      const uint4 b{ahead.y & 0xFFFF, load_slot(ahead.y, slots), ahead.y >> 16,
                    load_slot(ahead.y >> 16, slots)};
      store_shared(mine, a);
      store_shared(mine + 16, b);
      if (twice) store_shared(mine + 2 * kChunk, a);
      if (twice) store_shared(mine + 2 * kChunk + 16, b);
    } else {
      store_shared(at + 16 * lane_id(), ahead);
      if (twice) store_shared(at + 2 * kChunk + 16 * lane_id(), ahead);
    }
  }

  // One step: two symbols, one renormalisation. Returns the upper halves of their entries.
  __device__ __forceinline__ u32 decode_two() {
    if constexpr (kAhead) {
      const u32 a = entry;
      x = taken_out(a, high);
      const u32 b = load_slot(x, slots);
      x = taken_out(b, x >> 8);
      take_ahead(load_slot(x, slots));
      return __byte_perm(a, b, 0x7632);
    } else {
      const u32 a = load_slot(x, slots);
      x = taken_out(a, x >> 8);
      const u32 b = load_slot(x, slots);
      x = taken_out(b, x >> 8);
      take_word(x, next, lanes_below);
      return __byte_perm(a, b, 0x7632);
    }
  }
  // The state without a symbol. A dot product extracts the frequency, see decode_pair.
  __device__ __forceinline__ u32 taken_out(u32 slot, u32 upper) const {
    return __dp4a(slot, 0x100u, 0u) * upper + (slot & 255);
  }
  // take_word() for words with entries; `own` is the entry for x as it is.
  __device__ __forceinline__ void take_ahead(u32 own) {
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        ".reg .b32 needing, at, entry, mask;\n\t"
        "setp.lt.u32 p, %4, 65536;\n\t"
        "selp.b32 mask, 0xFFFFFFFF, 0, p;\n\t"
        "vote.sync.ballot.b32 needing, p, 0xFFFFFFFF;\n\t"
        "and.b32 at, needing, %5;\n\t"
        "popc.b32 at, at;\n\t"
        "mad.lo.u32 at, at, 8, %3;\n\t"
        "ld.shared.v2.u32 {%2, entry}, [at];\n\t"
        "shr.u32 %1, %4, 8;\n\t"
        "lop3.b32 %0, mask, entry, %6, 0xCA;\n\t"  // selp would become a predicated load
        "@p prmt.b32 %1, %4, %2, 0x2105;\n\t"
        "popc.b32 needing, needing;\n\t"
        "mad.lo.u32 %3, needing, 8, %3;\n\t"
        "}"
        : "=&r"(entry), "=&r"(high), "=&r"(word), "+r"(next)
        : "r"(x), "r"(lanes_below), "r"(own)
        : "memory");
  }

  // After the last group: terms of escapes, and of words that a corrupt stream did not use.
  __device__ __forceinline__ u64 terms_left() {
    u64 sum = ahead_terms();
    for (next_vec += kWarpSize; next_vec < end_vec; next_vec += kWarpSize) {
      load_ahead();
      sum += ahead_terms();
    }
    return sum;
  }
  // Whether this lane's stream ends as it must. Before terms_left().
  __device__ __forceinline__ bool ends_well(u32 num_words) const {
    const u32 loaded = (next_vec - lane_id() - first_vec) * (sizeof(Vec) / 2);
    const u32 last = kAhead && x < kStateLow ? x << 16 | word : x;
    return loaded - (limit - next) / kWordRoom == num_words && last == kStateLow;
  }
};

}  // namespace snug::cuda
