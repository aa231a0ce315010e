// codec/cuda/encode_entropy_any/encode_planes.cuh - one warp codes one block of any type with the
// entropy codec, as codec/block_encode.cpp does: chooses a mode for each plane from a sample, and
// leaves the coded planes in scratch memory.
#pragma once
#include "codec/cuda/encode_entropy_any/top_counts.cuh"
#include "codec/cuda/encode_entropy_any/value_ring.cuh"

namespace snug::cuda {

// Codes one plane as bytes, from the last group to the first. The padding decodes to `pad`. Gives
// up when the words exceed `room` bytes: such a section is not used. A short loop: warps are at
// different places of the code, and the instruction cache is small.
template <bool kExact, class Access, int kWidth>
__device__ __forceinline__ CodedStream encode_byte_plane(BlockValues<Access, kWidth> values,
                                                         unsigned plane, u32 pad, PlaneSmem* smem,
                                                         u8* words_end, u32 room) {
  using Ring = ValueRing<Access, kWidth>;
  const unsigned lane = lane_id();
  const u32 lut = kept_shared_address(smem->lut);
  WordSink sink(shared_address(smem->words), words_end);
  // In bytes that are not rotated (see BlockValues) the first symbol is one bit lower.
  const unsigned first_shift = kWidth == 1 && values.rotate ? 3 : 4;
  uint2 symbols[8];
  u32 bytes = 0, firsts = 0;  // of the next group
  const auto look_up = [&](int step) {
    symbols[2 * step] = load_shared_const_b64(__dp4a(firsts, 8u << (8 * step), lut));
    symbols[2 * step + 1] = load_shared_const_b64(__dp4a(bytes, 8u << (8 * step), lut + 128));
  };
  const auto set_next = [&](u32 plane_bytes) {
    bytes = plane_bytes;
    firsts = plane_bytes >> first_shift & 0x0F0F0F0Fu;
  };
  const auto look_up_all = [&] {
#pragma unroll
    for (int step = 3; step >= 0; --step) look_up(step);
  };
  // Groups of whole pieces pass through the ring; those at the end do not.
  const auto num_pieces = static_cast<i32>(values.n * kWidth / Ring::kPieceBytes);
  const i32 num_whole = num_pieces * Ring::kPieceGroups;
  const Ring ring(values, num_pieces, shared_address(smem->ring));
  auto group = static_cast<i32>((values.n + 127) / 128) - 1;
#pragma unroll 1
  for (; group >= num_whole; --group) {
    const u32 value = static_cast<u32>(group) * 128 + 4 * lane;
    u32 some = values.plane(value, plane);
    if (value + 4 > values.n) {
      const u32 kept = value < values.n ? (1u << (8 * (values.n - value))) - 1 : 0;
      some = (some & kept) | (pad * 0x01010101u & ~kept);
    }
    set_next(some);
    look_up_all();
    sink.coder.template code_group<kExact>(symbols, [](int) {});
    sink.flush_chunk(room);
  }
  u32 words[kWidth];  // loaded a group ahead of their symbols
  const auto take = [&](i32 next) {
    if (static_cast<unsigned>(next) % Ring::kPieceGroups == Ring::kPieceGroups - 1)
      ring.enter(next / Ring::kPieceGroups);
    ring.read(next, words);
  };
  take(group);
  set_next(values.pick(words, plane));
  look_up_all();
  take(group - 1);
  constexpr int kGroups = Ring::kPieceGroups > 1 ? 2 : 1;  // of an iteration
#pragma unroll 1
  for (bool has_room = true; group >= 0 && has_room; group -= kGroups) {
#pragma unroll
    for (int k = 0; k < kGroups; ++k) {
      set_next(values.pick(words, plane));
      if (k == 0)
        take(group - 2);
      else
        ring.read(group - 3, words);  // an even number: in the same piece
      sink.coder.template code_group<kExact>(symbols, look_up);
    }
    has_room = sink.flush_chunk(room);
  }
  wait_copies<0>();
  return {sink.finish(), 0, sink.coder.x};
}

// The same for a palette plane, 8 values a lane. Values past the end count as the commonest one.
template <bool kExact, class Access, int kWidth>
__device__ __forceinline__ CodedStream encode_palette_plane(BlockValues<Access, kWidth> values,
                                                            unsigned plane, u32 commonest,
                                                            PlaneSmem* smem, u8* words_end,
                                                            u8* escapes_end, u32 room) {
  const unsigned lane = lane_id();
  const u32 lut = kept_shared_address(smem->lut);
  WordSink sink(shared_address(smem->words), words_end);
  u32 num_escapes = 0;
  bool fits = true;
  uint2 symbols[8], bytes{}, next{};  // of this group and the next one
  const auto look_up = [&](int step) {
    const u32 pair = step < 2 ? next.x : next.y;
    symbols[2 * step] = load_shared_const_b64(__dp4a(pair, 8u << (16 * (step & 1)), lut));
    symbols[2 * step + 1] = load_shared_const_b64(__dp4a(pair, 2048u << (16 * (step & 1)), lut));
  };
  const auto look_up_all = [&] {
#pragma unroll
    for (int step = 3; step >= 0; --step) look_up(step);
  };
  // `here` values of the lane are in the block.
  const auto push = [&](u32 here) {
    unsigned any = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) any |= symbols[i].y;
    if (!__any_sync(kAllLanes, any & 128)) return;
    unsigned flags = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) flags |= (symbols[i].y >> 7 & 1) << i;
    flags &= (1u << here) - 1;
    num_escapes += push_escapes(bytes, flags, escapes_end, num_escapes);
  };
  constexpr i32 kAhead = 2, kGroupBytes = 256 * kWidth;
  struct Loaded {
    u32 low[kWidth], high[kWidth];
  };
  Loaded loaded[kAhead];
  const Access mine = advanced(values.src, values.pos + 8 * kWidth * lane);
  const auto fetch = [&](const Access& from, u32 at, Loaded& to) {
    load_four<kWidth>(from, at, to.low);
    load_four<kWidth>(from, at + 4 * kWidth, to.high);
  };
  const auto picked = [&](Loaded& from) {
    return uint2{values.pick(from.low, plane), values.pick(from.high, plane)};
  };
  // Prefetches the lines of some groups down to this one.
  constexpr i32 kLinesAhead = 4096 / kGroupBytes;
  const auto prefetch = [&](i32 from) {
    const i32 at = kGroupBytes * (from + 1) - 128 * (static_cast<i32>(lane) + 1);
    if (at >= 0) values.src.prefetch(values.pos + static_cast<u32>(at));
  };
  const auto num_whole = static_cast<i32>(values.n / 256);
  i32 group = static_cast<i32>((values.n + 255) / 256) - 1;
