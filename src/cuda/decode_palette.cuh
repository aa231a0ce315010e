// cuda/decode_palette.cuh - one warp restores one block whose top plane is a
// palette stream (codec/entropy/rans.h) and whose other planes are raw or
// constant: BF16 and FP32 as encoders write them.
#pragma once
#include <cstddef>

#include "codec/entropy/rans.h"
#include "codec/sections.h"
#include "cuda/tensor_access.cuh"

namespace snug::cuda {

using codec::entropy::kStateLow;

inline constexpr unsigned kRingBytes = 1024;   // two chunks of words
inline constexpr unsigned kChunkBytes = 512;   // 16 bytes a lane
inline constexpr unsigned kGroupElems = 256;   // 4 steps of 32 pairs
inline constexpr unsigned kGroupWordBytes = 256;  // most that a group consumes

inline constexpr unsigned kLowsAhead = 8;

// Shared memory of one warp.
struct alignas(1024) PaletteSmem {
  std::uint32_t slots[256];  // rank | freq << 8 | is_escape << 16 | value << 24
  alignas(16) std::uint8_t ring[kRingBytes];
  uint2 lows[kLowsAhead][kWarp];  // low bytes of the groups ahead
};

// A palette section, parsed. `words` are vectors of 16 bytes from the start of
// the payload.
struct PaletteSection {
  std::uint32_t num_words;
  std::uint32_t num_escapes;
  std::uint32_t first_vec;  // of the words
  std::uint32_t end_vec;    // of the section
  const std::uint8_t* escapes;
  std::uint32_t state;
};

inline constexpr unsigned kPaletteHeadVecs = (codec::kTableOffset + 32) / 16;

// `slots` is their address in shared memory.
// Reads the section at `at` (16-byte aligned, `left` bytes to the end of the
// payload), fills the slots and adds the checksum terms of header, states and
// table. Returns false if the section is not valid.
__device__ inline bool open_palette_section(const std::uint8_t* payload, std::uint32_t at, std::uint32_t num_bytes,
                                            std::uint32_t n, std::uint32_t slots, std::uint64_t& sum,
                                            PaletteSection& section) {
  const unsigned lane = lane_id();
  if (num_bytes - at < codec::kTableOffset + 32) return false;
  const uint4 head = __ldg(reinterpret_cast<const uint4*>(payload + at));
  const std::uint32_t palette_size = head.z >> 16 & 0xFF;
  const std::uint64_t words_at = at + codec::kTableOffset + 32;
  const std::uint64_t escapes_at = words_at + std::uint64_t{head.x} * 2;
  const std::uint64_t end = align16(escapes_at + head.y);
  const bool good = head.w == 0 && head.z >> 24 == 0 && (head.z & 0xFFFF) == 32 && palette_size >= 1 &&
                    palette_size <= 15 && head.x <= codec::padded_symbols((std::size_t{n} + 1) / 2) &&
                    head.y <= n && end <= num_bytes;
  if (!good) return false;
  section.num_words = head.x;
  section.num_escapes = head.y;
  section.first_vec = static_cast<std::uint32_t>(words_at / 16);
  section.end_vec = static_cast<std::uint32_t>(end / 16);
  section.escapes = payload + escapes_at;
  section.state = __ldg(reinterpret_cast<const std::uint32_t*>(payload + at + codec::kStatesOffset) + lane);
  if (lane < kPaletteHeadVecs)
    sum += checksum_term(__ldg(reinterpret_cast<const uint4*>(payload + at) + lane), at / 16 + lane);

  const std::uint32_t byte = __ldg(payload + at + codec::kTableOffset + lane);  // values, then frequencies
  const std::uint32_t value = __shfl_sync(kAll, byte, lane & 15);
  const std::uint32_t freq = __shfl_sync(kAll, byte, 16 | lane);
  const bool stray = lane < 16 && ((lane >= palette_size && value != 0) || (lane > palette_size && freq != 0));
  std::uint32_t end_slot = lane < 16 ? freq : 0;
  for (int d = 1; d < 16; d *= 2) {
    const std::uint32_t below = __shfl_up_sync(kAll, end_slot, d);
    if (lane >= d) end_slot += below;
  }
  if (__any_sync(kAll, stray) || __shfl_sync(kAll, end_slot, 15) != 256) return false;
  const std::uint32_t start_slot = end_slot - freq;
  const std::uint32_t common = freq << 8 | (lane == palette_size ? 1u << 16 : 0u) | value << 24;
  for (std::uint32_t s = 0; s <= palette_size; ++s) {
    const std::uint32_t first = __shfl_sync(kAll, start_slot, s), last = __shfl_sync(kAll, end_slot, s);
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
  std::uint32_t filled = 0;    // bytes put into the ring
  std::uint32_t consumed = 0;  // bytes
  uint4 ahead;

  __device__ void load_ahead() {
    // Lanes beyond the end load the last vector: a select would wait for the load.
    const std::uint32_t vec = next_vec + lane_id();
    ahead = __ldcs(vecs + (vec < end_vec ? vec : end_vec - 1));
  }
  __device__ void begin(const std::uint8_t* payload, const PaletteSection& section) {
    vecs = reinterpret_cast<const uint4*>(payload);
    next_vec = section.first_vec;
    end_vec = section.end_vec;
    load_ahead();
  }
  // Adds the terms of the chunk that was loaded ahead and loads another.
  __device__ void advance(std::uint64_t& sum) {
    if (next_vec + lane_id() < end_vec) sum += checksum_term(ahead, next_vec + lane_id());
    next_vec += kWarp;
    load_ahead();
  }
  // Makes sure that a whole group finds its words in the ring.
  __device__ __forceinline__ void refill(std::uint32_t ring, std::uint64_t& sum) {
    if (static_cast<std::int32_t>(filled - consumed) >= static_cast<std::int32_t>(kGroupWordBytes)) return;
    __syncwarp();
    store_shared(ring + (filled & (kRingBytes - 1)) + 16 * lane_id(), ahead);
    filled += kChunkBytes;
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
// addresses in shared memory, multiples of 1024. In PTX, because the compiler
// spends six more instructions on the same.
__device__ __forceinline__ std::uint32_t decode_pair(std::uint32_t& x, std::uint32_t slots, std::uint32_t ring,
                                                     std::uint32_t& consumed, unsigned lanes_below) {
  std::uint32_t a, b;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(a) : "r"((x << 2 & 0x3FC) | slots));
  x = __byte_perm(a, 0, 0x4441) * (x >> 8) + (a & 255);
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(b) : "r"((x << 2 & 0x3FC) | slots));
  x = __byte_perm(b, 0, 0x4441) * (x >> 8) + (b & 255);
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      ".reg .b32 needing, at, word;\n\t"
      "setp.lt.u32 p, %0, 65536;\n\t"
      "vote.sync.ballot.b32 needing, p, 0xFFFFFFFF;\n\t"
      "and.b32 at, needing, %2;\n\t"
      "popc.b32 at, at;\n\t"
      "mad.lo.u32 at, at, 2, %1;\n\t"
      "lop3.b32 at, at, 1023, %3, 0xEA;\n\t"  // (at & 1023) | ring
      "ld.shared.u16 word, [at];\n\t"  // by all lanes: a predicated load would keep an old value alive
      "@p prmt.b32 %0, %0, word, 0x1054;\n\t"
      "popc.b32 needing, needing;\n\t"
      "mad.lo.u32 %1, needing, 2, %1;\n\t"
      "}"
      : "+r"(x), "+r"(consumed)
      : "r"(lanes_below), "r"(ring)
      : "memory");
  return __byte_perm(a, b, 0x7632);
}

// Puts escaped bytes into the four results of decode_pair; natural order is
// lane by lane. `total` is the number of escapes in the group. A call of its own,
// so that the loop around it keeps its registers.
struct Patched {
  std::uint32_t pairs[4];
  std::uint32_t total;
  std::uint32_t window, first;  // the lane's byte of the 32 escapes from `first` on
};
__device__ __noinline__ Patched patch_escapes(std::uint32_t p0, std::uint32_t p1, std::uint32_t p2, std::uint32_t p3,
                                              const std::uint8_t* escapes, std::uint32_t used,
                                              std::uint32_t num_escapes, std::uint32_t num_values,
                                              std::uint32_t window, std::uint32_t first) {
  const unsigned lane = lane_id();
  Patched r{{p0, p1, p2, p3}, 0, window, first};
  // Value 2k is bit k, value 2k + 1 is bit 16 + k.
  constexpr std::uint32_t kFlag = 0x00010001u;
  std::uint32_t flags = (p0 & kFlag) | (p1 & kFlag) << 1 | (p2 & kFlag) << 2 | (p3 & kFlag) << 3;
  if (8 * lane + 8 > num_values) {
    const std::uint32_t here = num_values > 8 * lane ? num_values - 8 * lane : 0;
    flags &= ((1u << (here + 1) / 2) - 1) | ((1u << here / 2) - 1) << 16;
  }
  const unsigned holders = __ballot_sync(kAll, flags != 0);
  std::uint32_t before = __popc(holders & ((1u << lane) - 1));
  r.total = __popc(holders);
  if (__any_sync(kAll, (flags & (flags - 1)) != 0)) {
    const std::uint32_t count = __popc(flags);
    before = count;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const std::uint32_t below = __shfl_up_sync(kAll, before, d);
      if (lane >= d) before += below;
    }
    r.total = __shfl_sync(kAll, before, 31);
    before -= count;
  }
  // Escapes come from registers while 32 of them last: memory would answer late.
  if (used + r.total > r.first + kWarp) {
    r.first = used;
    r.window = used + lane < num_escapes ? __ldg(escapes + used + lane) : 0;
  }
  std::uint32_t next = used + before;
#pragma unroll 1
  while (__any_sync(kAll, flags != 0)) {
    std::uint32_t byte = __shfl_sync(kAll, r.window, static_cast<int>(next - r.first) & 31);
    if (next - r.first >= kWarp) byte = next < num_escapes ? __ldg(escapes + next) : 0;
    const std::uint32_t low = flags | flags >> 16;
    const int k = __ffs(static_cast<int>(low)) - 1;
    const bool even = flags >> (k & 31) & 1;
    unsigned selector = even ? 0x3240 : 0x4210;
    if (flags == 0) selector = 0x3210;
    else flags &= ~(even ? 1u << k : 0x10000u << k);
    ++next;
    // Selects, not stores to an element: that would put the array into memory.
#pragma unroll
    for (int i = 0; i < 4; ++i) r.pairs[i] = __byte_perm(r.pairs[i], byte, i == k ? selector : 0x3210);
  }
  return r;
}

