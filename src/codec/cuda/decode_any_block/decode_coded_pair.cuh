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
__device__ __forceinline__ void decode_byte_and_pair(std::uint32_t& x, std::uint32_t first,
                                                     std::uint32_t& next, std::uint32_t& byte,
                                                     std::uint32_t& pair_x, std::uint32_t slots,
                                                     std::uint32_t& pair_next, std::uint32_t& pair,
                                                     unsigned lanes_below) {
  const std::uint32_t a = load_slot(x, first), c = load_slot(pair_x, slots);
  take_symbol(x, a);
  pair_x = __dp4a(c, 0x100u, 0u) * (pair_x >> 8) + (c & 255);
  std::uint32_t at;
  asm("lop3.b32 %0, %1, %2, 0x3FF, 0xE4;" : "=r"(at) : "r"(x << 2), "r"(a >> 14));
  const std::uint32_t b = load_shared_u32(at), d = load_slot(pair_x, slots);
  take_symbol(x, b);
  pair_x = __dp4a(d, 0x100u, 0u) * (pair_x >> 8) + (d & 255);
  take_word(x, next, lanes_below);
  take_word(pair_x, pair_next, lanes_below);
  byte = a | b;
  pair = __byte_perm(c, d, 0x7632);
}

// Low bytes are decoded four a lane, for the first half of a group and for the second; gives each
// lane those of its 8 values.
__device__ __forceinline__ uint2 gather_lows(std::uint32_t half0, std::uint32_t half1) {
  const unsigned lane = lane_id();
  const bool odd = lane % 2 != 0, upper = lane >= 16;
  // Lanes 2i and 2i + 1 have what lane i needs of the first half and lane 16 + i of the second.
  const std::uint32_t u = __shfl_sync(kAllLanes, odd ? half1 : half0,
                                      static_cast<int>(upper ? 2 * lane - 31 : 2 * lane));
  const std::uint32_t v = __shfl_sync(kAllLanes, odd ? half0 : half1,
                                      static_cast<int>(upper ? 2 * lane - 32 : 2 * lane + 1));
  return upper ? uint2{v, u} : uint2{u, v};
}

// Two values from their low bytes and a result of decode_pair, each rotated right by one bit.
__device__ __forceinline__ std::uint32_t merge_pair(std::uint32_t pair, std::uint32_t low,
                                                    unsigned selector) {
  const std::uint32_t w = __byte_perm(pair, low, selector);
  std::uint32_t merged;  // (w >> 1 & mask) | (w << 15 & ~mask) in one step, not two
  asm("lop3.b32 %0, %1, %2, 0x7FFF7FFF, 0xE4;" : "=r"(merged) : "r"(w >> 1), "r"(w << 15));
  return merged;
}
__device__ __forceinline__ void merge_pairs(const std::uint32_t (&pairs)[4], uint2 low,
                                            uint4& out) {
  out = {merge_pair(pairs[0], low.x, 0x3514), merge_pair(pairs[1], low.x, 0x3716),
         merge_pair(pairs[2], low.y, 0x3514), merge_pair(pairs[3], low.y, 0x3716)};
}

// Stores 8 values, or as many as are left. Inline: around a call, live values would spill in the
// loop.
template <class Access>
__device__ __forceinline__ void store_eight(Access dst, uint4 v, std::int32_t left) {
  if (left >= 8) {
    dst.store16(0, v);
    return;
  }
  const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 7; ++i)
    if (i < left) dst.store(2 * i, static_cast<std::uint16_t>(words[i / 2] >> (i % 2 * 16)));
}

// The room holds: slots of the palette; first symbols, two rows and the bytes' words; the palette's
// words and its escapes.
template <class Access>
__device__ __noinline__ BlockResult decode_coded_pair(const std::uint8_t* payload,
                                                      std::uint32_t num_bytes, std::uint32_t n,
                                                      Access dst, std::uint64_t pos,
                                                      StreamRoom room) {
  using Words = WordRing<uint2>;
  using Escapes = EscapeBytes<false>;
  static_assert(Words::kRoom + Escapes::kRoom <= StreamRoom::kSmall);
  const unsigned lane = lane_id();
  const std::uint32_t first_table = room.bytes, rows = room.bytes + kRowBytes,
                      byte_ring = room.bytes + 3 * kRowBytes;
  std::uint64_t sum = 0;
  ByteSection bytes;
  if (!open_byte_section(payload, 0, num_bytes, n, byte_ring, sum, bytes))
    return {kReasonPayload, 0};
  const std::uint32_t line = bytes.end + 128 * lane;  // read next
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
  std::uint32_t x = stored_state(byte_ring), pair_x = section.state;
  const auto refill = [&](Words& w, std::uint32_t ring) {
    return w.refill(ring, [&](uint2 v, std::uint32_t idx) {
      if (idx < w.end_vec) sum += checksum_term(v, idx);
    });
  };
  Access mine = advanced(dst, pos + 16 * lane);
#pragma unroll 1
  for (std::uint32_t first = 0; first < n; first += kGroupElems) {
    std::uint32_t pairs[4] = {}, halves[2] = {};
    std::uint32_t pair_next = refill(words, room.ring);
    const std::uint32_t pair_start = pair_next;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      std::uint32_t r[4], next = refill(low_words, byte_ring);
      const std::uint32_t start = next;
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
    store_eight(mine, out, static_cast<std::int32_t>(n - first - 8 * lane));
    mine = advanced(mine, 2 * kGroupElems);
  }
  // Terms of the rest: escapes, and words that a corrupt stream did not use.
  const auto add_rest = [&](const Words& w) {
    for (std::uint32_t i = w.next_vec + lane; i < w.end_vec; i += kWarpSize)
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