#pragma unroll 1
  for (;; --group) {
    if (group > 0 && group < num_whole && group % kAhead == 0) {
      // All groups but the first, kAhead at a time.
      prefetch(group);
      prefetch(group - kLinesAhead);
      const Access last = advanced(mine, kGroupBytes * static_cast<u32>(group - kAhead));
      fetch(last, kGroupBytes * kAhead, loaded[0]);
      next = picked(loaded[0]);
      look_up_all();
#pragma unroll
      for (i32 k = 0; k < kAhead; ++k) fetch(last, kGroupBytes * (kAhead - 1 - k), loaded[k]);
#pragma unroll 1
      for (; group > 0; group -= kAhead) {
        if (group % kLinesAhead < kAhead) prefetch(group - kLinesAhead);
        // Never below the first group.
        const Access below =
            advanced(mine, kGroupBytes * static_cast<u32>(max(group - 2 * kAhead, 0)));
#pragma unroll
        for (i32 k = 0; k < kAhead; ++k) {
          bytes = next;
          push(8);
          next = picked(loaded[k]);
          fetch(below, kGroupBytes * (kAhead - 1 - k), loaded[k]);
          sink.coder.template code_group<kExact>(symbols, look_up);
        }
        fits = sink.flush_chunk(room);
        if (!fits) break;
      }
      if (!fits) break;
    }
    const u32 value = static_cast<u32>(group) * 256 + 8 * lane;
    next = {values.plane(value, plane), values.plane(value + 4, plane)};
    const u32 here = value + 8 <= values.n ? 8 : value < values.n ? values.n - value : 0;
    if (here < 8) {
      const u64 kept = (u64{1} << (8 * here)) - 1;
      next.x =
          (next.x & static_cast<u32>(kept)) | (commonest * 0x01010101u & ~static_cast<u32>(kept));
      next.y = (next.y & static_cast<u32>(kept >> 32)) |
               (commonest * 0x01010101u & ~static_cast<u32>(kept >> 32));
    }
    look_up_all();
    bytes = next;
    push(here);
    sink.coder.template code_group<kExact>(symbols, [](int) {});
    if (!sink.flush_chunk(room) || group == 0) break;
  }
  return {sink.finish(), num_escapes, sink.coder.x};
}

