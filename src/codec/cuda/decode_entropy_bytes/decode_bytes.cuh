// codec/cuda/decode_entropy_bytes/decode_bytes.cuh - one warp restores one block whose top plane is
// a byte stream and whose other plane, if there is one, is raw: F16, FP8 and integers as encoders
// mostly write them.
#pragma once
#include <type_traits>

#include "codec/cuda/decode_entropy_bytes/byte_rows.cuh"
#include "codec/cuda/decode_entropy_bytes/byte_tables.cuh"
#include "codec/cuda/decode_entropy_exponent/decode_palette.cuh"
#include "codec/cuda/decode_entropy_exponent/palette_stream.cuh"

namespace snug::cuda {

// Makes elements of the values of a byte stream.
template <int kWidth>
struct ByteMerge {
  unsigned shift;  // 1: the sign is the lowest bit and goes back on top
  u32 mask;        // of all bits but the sign

  __device__ __forceinline__ explicit ByteMerge(bool rotate)
      : shift(rotate ? 1 : 0),
        mask(!rotate       ? ~0u
             : kWidth == 1 ? 0x7F7F7F7Fu
                           : 0x7FFF7FFFu) {}
  __device__ __forceinline__ u32 rotated(u32 w) const {
    u32 merged;
    asm("lop3.b32 %0, %1, %2, %3, 0xE4;"
        : "=r"(merged)
        : "r"(w >> shift), "r"(w << (8 * kWidth - 1)), "r"(mask));
    return merged;
  }
  // Byte 2 of each of two words, side by side or one in each half.
  static constexpr unsigned kBeside = 0x0062, kApart = 0x6020;
  // Four values, byte 2 of each step's result, on top of their low bytes.
  template <class Access>
  __device__ __forceinline__ void store(uint4 r, u32 low, Access dst, i32 num_values) const {
    u32 words[kWidth];
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
    // Inline: around a call, live values would spill in the loop.
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      if (i >= num_values) break;
      if constexpr (kWidth == 1)
        dst.store_byte(i, static_cast<u8>(words[0] >> (8 * i)));
      else
        dst.store(2 * i, static_cast<u16>(words[i / 2] >> (i % 2 * 16)));
    }
  }
};

// A byte stream decoded by tables of few rows (Vec is uint4) or of any number (uint2: the room also
// holds a table). A refill provides the words of one group, and calls prefetch(payload offset) when
// it has loaded more of them.
template <class Vec>
struct RingStream {
  static constexpr unsigned kGroups = 1;
  WordRing<Vec> words;
  StreamRoom room;
  u32 x, next = 0, group_start = 0;
  unsigned lanes_below = lanes_below_mask();

  __device__ __forceinline__ RingStream(const u8* payload, u32 words_at, u32 num_bytes,
                                        const StreamRoom& room_for)
      : words(payload, words_at / sizeof(Vec), num_bytes / sizeof(Vec)), room(room_for) {}
  __device__ __forceinline__ void start(u32 state) { x = state; }
  template <class Prefetch>
  __device__ __forceinline__ void refill(u64& sum, Prefetch prefetch) {
    next = group_start = words.refill(room.ring, [&](Vec v, u32 idx) {
      if (idx < words.end_vec) sum += checksum_term(v, idx);
      prefetch(sizeof(Vec) * (idx - lane_id()) + 2 * WordRing<Vec>::kChunkBytes);
    });
  }
  __device__ __forceinline__ u32 decode() {
    if constexpr (sizeof(Vec) == sizeof(uint4))
      return decode_row_byte(x, room.slots, next, lanes_below);
    else
      return decode_byte(x, room, next, lanes_below) << 16;
  }
  __device__ __forceinline__ void end_group() { words.consumed += next - group_start; }
  __device__ __forceinline__ bool ends_well(u32 num_words) const {
    return words.consumed == 2 * num_words && x == kStateLow;
  }
  __device__ __forceinline__ u64 terms_left() const {
    u64 sum = 0;
    for (u32 i = words.next_vec + lane_id(); i < words.end_vec; i += kWarpSize)
      sum += checksum_term(__ldcs(words.vecs + i), i);
    return sum;
  }
};

// A byte stream decoded by tables of few rows, with words for two groups a refill and fewer
// instructions. Beside a raw plane it was slower nevertheless.
struct RowStream : PaletteStream<false> {
  __device__ __forceinline__ RowStream(const u8* payload, u32 words_at, u32 num_bytes,
                                       const StreamRoom& room)
      : PaletteStream<false>(payload, words_at, num_bytes, room.slots, room.ring) {}
  template <class Prefetch>
  __device__ __forceinline__ void refill(u64& sum, Prefetch) {
    PaletteStream<false>::refill(sum);
  }
  __device__ __forceinline__ u32 decode() { return decode_row_byte(x, slots, next, lanes_below); }
  __device__ __forceinline__ void end_group() {}
};
static_assert(RowStream::kGroups == 2 && RowStream::kRoom <= StreamRoom::kSmall);

