// cuda/decode_palette.cuh - one warp restores one block whose top plane is a
// palette stream (codec/entropy/rans.h) and whose other planes are raw: BF16 and
// FP32 as encoders write them.
#pragma once
#include "cuda/palette_section.cuh"
#include "cuda/plane_merge.cuh"

namespace snug::cuda {

inline constexpr unsigned kLinesAhead = 16;     // of a plane, when new words arrive
inline constexpr unsigned kWordLinesAhead = 8;  // of the words

// The raw bytes of a lane's 8 values, plane by plane.
template <int kWidth>
struct LowBytes {
  uint2 plane[kWidth - 1];
};

// Two values from their low bytes and a result of decode_pair: sign and
// mantissa back into place (a rotation right by one in each half).
__device__ __forceinline__ std::uint32_t merge_bf16(std::uint32_t pair, std::uint32_t low,
                                                    unsigned selector) {
  const std::uint32_t w = __byte_perm(pair, low, selector);
  std::uint32_t merged;  // (w >> 1 & mask) | (w << 15 & ~mask), which compilers take two steps for
  asm("lop3.b32 %0, %1, %2, 0x7FFF7FFF, 0xE4;" : "=r"(merged) : "r"(w >> 1), "r"(w << 15));
  return merged;
}

// 8 values of a lane, as they are stored.
template <int kWidth>
__device__ __forceinline__ void merge_group(const std::uint32_t (&pairs)[4],
                                            const LowBytes<kWidth>& lows,
                                            uint4 (&out)[kWidth / 2]) {
  if constexpr (kWidth == 2) {
    const uint2 low = lows.plane[0];
    out[0] = {merge_bf16(pairs[0], low.x, 0x3514), merge_bf16(pairs[1], low.x, 0x3716),
              merge_bf16(pairs[2], low.y, 0x3514), merge_bf16(pairs[3], low.y, 0x3716)};
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t planes[4], words[4];
#pragma unroll
      for (int p = 0; p < 3; ++p) planes[p] = half == 0 ? lows.plane[p].x : lows.plane[p].y;
      planes[3] = __byte_perm(pairs[2 * half], pairs[2 * half + 1], 0x7531);
      merge_planes<4>(planes, words);
      rotate_back<4>(words);
      out[half] = {words[0], words[1], words[2], words[3]};
    }
  }
}

// What became of a block, and the lane's checksum terms; those are complete
// whenever the layout is valid.
struct BlockResult {
  Reason reason;
  std::uint64_t sum;
};

// Escaped values are listed while the stream is decoded and get their bytes
// afterwards, many at once: with one in every third group, waiting for each would
// cost more than all the others.
template <int kWidth, class Access>
struct EscapeList {
  std::uint32_t list;     // address in shared memory
  std::uint32_t num = 0;  // listed
  std::uint32_t done = 0;

