// cuda/decode_palette.cuh - one warp restores one block whose top plane is a
// palette stream (codec/entropy/rans.h) and whose other planes are raw or
// constant: BF16 and FP32 as encoders write them.
#pragma once
#include <cstddef>

#include "codec/entropy/rans.h"
#include "codec/sections.h"
#include "cuda/tensor_access.cuh"
#include "cuda/word_ring.cuh"

namespace snug::cuda {

using codec::entropy::kStateLow;

inline constexpr unsigned kRingBytes = 1024;      // two chunks of words
inline constexpr unsigned kChunkBytes = 512;      // 16 bytes a lane
inline constexpr unsigned kGroupElems = 256;      // 4 steps of 32 pairs
inline constexpr unsigned kGroupWordBytes = 256;  // most that a group consumes

inline constexpr unsigned kLowsAhead = 8;

// Shared memory of one warp.
struct alignas(1024) PaletteSmem {
  std::uint32_t slots[256];  // rank | freq << 8 | is_escape << 16 | value << 24
  alignas(16) std::uint8_t ring[kRingBytes];
  uint2 lows[kLowsAhead][kWarp];  // low bytes of the groups ahead
  // What the loop needs seldom: registers that live across a call are few.
  std::uint32_t num_words, num_escapes, escapes_at;
};

// A palette section, parsed. Vectors are counted from the start of the payload.
struct PaletteSection {
  std::uint32_t num_words;
  std::uint32_t num_escapes;
  std::uint32_t first_vec;  // of the words
  std::uint32_t end_vec;    // of the section
  std::uint32_t escapes_at;
  std::uint32_t state;
};

inline constexpr unsigned kPaletteHeadVecs = (codec::kTableOffset + 32) / 16;

// The palette as the lanes have it: value and frequency of the lane's symbol, and
// where its slots end. False if the 32 bytes (the lane's is `byte`) are no table.
__device__ __forceinline__ bool read_palette(std::uint32_t byte, std::uint32_t size,
                                             std::uint32_t& value, std::uint32_t& freq,
                                             std::uint32_t& end_slot) {
  const unsigned lane = lane_id();
  value = __shfl_sync(kAll, byte, lane & 15);
  freq = __shfl_sync(kAll, byte, 16 | lane);
  const bool stray = lane < 16 && ((lane >= size && value != 0) || (lane > size && freq != 0));
  end_slot = lane < 16 ? freq : 0;
#pragma unroll
  for (int d = 1; d < 16; d *= 2) {
    const std::uint32_t below = __shfl_up_sync(kAll, end_slot, d);
    if (lane >= static_cast<unsigned>(d)) end_slot += below;
  }
  return !__any_sync(kAll, stray) && __shfl_sync(kAll, end_slot, 15) == 256;
}

// Reads the section at `at` (16-byte aligned; the payload has num_bytes), fills the
// slots at their address in shared memory and adds the checksum terms of header,
// states and table. Returns false if the section is not valid. All its loads are
// under way before the first one is looked at.
__device__ inline bool open_palette_section(const std::uint8_t* payload, std::uint32_t at,
                                            std::uint32_t num_bytes, std::uint32_t n,
                                            std::uint32_t slots, std::uint64_t& sum,
                                            PaletteSection& section) {
  const unsigned lane = lane_id();
  if (num_bytes < at || num_bytes - at < codec::kTableOffset + 32) return false;
  const uint4 head = __ldg(reinterpret_cast<const uint4*>(payload + at));
  section.state =
      __ldg(reinterpret_cast<const std::uint32_t*>(payload + at + codec::kStatesOffset) + lane);
  const std::uint32_t byte =
      __ldg(payload + at + codec::kTableOffset + lane);  // values, then frequencies
  const uint4 vec =
      __ldg(reinterpret_cast<const uint4*>(payload + at) + min(lane, kPaletteHeadVecs - 1));
  const std::uint32_t palette_size = head.z >> 16 & 0xFF;
  const std::uint64_t words_at = at + codec::kTableOffset + 32;
  const std::uint64_t escapes_at = words_at + std::uint64_t{head.x} * 2;
  const std::uint64_t end = align16(escapes_at + head.y);
  const bool good = head.w == 0 && head.z >> 24 == 0 && (head.z & 0xFFFF) == 32 &&
                    palette_size >= 1 && palette_size <= 15 &&
                    head.x <= codec::padded_symbols((std::size_t{n} + 1) / 2) && head.y <= n &&
                    end <= num_bytes;
  if (!good) return false;
  section.num_words = head.x;
  section.num_escapes = head.y;
  section.first_vec = static_cast<std::uint32_t>(words_at / 16);
  section.end_vec = static_cast<std::uint32_t>(end / 16);
  section.escapes_at = static_cast<std::uint32_t>(escapes_at);
  if (lane < kPaletteHeadVecs) sum += checksum_term(vec, at / 16 + lane);
  std::uint32_t value, freq, end_slot;
  if (!read_palette(byte, palette_size, value, freq, end_slot)) return false;
  const std::uint32_t start_slot = end_slot - freq;
  const std::uint32_t common = freq << 8 | (lane == palette_size ? 1u << 16 : 0u) | value << 24;
  for (std::uint32_t s = 0; s <= palette_size; ++s) {
    const std::uint32_t first = __shfl_sync(kAll, start_slot, s),
                        last = __shfl_sync(kAll, end_slot, s);
    const std::uint32_t entry = __shfl_sync(kAll, common, s);
    for (std::uint32_t slot = first + lane; slot < last; slot += kWarp)
      store_shared(slots + 4 * slot, entry | (slot - first));
  }
  __syncwarp();
  return true;
}

// The 16-bit words of one section, kept ahead of the decoder in shared memory.
struct WordRing {
  const uint4* vecs;  // of the payload
  std::uint32_t next_vec, end_vec;
  std::uint32_t free = 0;      // where the next chunk goes, bytes
  std::uint32_t consumed = 0;  // bytes
  uint4 ahead;

