// codec/cuda/decode_any_block/decode_coded_pair.cuh - one warp restores one BF16 block with two
// coded planes, as gradients have: exponents by a palette, the rest as bytes. One loop decodes both
// streams, two independent chains of lookups.
#pragma once
#include "codec/cuda/decode_entropy_bytes/byte_rows.cuh"
#include "codec/cuda/decode_entropy_bytes/byte_tables.cuh"
#include "codec/cuda/decode_entropy_exponent/decode_palette.cuh"
#include "codec/cuda/decode_entropy_exponent/palette_escapes.cuh"

namespace snug::cuda {

// Not a result: there are more tables than fit here, and decode_entropy_planes has room for them.
inline constexpr Reason kTooManyRows = kNumReasons;

// One step of each stream: decode_row_byte and decode_pair.
__device__ __forceinline__ void decode_byte_and_pair(u32& x, u32 first, u32& next, u32& byte,
                                                     u32& pair_x, u32 slots, u32& pair_next,
                                                     u32& pair, unsigned lanes_below) {
  const u32 a = load_slot(x, first), c = load_slot(pair_x, slots);
  take_symbol(x, a);
  pair_x = __dp4a(c, 0x100u, 0u) * (pair_x >> 8) + (c & 255);
  u32 at;
  asm("lop3.b32 %0, %1, %2, 0x3FF, 0xE4;" : "=r"(at) : "r"(x << 2), "r"(a >> 14));
  const u32 b = load_shared_u32(at), d = load_slot(pair_x, slots);
  take_symbol(x, b);
  pair_x = __dp4a(d, 0x100u, 0u) * (pair_x >> 8) + (d & 255);
  take_word(x, next, lanes_below);
  take_word(pair_x, pair_next, lanes_below);
  byte = a | b;
  pair = __byte_perm(c, d, 0x7632);
}

// Low bytes are decoded four a lane, for the first half of a group and for the second; gives each
// lane those of its 8 values.
__device__ __forceinline__ uint2 gather_lows(u32 half0, u32 half1) {
  const unsigned lane = lane_id();
  const bool odd = lane % 2 != 0, upper = lane >= 16;
  // Lanes 2i and 2i + 1 have what lane i needs of the first half and lane 16 + i of the second.
  const u32 u = __shfl_sync(kAllLanes, odd ? half1 : half0,
                            static_cast<int>(upper ? 2 * lane - 31 : 2 * lane));
  const u32 v = __shfl_sync(kAllLanes, odd ? half0 : half1,
                            static_cast<int>(upper ? 2 * lane - 32 : 2 * lane + 1));
  return upper ? uint2{v, u} : uint2{u, v};
}

// Two values from their low bytes and a result of decode_pair, each rotated right by one bit.
__device__ __forceinline__ u32 merge_pair(u32 pair, u32 low, unsigned selector) {
  const u32 w = __byte_perm(pair, low, selector);
  u32 merged;  // (w >> 1 & mask) | (w << 15 & ~mask) in one step, not two
  asm("lop3.b32 %0, %1, %2, 0x7FFF7FFF, 0xE4;" : "=r"(merged) : "r"(w >> 1), "r"(w << 15));
  return merged;
}
__device__ __forceinline__ void merge_pairs(const u32 (&pairs)[4], uint2 low, uint4& out) {
  out = {merge_pair(pairs[0], low.x, 0x3514), merge_pair(pairs[1], low.x, 0x3716),
         merge_pair(pairs[2], low.y, 0x3514), merge_pair(pairs[3], low.y, 0x3716)};
}

// Stores 8 values, or as many as are left. Inline: around a call, live values would spill.
template <class Access>
__device__ __forceinline__ void store_eight(Access dst, uint4 v, i32 left) {
  if (left >= 8) {
    dst.store16(0, v);
    return;
  }
  const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 7; ++i)
    if (i < left) dst.store(2 * i, static_cast<u16>(words[i / 2] >> (i % 2 * 16)));
}