  // Lists the escapes of a group whose first value is `first`. The stores of all
  // groups before it are under way.
  __device__ __forceinline__ void add(const std::uint32_t (&pairs)[4], std::uint32_t first,
                                      std::uint32_t n, const std::uint8_t* payload, Access dst,
                                      unsigned lanes_below, const PaletteSmem* smem) {
    if (num > kEscapeListed - kGroupElems) finish(n, payload, dst, smem);
    constexpr std::uint32_t kFlag = 0x00010001u;
    // Value 2k is bit 2k, value 2k + 1 is bit 16 + 2k, until the next line.
    std::uint32_t flags = (pairs[0] & kFlag) | (pairs[1] & kFlag) << 2 | (pairs[2] & kFlag) << 4 |
                          (pairs[3] & kFlag) << 6;
    flags = (flags | flags >> 15) & 255;
    const std::uint32_t value = first + 8 * lane_id();
    if (value + 8 > n) flags = value < n ? flags & ((1u << (n - value)) - 1) : 0;
    const unsigned holders = __ballot_sync(kAll, flags != 0);
    const auto put = [&](std::uint32_t idx) {
      store_shared(
          list + 4 * (num + idx),
          value + 31 - static_cast<std::uint32_t>(__clz(static_cast<int>(flags & -flags))));
    };
    if (!__any_sync(kAll, (flags & (flags - 1)) != 0)) {
      if (flags != 0) put(__popc(holders & lanes_below));
      num += __popc(holders);
    } else {
      const std::uint32_t count = __popc(flags);
      std::uint32_t before = count;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const std::uint32_t below = __shfl_up_sync(kAll, before, d);
        if (lane_id() >= static_cast<unsigned>(d)) before += below;
      }
      const std::uint32_t total = __shfl_sync(kAll, before, 31);
      before -= count;
#pragma unroll 1
      for (; flags != 0; flags &= flags - 1) put(before++);
      num += total;
    }
  }

  // Stores the values listed so far once more, complete now.
  __device__ __forceinline__ void finish(std::uint32_t n, const std::uint8_t* payload, Access dst,
                                         const PaletteSmem* smem) {
    __syncwarp();  // their groups were stored by other lanes
    const auto part = static_cast<std::uint32_t>(align16(n));
#pragma unroll 1
    for (std::uint32_t i = lane_id(); i < num && done + i < smem->num_escapes; i += kWarp) {
      const std::uint32_t value = load_shared_u32(list + 4 * i);
      std::uint32_t v = __ldg(payload + smem->escapes_at + done + i);
#pragma unroll
      for (int p = kWidth - 2; p >= 0; --p) v = v << 8 | __ldg(payload + p * part + value);
      if constexpr (kWidth == 2)
        dst.store(2 * std::uint64_t{value}, static_cast<std::uint16_t>(v >> 1 | v << 15));
      else
        dst.store(4 * std::uint64_t{value}, __funnelshift_r(v, v, 1));
    }
    done += num;
    num = 0;
    __syncwarp();
  }
};

// Inlined: as a call, 64-bit values end up in registers that are no pairs, and the
// loop moves them to and fro.
template <int kWidth, class Access>
__device__ __forceinline__ BlockResult decode_palette_block(const std::uint8_t* payload,
                                                            std::uint32_t num_bytes,
                                                            std::uint32_t n, Access dst,
                                                            std::uint64_t pos, std::uint32_t slots,
                                                            PaletteSmem* smem) {
  const unsigned lane = lane_id();
  const std::uint32_t ring = shared_address(smem->ring);
  const auto part = static_cast<std::uint32_t>(align16(n));
  const std::uint32_t section_at = (kWidth - 1) * part;
  std::uint64_t sum = 0;
  if (num_bytes < section_at + codec::kTableOffset + 32) return {kReasonPayload, 0};
  // Raw bytes are loaded one group ahead, past the end again the last ones, and
  // brought into the cache some groups before that.
  LowBytes<kWidth> lows;
  const auto load_lows = [&](std::uint32_t value) {
    const std::uint32_t at = min(value, part - 8);
#pragma unroll
    for (int p = 0; p < kWidth - 1; ++p)
      lows.plane[p] = __ldcs(reinterpret_cast<const uint2*>(payload + (p * part + at)));
  };
  // Lines of each raw plane from `value` on, by the lower lanes; by some of the others
  // those of the words from `at` on: what waits for memory holds up the whole loop.
  const auto prefetch_ahead = [&](std::uint32_t value, std::uint32_t at) {
    const bool low = lane < kLinesAhead;
    const std::uint32_t line = low ? value + 128 * lane : at + 128 * (lane - kLinesAhead);
    if (line >= (low ? part : num_bytes) || lane >= kLinesAhead + kWordLinesAhead) return;
#pragma unroll
    for (int p = 0; p < kWidth - 1; ++p)
      if (low || p == 0)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(payload + (p * part + line)));
  };
  load_lows(8 * lane);
  prefetch_ahead(128, section_at + codec::kTableOffset + 32 + 512);
  WordRing<uint4> words(payload, (section_at + codec::kTableOffset + 32) / 16, num_bytes / 16);
  PaletteSection section;
  if (!open_palette_section(payload, section_at, num_bytes, n, slots, ring, sum, section) ||
      section.end_vec * 16 != num_bytes)
    return {kReasonPayload, 0};
  if (lane == 0) {
    smem->num_words = section.num_words;
    smem->num_escapes = section.num_escapes;
    smem->escapes_at = section.escapes_at;
  }
  __syncwarp();
  dst = advanced(dst, pos);
  const unsigned lanes_below = lanes_below_here();
  std::uint32_t x = section.state;
  EscapeList<kWidth, Access> escapes{shared_address(smem->escape_list)};
  std::uint32_t first = 0;
  const auto refill = [&] {
    return words.refill(ring, [&](uint4 v, std::uint32_t idx) {
      if (idx < words.end_vec) sum += checksum_term(v, idx);
      prefetch_ahead(first + 2 * kGroupElems, 16 * (idx - lane) + 1024);
    });
  };
  // Multiplier of the checksum term of a lane's first low byte: odd as it is, being
  // that of an even word; the next word's is not.
  std::uint32_t multiplier = 2 * lane * frame::kChecksumStep + frame::kChecksumStart;
  const auto add_lows = [&] {
#pragma unroll
    for (int p = 0; p < kWidth - 1; ++p) {
      const std::uint32_t m = multiplier + p * (part / 4) * frame::kChecksumStep;
      sum = mad_wide(lows.plane[p].x, m, sum);
      sum = mad_wide(lows.plane[p].y, m + frame::kChecksumStep + 1, sum);
    }
    multiplier += kGroupElems / 4 * frame::kChecksumStep;
  };

  std::uint32_t pairs[4];
  std::uint32_t next = refill(), start = next;