  // `last_vec` may be that of the payload: the section's end need not be known yet.
  __device__ __forceinline__ WordRing(const std::uint8_t* payload, std::uint32_t first_vec,
                                      std::uint32_t past_vec)
      : vecs(reinterpret_cast<const uint4*>(payload)), next_vec(first_vec), end_vec(past_vec) {
    load_ahead();
  }
  __device__ __forceinline__ void load_ahead() {
    // Lanes beyond the end load the last vector: a select would wait for the load.
    ahead = __ldcs(vecs + min(next_vec + lane_id(), end_vec - 1));
  }
  // Adds the terms of the chunk that was loaded ahead and loads another.
  __device__ __forceinline__ void advance(std::uint64_t& sum) {
    if (next_vec + lane_id() < end_vec) sum += checksum_term(ahead, next_vec + lane_id());
    next_vec += kWarp;
    load_ahead();
  }
  // Makes sure that a whole group finds its words in the ring.
  __device__ __forceinline__ void refill(std::uint32_t ring, std::uint64_t& sum) {
    if (static_cast<std::int32_t>(free - consumed) >= static_cast<std::int32_t>(kGroupWordBytes))
      return;
    __syncwarp();
    store_shared(ring + (free & (kRingBytes - 1)) + 16 * lane_id(), ahead);
    free += kChunkBytes;
    advance(sum);
    __syncwarp();
  }
  // The terms of what is left: escapes, and words a corrupt stream did not use.
  __device__ void finish(std::uint64_t& sum) {
    while (next_vec < end_vec) advance(sum);
  }
};

// One step of one lane: two symbols, one renormalisation. Returns
// flag, value, flag, value from the lowest byte up. `slots` and `ring` are
// addresses in shared memory, multiples of 1024.
__device__ __forceinline__ std::uint32_t decode_pair(std::uint32_t& x, std::uint32_t slots,
                                                     std::uint32_t ring, std::uint32_t& consumed,
                                                     unsigned lanes_below) {
  const std::uint32_t a = load_shared_u32((x << 2 & 0x3FC) | slots);
  x = __byte_perm(a, 0, 0x4441) * (x >> 8) + (a & 255);
  const std::uint32_t b = load_shared_u32((x << 2 & 0x3FC) | slots);
  x = __byte_perm(b, 0, 0x4441) * (x >> 8) + (b & 255);
  take_word<kRingBytes>(x, ring, consumed, lanes_below);
  return __byte_perm(a, b, 0x7632);
}

// The escapes of a section: 32 of them in registers, since memory answers late.
struct EscapeWindow {
  std::uint32_t used;   // escapes taken so far
  std::uint32_t first;  // the lane holds escape first + lane
  std::uint32_t byte;
};

struct Patched {
  std::uint32_t pairs[4];
  EscapeWindow window;
  std::uint32_t x;  // the state, unchanged: around a call that does not take it, it lives in memory
};

__device__ __forceinline__ void put_escape(Patched& r, std::uint32_t byte, int k,
                                           unsigned selector) {
  // Selects, not stores to an element: that would put the array into memory.
#pragma unroll
  for (int i = 0; i < 4; ++i)
    r.pairs[i] = __byte_perm(r.pairs[i], byte, i == k ? selector : 0x3210);
}

// Puts escaped bytes into the four results of decode_pair; natural order is lane by
// lane. A call of its own, so that the loop around it keeps its registers.
inline __device__ __noinline__ Patched patch_escapes(std::uint32_t p0, std::uint32_t p1,
                                                     std::uint32_t p2, std::uint32_t p3,
                                                     const std::uint8_t* escapes,
                                                     std::uint32_t num_escapes,
                                                     std::uint32_t num_values, EscapeWindow window,
                                                     std::uint32_t x) {
  const unsigned lane = lane_id();
  Patched r{{p0, p1, p2, p3}, window, x};
  // Value 2k is bit k, value 2k + 1 is bit 16 + k.
  constexpr std::uint32_t kFlag = 0x00010001u;
  std::uint32_t flags = (p0 & kFlag) | (p1 & kFlag) << 1 | (p2 & kFlag) << 2 | (p3 & kFlag) << 3;
  if (8 * lane + 8 > num_values) {
    const std::uint32_t here = num_values > 8 * lane ? num_values - 8 * lane : 0;
    flags &= ((1u << (here + 1) / 2) - 1) | ((1u << here / 2) - 1) << 16;
  }
  const unsigned holders = __ballot_sync(kAll, flags != 0);
  std::uint32_t before = __popc(holders & ((1u << lane) - 1)), total = __popc(holders);
  const bool several = __any_sync(kAll, (flags & (flags - 1)) != 0);
  if (several) {
    const std::uint32_t count = __popc(flags);
    before = count;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const std::uint32_t below = __shfl_up_sync(kAll, before, d);
      if (lane >= static_cast<unsigned>(d)) before += below;
    }
    total = __shfl_sync(kAll, before, 31);
    before -= count;
  }
  if (window.used + total > window.first + kWarp) {
    r.window.first = window.used;
    r.window.byte = window.used + lane < num_escapes ? __ldg(escapes + window.used + lane) : 0;
  }
  std::uint32_t next = window.used + before;
  r.window.used += total;
  const auto selector_of = [&](int k) {
    return flags == 0 ? 0x3210u : flags >> (k & 31) & 1 ? 0x3240u : 0x4210u;
  };
  if (!several) {
    const std::uint32_t byte =
        __shfl_sync(kAll, r.window.byte, static_cast<int>(next - r.window.first) & 31);
    const int k = __ffs(static_cast<int>(flags | flags >> 16)) - 1;
    put_escape(r, byte, k, selector_of(k));
    return r;
  }
#pragma unroll 1
  while (__any_sync(kAll, flags != 0)) {
    std::uint32_t byte =
        __shfl_sync(kAll, r.window.byte, static_cast<int>(next - r.window.first) & 31);
    if (next - r.window.first >= kWarp) byte = next < num_escapes ? __ldg(escapes + next) : 0;
    const int k = __ffs(static_cast<int>(flags | flags >> 16)) - 1;
    put_escape(r, byte, k, selector_of(k));
    if (flags != 0) flags &= ~(flags >> (k & 31) & 1 ? 1u << k : 0x10000u << k);
    ++next;
  }
  return r;
}