// Two values from their low bytes and a result of decode_pair: sign and
// mantissa back into place (a rotation right by one in each half).
__device__ __forceinline__ std::uint32_t merge_bf16(std::uint32_t pair, std::uint32_t low, unsigned selector) {
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
// registers.
template <class Access>
__device__ __noinline__ BlockResult decode_palette_bf16(const std::uint8_t* payload, std::uint32_t num_bytes,
                                                        std::uint32_t n, Access dst, std::uint64_t pos,
                                                        std::uint32_t slots) {
  const unsigned lane = lane_id();
  const std::uint32_t ring = slots + sizeof(PaletteSmem::slots);
  const auto low_bytes = static_cast<std::uint32_t>(align16(n));
  std::uint64_t sum = 0;
  if (num_bytes < low_bytes) return {kReasonPayload, 0};
  PaletteSection section;
  if (!open_palette_section(payload, low_bytes, num_bytes, n, slots, sum, section)) return {kReasonPayload, 0};
  if (section.end_vec * 16 != num_bytes) return {kReasonPayload, 0};
  WordRing words;
  words.begin(payload, section);

  // Low bytes are fetched kLowsAhead groups ahead, past the end again the last ones.
  const std::uint32_t last_low = low_bytes / 8 - 1;
  const std::uint32_t lows = slots + static_cast<std::uint32_t>(offsetof(PaletteSmem, lows)) + 8 * lane;
  std::uint32_t low_idx = lane, low_slot = 0;
  const auto fetch_low = [&] {
    copy_async<8>(lows + low_slot, reinterpret_cast<const uint2*>(payload) + min(low_idx, last_low));
    commit_copies();
    low_idx += kWarp;
    low_slot = (low_slot + 8 * kWarp) & (8 * kWarp * kLowsAhead - 1);
  };
#pragma unroll 1
  for (unsigned i = 0; i < kLowsAhead; ++i) fetch_low();
  unsigned lanes_below;
  asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(lanes_below));
  std::uint32_t x = section.state;
  std::uint32_t used_escapes = 0;
  std::uint32_t escape_first = 0, escape_window = lane < section.num_escapes ? __ldg(section.escapes + lane) : 0;
  std::uint32_t multiplier = 2 * lane * frame::kChecksumStep + frame::kChecksumStart;
  for (std::uint32_t first = 0; first < n; first += kGroupElems) {
    words.refill(ring, sum);
    wait_copies<kLowsAhead - 1>();
    const uint2 low = load_shared8(lows + low_slot);
    fetch_low();
    std::uint32_t p0 = decode_pair(x, slots, ring, words.consumed, lanes_below);
    std::uint32_t p1 = decode_pair(x, slots, ring, words.consumed, lanes_below);
    std::uint32_t p2 = decode_pair(x, slots, ring, words.consumed, lanes_below);
    std::uint32_t p3 = decode_pair(x, slots, ring, words.consumed, lanes_below);
    if (__any_sync(kAll, (p0 | p1 | p2 | p3) & 0x00010001u)) {
      const Patched r = patch_escapes(p0, p1, p2, p3, section.escapes, used_escapes, section.num_escapes, n - first,
                                      escape_window, escape_first);
      escape_window = r.window;
      escape_first = r.first;
      p0 = r.pairs[0];
      p1 = r.pairs[1];
      p2 = r.pairs[2];
      p3 = r.pairs[3];
      used_escapes += r.total;
    }
    if (low_idx - (kLowsAhead + 1) * kWarp <= last_low)
      sum += std::uint64_t{low.x} * (multiplier | 1u) +
             std::uint64_t{low.y} * ((multiplier + frame::kChecksumStep) | 1u);
    multiplier += 64 * frame::kChecksumStep;
    const uint4 out = {merge_bf16(p0, low.x, 0x3514), merge_bf16(p1, low.x, 0x3716), merge_bf16(p2, low.y, 0x3514),
                       merge_bf16(p3, low.y, 0x3716)};
    const std::uint64_t at = pos + 2 * std::uint64_t{first} + 16 * lane;
    if (n - first >= kGroupElems)
      dst.store16(at, out);
    else
      store_end(dst, at, out, 2 * (static_cast<std::int32_t>(n) - static_cast<std::int32_t>(first)) - 16 * static_cast<std::int32_t>(lane));
  }
  words.finish(sum);
  const bool intact = words.consumed == 2 * section.num_words && used_escapes == section.num_escapes;
  return {__all_sync(kAll, intact && x == kStateLow) ? kReasonNone : kReasonStream, sum};
}

}  // namespace snug::cuda