template <class Access, int kWidth>
__device__ __forceinline__ bool put_palette_plane(const BlockValues<Access, kWidth>& values,
                                                  unsigned plane, const DevicePalette& palette,
                                                  PlaneOut& out) {
  PlaneSmem* smem = out.smem;
  const bool exact =
      fill_palette_lut<make_symbol>(palette.freq, palette.value, palette.size, smem->lut);
  if (lane_id() < 16) {
    smem->table[lane_id()] = static_cast<u8>(palette.value);
    smem->table[16 + lane_id()] = static_cast<u8>(palette.freq);
  }
  __syncwarp();
  const u32 commonest = __shfl_sync(kAllLanes, palette.value, 0);
  const u32 room = out.room - out.used;
  const CodedStream coded =
      exact ? encode_palette_plane<true>(values, plane, commonest, smem, out.sections_end,
                                         out.escapes_end, room)
            : encode_palette_plane<false>(values, plane, commonest, smem, out.sections_end,
                                          out.escapes_end, room);
  return finish_section(32, palette.size, coded, out);
}

// A plane in byte mode, or in constant mode if it holds one byte only. `counted`: by count_top.
template <class Access, int kWidth>
__device__ __forceinline__ bool put_byte_plane(const BlockValues<Access, kWidth>& values,
                                               unsigned plane, bool counted, PlaneOut& out,
                                               unsigned& mode) {
  PlaneSmem* smem = out.smem;
  const unsigned lane = lane_id();
  const bool rotated = kWidth == 1 && values.rotate;
  if (counted)
    add_other_counts(rotated, smem);
  else
    count_plane(values, plane, smem);
  u32 best = 0;  // commonest byte, of equals the smallest
#pragma unroll
  for (unsigned i = 0; i < 8; ++i) {
    const u32 v = i * kWarpSize + lane;
    best = max(best, smem->histogram[v] << 8 | (255 - v));
  }
  best = __reduce_max_sync(kAllLanes, best);
  const u32 commonest = 255 - (best & 255);
  if (best >> 8 == values.n) {
    mode = static_cast<unsigned>(PlaneMode::kConstant);
    u8* at = out.sections_end - 16;
    if (lane < 16) at[lane] = lane == 0 ? static_cast<u8>(commonest) : 0;
    return out.add({at, 16, 0});
  }
  make_byte_model(smem->histogram, smem->model);
  const u32 table_bytes = write_byte_table(smem);
  const bool exact = fill_byte_lut(smem->model, rotated, smem->lut);
  const u32 pad = rotated ? commonest / 2 | (commonest & 1) << 7 : commonest;
  const u32 room = out.room - out.used;
  const CodedStream coded =
      exact ? encode_byte_plane<true>(values, plane, pad, smem, out.sections_end, room)
            : encode_byte_plane<false>(values, plane, pad, smem, out.sections_end, room);
  return finish_section(table_bytes, 0, coded, out);
}

