// cuda/encode_planes.cuh - one warp codes one block of any type with the entropy
// codec, as codec/block_encode.cpp does: looks at a sample, chooses a mode for each
// plane, and leaves the coded planes in scratch memory. Raw planes go straight from
// the tensor to the frame once the block's place is known.
#pragma once
#include "cuda/plane_sample.cuh"

namespace snug::cuda {

// Codes one plane as bytes, from the last group to the first. The padding decodes
// to `pad`. Tables are exact, or some frequencies need a second look. Gives up with
// more words than `room` bytes hold: such a section is not used.
template <bool kExact, class Access, int kWidth>
__device__ __noinline__ CodedStream encode_byte_plane(BlockValues<Access, kWidth> values,
                                                      unsigned plane, std::uint32_t pad,
                                                      std::uint32_t lut, std::uint32_t buffer,
                                                      std::uint8_t* words_end, std::uint32_t room) {
  WordSink sink(buffer, words_end);
  const unsigned lane = lane_id();
  // False: too many words to be of use.
  const auto code = [&](std::uint32_t bytes) {
    uint2 symbols[8];
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const std::uint32_t byte = __byte_perm(bytes, 0, 0x4440 | step);
      symbols[2 * step] = load_shared8(lut + (byte >> 4) * 8);
      symbols[2 * step + 1] = load_shared8(lut + 128 + byte * 8);
    }
    sink.coder.code_group<kExact>(symbols);
    sink.flush_chunk();
    return sink.num_bytes() <= room;
  };
  const auto num_whole = static_cast<std::int32_t>(values.n / 128);
  bool fits = true;
  if (values.n % 128 != 0) {
    const std::uint32_t value = static_cast<std::uint32_t>(num_whole) * 128 + 4 * lane;
    std::uint32_t bytes = values.plane(value, plane);
    if (value + 4 > values.n) {
      const std::uint32_t kept = value < values.n ? (1u << (8 * (values.n - value))) - 1 : 0;
      bytes = (bytes & kept) | (pad * 0x01010101u & ~kept);
    }
    fits = code(bytes);
  }
  if (fits && num_whole > 0) {
    // Groups are loaded two ahead, past the first again that one.
    std::uint32_t even[kWidth], odd[kWidth];
    const auto fetch = [&](std::int32_t group, std::uint32_t(&words)[kWidth]) {
      values.load_whole(static_cast<std::uint32_t>(max(group, 0)) * 128 + 4 * lane, words);
    };
    std::int32_t group = num_whole - 1;
    fetch(group, even);
    fetch(group - 1, odd);
#pragma unroll 1
    for (;; group -= 2) {
      std::uint32_t bytes = plane_of<kWidth>(even, plane);
      fetch(group - 2, even);
      if (!code(bytes) || group == 0) break;
      bytes = plane_of<kWidth>(odd, plane);
      fetch(group - 3, odd);
      if (!code(bytes) || group == 1) break;
    }
  }
  return {sink.finish(), 0, sink.coder.x};
}

