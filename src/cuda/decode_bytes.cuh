// cuda/decode_bytes.cuh - one warp restores one block whose top plane is a byte stream and
// whose other plane, if there is one, is raw: F16, FP8 and integers as encoders write them.
#pragma once
#include "cuda/byte_rows.cuh"
#include "cuda/byte_tables.cuh"
#include "cuda/decode_palette.cuh"

namespace snug::cuda {

// What a byte stream's values need to become elements.
template <int kWidth>
struct ByteMerge {
  unsigned shift;      // 1: the sign goes back on top
  std::uint32_t mask;  // of bits that do not come from the sign

  __device__ __forceinline__ explicit ByteMerge(bool rotate)
      : shift(rotate ? 1 : 0),
        mask(!rotate       ? ~0u
             : kWidth == 1 ? 0x7F7F7F7Fu
                           : 0x7FFF7FFFu) {}
  __device__ __forceinline__ std::uint32_t rotated(std::uint32_t w) const {
    std::uint32_t merged;
    asm("lop3.b32 %0, %1, %2, %3, 0xE4;"
        : "=r"(merged)
        : "r"(w >> shift), "r"(w << (8 * kWidth - 1)), "r"(mask));
    return merged;
  }
  // Byte 2 of each of two words, side by side or one in each half.
  static constexpr unsigned kBeside = 0x0062, kApart = 0x6020;
  // Four values, byte 2 of each result of a step, on top of their low bytes.
  template <class Access>
  __device__ __forceinline__ void store(uint4 r, std::uint32_t low, Access dst,
                                        std::int32_t num_values) const {
    std::uint32_t words[kWidth];
    if constexpr (kWidth == 1) {
      words[0] = rotated(
          __byte_perm(__byte_perm(r.x, r.y, kBeside), __byte_perm(r.z, r.w, kBeside), 0x5410));
    } else {
      words[0] = rotated(__byte_perm(__byte_perm(r.x, r.y, kApart), low, 0x3514));
      words[1] = rotated(__byte_perm(__byte_perm(r.z, r.w, kApart), low, 0x3716));
    }
    if (num_values >= 4) {
      store_words<kWidth>(dst, 0, words);
      return;
    }
    // No call: what is alive after it would live in memory in the loop too.
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      if (i >= num_values) break;
      if constexpr (kWidth == 1)
        dst.store_byte(i, static_cast<std::uint8_t>(words[0] >> (8 * i)));
      else
        dst.store(2 * i, static_cast<std::uint16_t>(words[i / 2] >> (i % 2 * 16)));
    }
  }
};

// The raw plane below: 4 values a lane.
struct LowPlane {
  const std::uint8_t* bytes;
  std::uint32_t part;  // its size
};

__device__ __forceinline__ std::uint64_t word_terms(uint2 v, std::uint32_t idx) {
  return checksum_terms(v, checksum_factor(2 * idx));
}
__device__ __forceinline__ std::uint64_t word_terms(uint4 v, std::uint32_t idx) {
  return checksum_term(v, idx);
}

// Decodes, merges and stores. step(x, next) decodes one byte.
template <int kWidth, class Access, class Vec, class Step>
__device__ __forceinline__ BlockResult decode_byte_groups(const std::uint8_t* payload,
                                                          const ByteSection& section,
                                                          std::uint32_t n, bool rotate, Access dst,
                                                          LowPlane low, WordRing<Vec> words,
                                                          std::uint32_t ring, std::uint64_t sum,
                                                          Step step) {
  constexpr std::uint32_t kGroup = 128;
  const unsigned lane = lane_id();
  const ByteMerge<kWidth> merge(rotate);
  std::uint32_t x = stored_state(ring), first = 0;
  // Lines of the raw plane by the lower lanes, of the words by the next: what waits for
  // memory holds up the whole loop.
  const auto prefetch_ahead = [&](std::uint32_t at) {
    constexpr unsigned kLowLines = kWidth == 1 ? 0 : 12, kWordLines = 8;
    const bool of_low = kWidth > 1 && lane < kLowLines;
    const std::uint32_t line =
        of_low ? first + 2 * kGroup + 128 * lane : at + 128 * (lane - kLowLines);
    if (line < (of_low ? low.part : section.end) && lane < kLowLines + kWordLines)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(payload + line));
  };
  const auto refill = [&] {
    return words.refill(ring, [&](Vec v, std::uint32_t idx) {
      if (idx < words.end_vec) sum += word_terms(v, idx);
      prefetch_ahead(sizeof(Vec) * (idx - lane) + 2 * WordRing<Vec>::kChunkBytes);
    });
  };
  Access mine = advanced(dst, 4 * kWidth * lane);
  const std::uint8_t* lows = low.bytes + 4 * lane;
  std::uint32_t factor = checksum_factor(lane);
  std::uint64_t low_sum = 0;
  // Group `ahead` from here; its low bytes are there if `whole`. They are not asked for
  // before the refill: its branch would wait for them.
  const auto decode_group = [&](std::uint32_t ahead, bool whole, std::uint32_t& low_word) {
    const std::uint32_t start = refill();
    std::uint32_t next = start;
    if (kWidth == 2 && whole)
      low_word = __ldcs(reinterpret_cast<const std::uint32_t*>(lows + ahead * kGroup));
    uint4 r;
    r.x = step(x, next);
    r.y = step(x, next);
    r.z = step(x, next);
    r.w = step(x, next);
    words.consumed += next - start;
    return r;
  };
  const auto add_lows = [&](std::uint32_t low_word) {
    if constexpr (kWidth == 2) low_sum = mad_wide(low_word, factor, low_sum);
    factor += kWarp * frame::kChecksumStep;
  };
  const auto advance = [&](std::uint32_t groups) {
    mine = advanced(mine, kWidth * groups * kGroup);
    lows += groups * kGroup;
    first += groups * kGroup;
  };
  std::uint32_t low_word = 0;