// The room holds: slots of the palette; first symbols, two rows and the bytes' words; the palette's
// words and its escapes.
template <class Access>
__device__ __noinline__ BlockResult decode_coded_pair(const u8* payload, u32 num_bytes, u32 n,
                                                      Access dst, u64 pos, StreamRoom room) {
  using Words = WordRing<uint2>;
  using Escapes = EscapeBytes<false>;
  static_assert(Words::kRoom + Escapes::kRoom <= StreamRoom::kSmall);
  const unsigned lane = lane_id();
  const u32 first_table = room.bytes, rows = room.bytes + kRowBytes,
            byte_ring = room.bytes + 3 * kRowBytes;
  u64 sum = 0;
  ByteSection bytes;
  if (!open_byte_section(payload, 0, num_bytes, n, byte_ring, sum, bytes))
    return {kReasonPayload, 0};
  const u32 line = bytes.end + 128 * lane;  // read next
  if (lane < 4 && line < num_bytes) prefetch_l2(payload + line);
  const RowsFit fit = read_byte_rows(byte_ring, bytes.table_bytes, first_table, rows, 2, 0);
  if (fit != RowsFit::kFit) return {fit == RowsFit::kTooMany ? kTooManyRows : kReasonPayload, 0};
  PaletteSection section;
  if (!open_palette_section(payload, bytes.end, num_bytes, n, room.slots, room.ring, sum,
                            section) ||
      section.end_vec * 16 != num_bytes)
    return {kReasonPayload, 0};
  Words low_words(payload, bytes.words_at / 8, bytes.end / 8);
  Words words(payload, 2 * section.first_vec, 2 * section.end_vec);
  Escapes escapes(payload, num_bytes, room.ring + Words::kRoom, section.escapes_at);
  wait_copies<0>();
  __syncwarp();
  const unsigned lanes_below = lanes_below_mask();
  u32 x = stored_state(byte_ring), pair_x = section.state;
  const auto refill = [&](Words& w, u32 ring) {
    return w.refill(ring, [&](uint2 v, u32 idx) {
      if (idx < w.end_vec) sum += checksum_term(v, idx);
    });
  };
  Access mine = advanced(dst, pos + 16 * lane);
#pragma unroll 1
  for (u32 first = 0; first < n; first += kGroupElems) {
    u32 pairs[4] = {}, halves[2] = {};
    u32 pair_next = refill(words, room.ring);
    const u32 pair_start = pair_next;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      u32 r[4], next = refill(low_words, byte_ring);
      const u32 start = next;
      halves[0] = halves[1];
      pairs[0] = pairs[2];
      pairs[1] = pairs[3];
      // The second half of the last group is not coded if it has no value.
      if (half == 0 || n - first > kGroupElems / 2) {
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
          decode_byte_and_pair(x, first_table, next, r[k], pair_x, room.slots, pair_next,
                               pairs[2 + k / 2], lanes_below);
          r[k + 1] = decode_row_byte(x, first_table, next, lanes_below);
        }
        halves[1] =
            __byte_perm(__byte_perm(r[0], r[1], 0x0062), __byte_perm(r[2], r[3], 0x0062), 0x5410);
      } else {
        pairs[2] = decode_pair(pair_x, room.slots, pair_next, lanes_below);
        pairs[3] = decode_pair(pair_x, room.slots, pair_next, lanes_below);
      }
      low_words.consumed += next - start;
    }
    words.consumed += pair_next - pair_start;
    if (Escapes::any(pairs)) escapes.patch(pairs, n - first, lanes_below);
    uint4 out;
    merge_pairs(pairs, gather_lows(halves[0], halves[1]), out);
    store_eight(mine, out, static_cast<i32>(n - first - 8 * lane));
    mine = advanced(mine, 2 * kGroupElems);
  }
  // Terms of the rest: escapes, and words that a corrupt stream did not use.
  const auto add_rest = [&](const Words& w) {
    for (u32 i = w.next_vec + lane; i < w.end_vec; i += kWarpSize)
      sum += checksum_term(__ldcs(w.vecs + i), i);
  };
  add_rest(low_words);
  add_rest(words);
  const bool intact = low_words.consumed == 2 * bytes.num_words &&
                      words.consumed == 2 * section.num_words &&
                      escapes.next == section.escapes_at + section.num_escapes;
  const bool good = intact && x == kStateLow && pair_x == kStateLow;
  return {__all_sync(kAllLanes, good) ? kReasonNone : kReasonStream, sum};
}

}  // namespace snug::cuda