// The same for a palette plane, 8 values a lane. Values beyond the block count as
// the commonest one.
template <bool kExact, class Access, int kWidth>
__device__ __noinline__ CodedStream encode_palette_plane(
    BlockValues<Access, kWidth> values, unsigned plane, std::uint32_t commonest, std::uint32_t lut,
    std::uint32_t buffer, std::uint8_t* words_end, std::uint8_t* escapes_end, std::uint32_t room) {
  WordSink sink(buffer, words_end);
  std::uint32_t num_escapes = 0;
  const unsigned lane = lane_id();
  // `here` values of the lane are in the block. False: too many words to be of use.
  const auto code = [&](uint2 bytes, std::uint32_t here) {
    uint2 symbols[8];
    unsigned flags = 0;
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) {
      symbols[i] =
          load_shared8(lut + (__byte_perm(i < 4 ? bytes.x : bytes.y, 0, 0x4440 | (i & 3))) * 8);
      flags |= (symbols[i].y >> 7 & 1) << i;
    }
    flags &= (1u << here) - 1;
    if (__any_sync(kAll, flags != 0))
      num_escapes += push_escapes(bytes, flags, escapes_end, num_escapes);
    sink.coder.code_group<kExact>(symbols);
    sink.flush_chunk();
    return sink.num_bytes() <= room;
  };
  const std::uint32_t num_whole = values.n / 256;
  bool fits = true;
  if (values.n % 256 != 0) {
    const std::uint32_t value = num_whole * 256 + 8 * lane;
    uint2 bytes = {values.plane(value, plane), values.plane(value + 4, plane)};
    const std::uint32_t here = value + 8 <= values.n ? 8 : value < values.n ? values.n - value : 0;
    if (here < 8) {
      const std::uint64_t kept = (std::uint64_t{1} << (8 * here)) - 1;
      bytes.x = (bytes.x & static_cast<std::uint32_t>(kept)) |
                (commonest * 0x01010101u & ~static_cast<std::uint32_t>(kept));
      bytes.y = (bytes.y & static_cast<std::uint32_t>(kept >> 32)) |
                (commonest * 0x01010101u & ~static_cast<std::uint32_t>(kept >> 32));
    }
    fits = code(bytes, here);
  }
  if (fits && num_whole > 0) {
    // Groups are loaded one ahead, past the first again that one.
    std::uint32_t low[kWidth], high[kWidth];
    const auto fetch = [&](std::uint32_t group) {
      values.load_whole(group * 256 + 8 * lane, low);
      values.load_whole(group * 256 + 8 * lane + 4, high);
    };
    std::uint32_t group = num_whole - 1;
    fetch(group);
#pragma unroll 1
    for (;; --group) {
      const uint2 bytes = {plane_of<kWidth>(low, plane), plane_of<kWidth>(high, plane)};
      fetch(group == 0 ? 0 : group - 1);
      if (!code(bytes, 8) || group == 0) break;
    }
  }
  return {sink.finish(), num_escapes, sink.coder.x};
}

template <class Access, int kWidth>
__device__ bool put_palette_plane(const BlockValues<Access, kWidth>& values, unsigned plane,
                                  const DevicePalette& palette, PlaneSmem* smem, PlaneOut& out) {
  const bool exact =
      fill_palette_lut<make_symbol>(palette.freq, palette.value, palette.size, smem->lut);
  if (lane_id() < 16) {
    smem->table[lane_id()] = static_cast<std::uint8_t>(palette.value);
    smem->table[16 + lane_id()] = static_cast<std::uint8_t>(palette.freq);
  }
  __syncwarp();
  const std::uint32_t commonest = __shfl_sync(kAll, palette.value, 0);
  const std::uint32_t lut = shared_address(smem->lut), buffer = shared_address(smem->words);
  const CodedStream coded =
      exact ? encode_palette_plane<true>(values, plane, commonest, lut, buffer, out.words_end,
                                         out.escapes_end, out.room)
            : encode_palette_plane<false>(values, plane, commonest, lut, buffer, out.words_end,
                                          out.escapes_end, out.room);
  return write_section(smem, 32, palette.size, coded, out);
}

// A plane in byte mode; turns into a constant plane where it holds one byte only.
template <class Access, int kWidth>
__device__ bool put_byte_plane(const BlockValues<Access, kWidth>& values, unsigned plane,
                               PlaneSmem* smem, PlaneOut& out, unsigned& mode) {
  const unsigned lane = lane_id();
  count_plane(values, plane, smem);
  std::uint32_t best = 0;  // commonest byte, the smallest of equals
#pragma unroll
  for (unsigned i = 0; i < 8; ++i) {
    const std::uint32_t v = i * kWarp + lane;
    best = max(best, smem->histogram[v] << 8 | (255 - v));
  }
  best = 255 - (__reduce_max_sync(kAll, best) & 255);
  if (smem->histogram[best] == values.n) {
    mode = 1;
    std::uint8_t* at = out.take(16);
    if (at == nullptr) return false;
    if (lane < 16) at[lane] = lane == 0 ? static_cast<std::uint8_t>(best) : 0;
    return true;
  }
  make_byte_model(smem->histogram, smem->model);
  const std::uint32_t table_bytes = write_byte_table(smem);
  const bool exact = fill_byte_lut(smem->model, smem->lut);
  const std::uint32_t lut = shared_address(smem->lut), buffer = shared_address(smem->words);
  const CodedStream coded =
      exact ? encode_byte_plane<true>(values, plane, best, lut, buffer, out.words_end, out.room)
            : encode_byte_plane<false>(values, plane, best, lut, buffer, out.words_end, out.room);
  return write_section(smem, table_bytes, 0, coded, out);
}