// Whether coding a plane as bytes pays even with a table for first symbols alone.
inline __device__ __noinline__ bool pays_by_first_symbols(const u32* histogram) {
  const unsigned lane = lane_id();
  u32 count = 0;
#pragma unroll
  for (unsigned i = 0; i < 8; ++i)
    count += histogram[(lane & 15) * 16 + lane / 16 * 8 + ((i + lane) & 7)];
  count += __shfl_xor_sync(kAllLanes, count, 16);
  if (lane >= 16) count = 0;
  const u32 total = __reduce_add_sync(kAllLanes, count);
  const u32 cost = __reduce_add_sync(kAllLanes, cost_of(count, normalize_one(count)));
  return cost + total * 4 * 256 < total * (8 * 256 - 8 * 256 / 32);
}

// May be less than n / stride: the last run of a block may be cut.
__device__ __forceinline__ u32 num_sampled(const u32* histogram) {
  u32 count = 0;
#pragma unroll
  for (unsigned i = 0; i < 256; i += kWarpSize) count += histogram[i + lane_id()];
  return __reduce_add_sync(kAllLanes, count);
}

// block_encode.cpp's choose_top_mode, with the palette of the sample.
__device__ __forceinline__ unsigned choose_top_mode(bool may_use_palette,
                                                    const DevicePalette& palette, PlaneSmem* smem) {
  if (may_use_palette && palette.cost < palette.total * 5 * 256) return 3;
  if (palette.is_noise) return 0;
  if (!may_use_palette && pays_by_first_symbols(smem->histogram)) return 2;
  const u32 bytes_cost = make_byte_model(smem->histogram, smem->model);
  const u32 limit = palette.total * (8 * 256 - 8 * 256 / 32);
  if (bytes_cost < limit && (!may_use_palette || bytes_cost < palette.cost)) return 2;
  return may_use_palette && palette.cost < limit ? 3 : 0;
}

// block_encode.cpp's encode_entropy, after take_sample or count_top. False: the block becomes raw.
template <class Access, int kWidth>
__device__ __forceinline__ bool encode_entropy_planes(const BlockValues<Access, kWidth>& values,
                                                      DType dtype, bool counted, PlaneOut& out,
                                                      u32& plane_modes) {
  PlaneSmem* smem = out.smem;
  const bool may_use_palette = has_exponent_plane(dtype);
  DevicePalette palette{};
  if (may_use_palette)
    palette = make_palette(smem->histogram, smem->list);
  else
    palette.total = num_sampled(smem->histogram);
  u32 modes = choose_top_mode(may_use_palette, palette, smem) << (2 * (kWidth - 1));
  for (unsigned p = 0; p + 1 < kWidth; ++p) {
    const u32 count = (&smem->nibbles[p][0][0])[lane_id()];
    if (!is_surely_noise(count) && worth_coding(count)) modes |= 2u << (2 * p);
  }
  if (modes == 0) return false;
  for (unsigned p = 0; p < kWidth; ++p)
    if ((modes >> (2 * p) & 3) == 0) out.raw_bytes += static_cast<u32>(align16(values.n));
  out.used = out.raw_bytes;
  if (out.used > out.room) return false;
  plane_modes = 0;
#pragma unroll 1
  for (unsigned p = 0; p < kWidth; ++p) {
    unsigned mode = modes >> (2 * p) & 3;
    if constexpr (kWidth > 1)  // bytes have no palette
      if (mode == 3 && !put_palette_plane(values, p, palette, out)) return false;
    if (mode == 2) {
      // Planes that were coded before have overwritten the counts.
      const bool has_counts = counted && p + 1 == kWidth && out.num_sections == 0;
      if (!put_byte_plane(values, p, has_counts, out, mode)) return false;
    }
    plane_modes |= mode << (2 * p);
    __syncwarp();
  }
  return out.used < out.room;
}

}  // namespace snug::cuda