#pragma unroll
  for (int k = 0; k < 4; ++k) pairs[k] = decode_pair(x, slots, next, lanes_below);
  words.consumed += next - start;
  const auto has_escape = [&] {
    return __any_sync(kAll, (pairs[0] | pairs[1] | pairs[2] | pairs[3]) & 0x00010001u);
  };
  if (has_escape()) escapes.add(pairs, first, n, payload, dst, lanes_below, smem);
  // A group is merged and stored while the next one's chain of lookups runs.
  Access mine = advanced(dst, 8 * kWidth * lane);
  uint4 out[kWidth / 2];
#pragma unroll 1
  while (first + kGroupElems < n) {
    next = start = refill();
    const std::uint32_t before[4] = {pairs[0], pairs[1], pairs[2], pairs[3]};
    pairs[0] = decode_pair(x, slots, next, lanes_below);
    add_lows();
    merge_group<kWidth>(before, lows, out);
    first += kGroupElems;
    load_lows(first + 8 * lane);
    pairs[1] = decode_pair(x, slots, next, lanes_below);
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) mine.store16(16 * i, out[i]);
    mine = advanced(mine, kWidth * kGroupElems);
    pairs[2] = decode_pair(x, slots, next, lanes_below);
    pairs[3] = decode_pair(x, slots, next, lanes_below);
    words.consumed += next - start;
    if (has_escape()) escapes.add(pairs, first, n, payload, dst, lanes_below, smem);
  }
  if (first + 8 * lane < part) add_lows();
  merge_group<kWidth>(pairs, lows, out);
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) {
    const auto at = static_cast<std::int32_t>(kWidth * (first + 8 * lane) + 16 * i);
    store_upto16(mine, 16 * i, out[i], static_cast<std::int32_t>(kWidth * n) - at);
  }
  escapes.finish(n, payload, dst, smem);
  // The terms of what is left: escapes, and words a corrupt stream did not use.
  for (std::uint32_t vec = words.next_vec + lane; vec < words.end_vec; vec += kWarp)
    sum += checksum_term(__ldcs(words.vecs + vec), vec);
  const bool intact = words.consumed == 2 * smem->num_words && escapes.done == smem->num_escapes;
  return {__all_sync(kAll, intact && x == kStateLow) ? kReasonNone : kReasonStream, sum};
}

}  // namespace snug::cuda