// block_encode.cpp's encode_entropy; plane modes in two bits a plane, or false.
template <class Access, int kWidth>
__device__ __noinline__ bool encode_entropy_planes(const BlockValues<Access, kWidth>& values,
                                                   DType dtype, PlaneSmem* smem, PlaneOut& out,
                                                   std::uint32_t& plane_modes) {
  take_sample(values, smem);
  const DevicePalette palette = make_palette(smem->histogram, smem->list);
  const bool may_use_palette = has_exponent_plane(dtype);
  unsigned top = 3;
  if (!may_use_palette || palette.cost >= palette.total * 5 * 256) {
    const std::uint32_t bytes_cost = make_byte_model(smem->histogram, smem->model);
    const std::uint32_t limit = palette.total * (8 * 256 - 8 * 256 / 32);
    top = bytes_cost < limit && (!may_use_palette || bytes_cost < palette.cost) ? 2
          : may_use_palette && palette.cost < limit                             ? 3
                                                                                : 0;
  }
  std::uint32_t modes = top << (2 * (kWidth - 1));
  for (unsigned p = 0; p + 1 < kWidth; ++p)
    if (worth_coding(smem->nibbles[p][lane_id() / 16][lane_id() & 15])) modes |= 2u << (2 * p);
  if (modes == 0) return false;
  for (unsigned p = 0; p < kWidth; ++p)
    if ((modes >> (2 * p) & 3) == 0) out.raw_bytes += static_cast<std::uint32_t>(align16(values.n));
  out.used = out.raw_bytes;
  if (out.used > out.room) return false;
  plane_modes = 0;
  for (unsigned p = 0; p < kWidth; ++p) {
    unsigned mode = modes >> (2 * p) & 3;
    if (mode == 3 && !put_palette_plane(values, p, palette, smem, out)) return false;
    if (mode == 2 && !put_byte_plane(values, p, smem, out, mode)) return false;
    plane_modes |= mode << (2 * p);
    __syncwarp();
  }
  return out.used < out.room;
}

// The raw planes of a block, straight to its payload; returns checksum terms.
template <class Access, int kWidth>
__device__ __noinline__ std::uint64_t write_raw_planes(BlockValues<Access, kWidth> values,
                                                       std::uint32_t plane_modes,
                                                       std::uint8_t* payload) {
  const auto part = static_cast<std::uint32_t>(align16(values.n));
  std::uint64_t sum = 0;
  const auto put = [&](std::uint32_t value, const std::uint32_t(&words)[kWidth]) {
    std::uint32_t at = value;
#pragma unroll
    for (unsigned p = 0; p < kWidth; ++p) {
      if ((plane_modes >> (2 * p) & 3) != 0) continue;
      const std::uint32_t bytes = plane_of<kWidth>(words, p);
      __stcs(reinterpret_cast<std::uint32_t*>(payload + at), bytes);
      sum += checksum_term(bytes, at / 4);
      at += part;
    }
  };
  // All loads of a batch are under way before the first store.
  constexpr std::uint32_t kBatch = kWidth == 1 ? 8 : 16 / kWidth;
  std::uint32_t first = 0;
#pragma unroll 1
  for (; first + kBatch * 128 <= values.n; first += kBatch * 128) {
    std::uint32_t words[kBatch][kWidth];
#pragma unroll
    for (std::uint32_t u = 0; u < kBatch; ++u)
      values.load_whole(first + u * 128 + 4 * lane_id(), words[u]);
#pragma unroll
    for (std::uint32_t u = 0; u < kBatch; ++u) put(first + u * 128 + 4 * lane_id(), words[u]);
  }
#pragma unroll 1
  for (std::uint32_t value = first + 4 * lane_id(); value < part; value += 128) {
    std::uint32_t words[kWidth];
    values.load(value, words);
    put(value, words);
  }
  return sum;
}

}  // namespace snug::cuda