#pragma unroll 1
  while (n - first > 2 * kGroup) {
    const uint4 r = decode_group(0, true, low_word);
    add_lows(low_word);
    merge.store(r, low_word, mine, 4);
    const uint4 s = decode_group(1, true, low_word);
    add_lows(low_word);
    merge.store(s, low_word, advanced(mine, kWidth * kGroup), 4);
    advance(2);
  }
#pragma unroll 1
  while (first < n) {
    const bool whole = first + 4 * lane < low.part;
    const uint4 r = decode_group(0, whole, low_word);
    if (whole) add_lows(low_word);
    merge.store(r, low_word, mine, static_cast<std::int32_t>(n - first - 4 * lane));
    advance(1);
  }
  sum += low_sum;
  // Words that a corrupt stream did not use.
  for (std::uint32_t i = words.next_vec + lane; i < words.end_vec; i += kWarp)
    sum += word_terms(__ldcs(words.vecs + i), i);
  const bool intact = words.consumed == 2 * section.num_words && x == kStateLow;
  return {__all_sync(kAll, intact) ? kReasonNone : kReasonStream, sum};
}

// `room` is that of a warp: tables, and words with what else is not aligned; `uniform` the
// address of a uniform row.
template <int kWidth, class Access>
__device__ __forceinline__ BlockResult decode_byte_block(const std::uint8_t* payload,
                                                         std::uint32_t num_bytes, std::uint32_t n,
                                                         bool rotate, Access dst, std::uint64_t pos,
                                                         const StreamRoom& room,
                                                         std::uint32_t uniform) {
  const std::uint32_t section_at = (kWidth - 1) * static_cast<std::uint32_t>(align16(n));
  std::uint64_t sum = 0;
  if (num_bytes < section_at + codec::kTableOffset) return {kReasonPayload, 0};
  const LowPlane low{payload, section_at};
  ByteSection section;
  const std::uint32_t ring = room.ring;
  if (!open_byte_section(payload, section_at, num_bytes, n, ring, sum, section) ||
      section.end != num_bytes)
    return {kReasonPayload, 0};
  WordRing<uint4> words(payload, section.words_at / 16, section.end / 16);
  dst = advanced(dst, pos);
  const unsigned lanes_below = lanes_below_here();
  const RowsFit fit =
      read_byte_rows(ring, section.table_bytes, room.slots, room.bytes, kMaxRows, uniform);
  if (fit == RowsFit::kFit)
    return decode_byte_groups<kWidth>(payload, section, n, rotate, dst, low, words, ring, sum,
                                      [&](std::uint32_t& x, std::uint32_t& next) {
                                        return decode_row_byte(x, room.slots, next, lanes_below);
                                      });
  if (fit == RowsFit::kInvalid || !read_byte_tables(section.table_bytes, room))
    return {kReasonPayload, 0};
  const WordRing<uint2> short_words(payload, section.words_at / 8, section.end / 8);
  return decode_byte_groups<kWidth>(payload, section, n, rotate, dst, low, short_words, ring, sum,
                                    [&](std::uint32_t& x, std::uint32_t& next) {
                                      return decode_byte(x, room, next, lanes_below) << 16;
                                    });
}

}  // namespace snug::cuda