// Decodes, merges and stores n values. The raw plane, if there is one, comes first in the payload.
template <int kWidth, class Access, class Stream>
__device__ __forceinline__ BlockResult decode_byte_groups(const u8* payload,
                                                          const ByteSection& section, u32 n,
                                                          bool rotate, Access dst, Stream stream,
                                                          u64 sum) {
  constexpr u32 kGroup = 128;
  const unsigned lane = lane_id();
  const auto part = static_cast<u32>(align16(n));
  const ByteMerge<kWidth> merge(rotate);
  u32 first = 0, factor = checksum_factor(lane);
  u64 low_sum = 0;
  Access mine = advanced(dst, 4 * kWidth * lane);
  const u8* lows = payload + 4 * lane;
  // The lower lanes prefetch lines of the raw plane, the next ones of the words from `at` on.
  const auto prefetch = [&](u32 at) {
    constexpr unsigned kLowLines = 12, kWordLines = 8;
    const bool is_low = lane < kLowLines;
    const u32 line = is_low ? first + 2 * kGroup + 128 * lane : at + 128 * (lane - kLowLines);
    if (kWidth == 2 && line < (is_low ? part : section.end) && lane < kLowLines + kWordLines)
      prefetch_l2(payload + line);
  };
  // Decodes the group `ahead` groups from here; `whole`: it has low bytes. These are loaded after
  // the refill, whose branch would wait for them.
  const auto decode_group = [&](u32 ahead, bool whole, u32& low) {
    if (ahead % Stream::kGroups == 0) stream.refill(sum, prefetch);
    if (kWidth == 2 && whole) low = __ldcs(reinterpret_cast<const u32*>(lows + ahead * kGroup));
    uint4 r;
    r.x = stream.decode();
    r.y = stream.decode();
    r.z = stream.decode();
    r.w = stream.decode();
    stream.end_group();
    return r;
  };
  const auto add_lows = [&](u32 low) {
    if constexpr (kWidth == 2) low_sum = mad_wide(low, factor, low_sum);
    factor += kWarpSize * frame::kChecksumStep;
  };
  const auto advance = [&](u32 groups) {
    mine = advanced(mine, kWidth * groups * kGroup);
    lows += groups * kGroup;
    first += groups * kGroup;
  };
  u32 low = 0;
#pragma unroll 1
  while (n - first > 2 * kGroup) {
    const uint4 r = decode_group(0, true, low);
    add_lows(low);
    merge.store(r, low, mine, 4);
    const uint4 s = decode_group(1, true, low);
    add_lows(low);
    merge.store(s, low, advanced(mine, kWidth * kGroup), 4);
    advance(2);
  }
#pragma unroll 1
  while (first < n) {
    const bool whole = first + 4 * lane < part;
    const uint4 r = decode_group(0, whole, low);
    if (whole) add_lows(low);
    merge.store(r, low, mine, static_cast<i32>(n - first - 4 * lane));
    advance(1);
  }
  const bool good = stream.ends_well(section.num_words);
  sum += low_sum + stream.terms_left();
  return {__all_sync(kAllLanes, good) ? kReasonNone : kReasonStream, sum};
}

// `room` belongs to the warp; `uniform` is the address of a uniform row.
template <int kWidth, class Access>
__device__ __forceinline__ BlockResult decode_byte_block(const u8* payload, u32 num_bytes, u32 n,
                                                         bool rotate, Access dst, u64 pos,
                                                         const StreamRoom& room, u32 uniform) {
  const u32 section_at = (kWidth - 1) * static_cast<u32>(align16(n));
  u64 sum = 0;
  if (num_bytes < section_at + codec::kTableOffset) return {kReasonPayload, 0};
  ByteSection section;
  if (!open_byte_section(payload, section_at, num_bytes, n, room.ring, sum, section) ||
      section.end != num_bytes)
    return {kReasonPayload, 0};
  using FewRows = std::conditional_t<kWidth == 1, RowStream, RingStream<uint4>>;
  FewRows stream(payload, section.words_at, num_bytes, room);
  dst = advanced(dst, pos);
  const RowsFit fit =
      read_byte_rows(room.ring, section.table_bytes, room.slots, room.bytes, kMaxRows, uniform);
  if (fit == RowsFit::kFit) {
    stream.start(stored_state(room.ring));
    return decode_byte_groups<kWidth>(payload, section, n, rotate, dst, stream, sum);
  }
  if (fit == RowsFit::kInvalid || !read_byte_tables(section.table_bytes, room))
    return {kReasonPayload, 0};
  RingStream<uint2> any_stream(payload, section.words_at, num_bytes, room);
  any_stream.start(stored_state(room.ring));
  return decode_byte_groups<kWidth>(payload, section, n, rotate, dst, any_stream, sum);
}

}  // namespace snug::cuda