// Two values from their low bytes and a result of decode_pair: sign and
// mantissa back into place (a rotation right by one in each half).
__device__ __forceinline__ std::uint32_t merge_bf16(std::uint32_t pair, std::uint32_t low,
                                                    unsigned selector) {
  const std::uint32_t w = __byte_perm(pair, low, selector);
  return (w >> 1 & 0x7FFF7FFFu) | (w << 15 & 0x80008000u);
}

// What became of a block, and the lane's checksum terms; those are complete
// whenever the layout is valid.
struct BlockResult {
  Reason reason;
  std::uint64_t sum;
};

// A call of its own with everything by value: code around it would cost its loop
// registers. Those are scarce (64 for 32 warps a multiprocessor), so positions are
// 32-bit offsets from two pointers.
template <class Access>
__device__ __noinline__ BlockResult decode_palette_bf16(const std::uint8_t* payload,
                                                        std::uint32_t num_bytes, std::uint32_t n,
                                                        Access dst, std::uint64_t pos,
                                                        PaletteSmem* smem) {
  const unsigned lane = lane_id();
  const std::uint32_t slots = shared_address(smem->slots);
  const std::uint32_t ring = slots + sizeof(PaletteSmem::slots);
  const auto low_bytes = static_cast<std::uint32_t>(align16(n));
  std::uint64_t sum = 0;
  if (num_bytes < low_bytes + codec::kTableOffset + 32) return {kReasonPayload, 0};
  // Low bytes are fetched kLowsAhead groups ahead, past the end again the last ones.
  const std::uint32_t last_low = low_bytes / 8 - 1;
  const std::uint32_t lows =
      slots + static_cast<std::uint32_t>(offsetof(PaletteSmem, lows)) + 8 * lane;
  std::uint32_t low_idx = lane;
  const auto fetch_low = [&] {
    copy_async<8>(lows + (8 * (low_idx - lane) & (8 * kWarp * kLowsAhead - 1)),
                  payload + 8 * std::uint64_t{min(low_idx, last_low)});
    commit_copies();
    low_idx += kWarp;
  };
#pragma unroll 1
  for (unsigned i = 0; i < kLowsAhead; ++i) fetch_low();
  WordRing words(payload, (low_bytes + codec::kTableOffset + 32) / 16, num_bytes / 16);
  PaletteSection section;
  if (!open_palette_section(payload, low_bytes, num_bytes, n, slots, sum, section) ||
      section.end_vec * 16 != num_bytes)
    return {kReasonPayload, 0};
  unsigned lanes_below;
  asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(lanes_below));
  std::uint32_t x = section.state;
  EscapeWindow window{0, 0,
                      lane < section.num_escapes ? __ldg(payload + section.escapes_at + lane) : 0u};
  if (lane == 0) {
    smem->num_words = section.num_words;
    smem->num_escapes = section.num_escapes;
    smem->escapes_at = section.escapes_at;
  }
  __syncwarp();
  dst = advanced(dst, pos);
  const auto decode_group = [&](std::uint32_t first) {
    words.refill(ring, sum);
    std::uint32_t p0 = decode_pair(x, slots, ring, words.consumed, lanes_below);
    std::uint32_t p1 = decode_pair(x, slots, ring, words.consumed, lanes_below);
    std::uint32_t p2 = decode_pair(x, slots, ring, words.consumed, lanes_below);
    std::uint32_t p3 = decode_pair(x, slots, ring, words.consumed, lanes_below);
    if (__any_sync(kAll, (p0 | p1 | p2 | p3) & 0x00010001u)) {
      const Patched r = patch_escapes(p0, p1, p2, p3, payload + smem->escapes_at, smem->num_escapes,
                                      n - first, window, x);
      window = r.window;
      x = r.x;
      p0 = r.pairs[0];
      p1 = r.pairs[1];
      p2 = r.pairs[2];
      p3 = r.pairs[3];
    }
    wait_copies<kLowsAhead - 1>();
    const std::uint32_t word = 2 * (low_idx - kLowsAhead * kWarp);
    const uint2 low = load_shared8(lows + (8 * (low_idx - lane) & (8 * kWarp * kLowsAhead - 1)));
    fetch_low();
    if (word < low_bytes / 4) sum += checksum_term(low.x, word) + checksum_term(low.y, word + 1);
    return uint4{merge_bf16(p0, low.x, 0x3514), merge_bf16(p1, low.x, 0x3716),
                 merge_bf16(p2, low.y, 0x3514), merge_bf16(p3, low.y, 0x3716)};
  };
  std::uint32_t first = 0;
  for (; first + kGroupElems <= n; first += kGroupElems)
    dst.store16(2 * first + 16 * lane, decode_group(first));
  if (first < n) {
    const std::uint32_t at = 2 * first + 16 * lane;
    store_end(dst, at, decode_group(first),
              static_cast<std::int32_t>(2 * n) - static_cast<std::int32_t>(at));
  }
  words.finish(sum);
  const bool intact = words.consumed == 2 * smem->num_words && window.used == smem->num_escapes;
  return {__all_sync(kAll, intact && x == kStateLow) ? kReasonNone : kReasonStream, sum};
}

}  // namespace snug::cuda
