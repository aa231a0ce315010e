// cuda/encode_planes.cuh - one warp codes one block of any type with the entropy
// codec, as codec/block_encode.cpp does: looks at a sample, chooses a mode for each
// plane, and leaves the coded planes in scratch memory. Raw planes go straight from
// the tensor to the frame once the block's place is known.
#pragma once
#include "codec/sample.h"
#include "codec/sections.h"
#include "cuda/entropy_tables.cuh"
#include "cuda/plane_merge.cuh"
#include "cuda/symbol_coder.cuh"

namespace snug::cuda {

// Scratch of one warp: coded planes, then the words of one of them, which are
// written from the end, and its escapes, likewise.
__host__ __device__ constexpr std::uint64_t sections_room(unsigned width, int log2_block) {
  return (std::uint64_t{width} << log2_block) + 1024;
}
__host__ __device__ constexpr std::uint64_t words_scratch(unsigned width, int log2_block) {
  return (std::uint64_t{width} << log2_block) + 2048;
}
// Only exponents, of wider types, have escapes.
__host__ __device__ constexpr std::uint64_t escapes_scratch(unsigned width, int log2_block) {
  return width == 1 ? 0 : std::uint64_t{1} << log2_block;
}

struct alignas(1024) PlaneSmem {
  std::uint8_t ring[kWordRing];  // words on their way to scratch memory
  union {
    uint2 lut[16 + 256];
    struct {
      std::uint32_t histogram[256];
      std::uint32_t list[kPaletteListWords];
    };
  };
  std::uint32_t nibbles[7][2][16];
  ByteModel model;
  std::uint8_t table[codec::entropy::kMaxByteTableBytes + 14];
};

// The block, and what one warp has made of it so far. Sections take their room as
// the CPU's encoder takes it: who runs out of it gives up.
struct PlaneOut {
  std::uint8_t* sections;  // scratch
  std::uint8_t* words_end;
  std::uint8_t* escapes_end;
  std::uint32_t raw_bytes;  // of raw planes, which come first
  std::uint32_t used;
  std::uint32_t room;

  __device__ std::uint8_t* take(std::uint64_t num_bytes) {
    if (num_bytes > room - used) return nullptr;
    std::uint8_t* at = sections + (used - raw_bytes);
    used += static_cast<std::uint32_t>(num_bytes);
    return at;
  }
};

template <class Access, int kWidth>
struct BlockValues {
  Access src;
  std::uint64_t pos;
  std::uint32_t n;
  bool rotate;

  // Four values from `value` on, rotated; those past the end are zero.
  __device__ __forceinline__ void load(std::uint32_t value, std::uint32_t (&words)[kWidth]) const {
    const std::uint64_t at = pos + std::uint64_t{value} * kWidth;
    if (value + 4 <= n) {
      load_four<kWidth>(src, at, words);
    } else {
      const Words<kWidth> some = load_some<kWidth>(
          src, at, value < n ? static_cast<std::int32_t>((n - value) * kWidth) : 0);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) words[i] = some.w[i];
    }
    if (rotate) rotate_ahead<kWidth>(words);
  }
  __device__ __forceinline__ std::uint32_t plane(std::uint32_t value, unsigned p) const {
    std::uint32_t words[kWidth];
    load(value, words);
    return plane_of<kWidth>(words, p);
  }
};

// Whether all elements of a block are the same.
template <class Access>
__device__ __noinline__ bool is_constant_block(Access src, std::uint64_t pos,
                                               std::uint32_t num_bytes, unsigned width) {
  std::uint32_t first[2] = {};
  for (unsigned i = 0; i < 8; ++i)
    first[i / 4] |= std::uint32_t{src.load_byte(pos + i % width)} << (i % 4 * 8);
  bool same = true;
  for (std::uint32_t i = num_bytes / 16 * 16 + lane_id(); i < num_bytes; i += kWarp)
    same &= src.load_byte(pos + i) == static_cast<std::uint8_t>(first[i % 8 / 4] >> (i % 4 * 8));
#pragma unroll 1
  for (std::uint32_t base = 0; base < num_bytes / 16; base += kWarp) {
    if (base + lane_id() < num_bytes / 16) {
      const uint4 v = src.peek16(pos + 16 * std::uint64_t{base + lane_id()});
      same &= v.x == first[0] && v.y == first[1] && v.z == first[0] && v.w == first[1];
    }
    if (!__all_sync(kAll, same)) return false;
  }
  return __all_sync(kAll, same);
}

// Counts the sampled values: top bytes, and the nibbles of the planes below.
template <class Access, int kWidth>
__device__ __noinline__ void take_sample(BlockValues<Access, kWidth> values, PlaneSmem* smem) {
  const std::uint32_t histogram = shared_address(smem->histogram),
                      nibbles = shared_address(smem->nibbles);
  for (unsigned i = lane_id(); i < 256; i += kWarp) store_shared(histogram + 4 * i, 0u);
  for (unsigned i = lane_id(); i < 7 * 32; i += kWarp) store_shared(nibbles + 4 * i, 0u);
  __syncwarp();
  const auto stride = static_cast<std::uint32_t>(codec::sample_stride(values.n));
  for (std::uint32_t i = lane_id(); i / 4 * stride * 16 < values.n; i += kWarp) {
    const std::uint32_t run = i / 4, at = (run * stride + run % stride) * 16 + i % 4 * 4;
    if (at >= values.n) continue;
    const std::uint32_t here = min(values.n - at, 4u);
    std::uint32_t words[kWidth];
    values.load(at, words);
    const std::uint32_t top = plane_of<kWidth>(words, kWidth - 1);
    for (std::uint32_t k = 0; k < here; ++k) count_shared(histogram + (top >> (8 * k) & 255) * 4);
    if constexpr (kWidth > 1) {
      if (run % 4 != 0) continue;
#pragma unroll
      for (int p = 0; p < kWidth - 1; ++p) {
        const std::uint32_t bytes = plane_of<kWidth>(words, static_cast<unsigned>(p)),
                            counts = nibbles + 128 * static_cast<unsigned>(p);
        for (std::uint32_t k = 0; k < here; ++k) {
          count_shared(counts + (bytes >> (8 * k) & 15) * 4);
          count_shared(counts + 64 + (bytes >> (8 * k + 4) & 15) * 4);
        }
      }
    }
  }
  __syncwarp();
}

// Exact counts of one plane.
template <class Access, int kWidth>
__device__ __noinline__ void count_plane(BlockValues<Access, kWidth> values, unsigned plane,
                                         PlaneSmem* smem) {
  const std::uint32_t histogram = shared_address(smem->histogram);
  for (unsigned i = lane_id(); i < 256; i += kWarp) store_shared(histogram + 4 * i, 0u);
  __syncwarp();
  constexpr std::uint32_t kUnroll = kWidth == 8 ? 1 : 4;
  for (std::uint32_t base = 4 * lane_id(); base < values.n; base += kUnroll * 128) {
    std::uint32_t bytes[kUnroll];
#pragma unroll
    for (std::uint32_t u = 0; u < kUnroll; ++u)
      bytes[u] = values.plane(min(base + u * 128, values.n), plane);
#pragma unroll
    for (std::uint32_t u = 0; u < kUnroll; ++u) {
      const std::uint32_t value = base + u * 128;
#pragma unroll
      for (unsigned k = 0; k < 4; ++k)
        if (value + k < values.n) count_shared(histogram + (bytes[u] >> (8 * k) & 255) * 4);
    }
  }
  __syncwarp();
}

// Codes one plane as bytes, from the last group to the first. The padding decodes
// to `pad`. Tables are exact, or some frequencies need a second look. Gives up with
// more words than `room` bytes hold: such a section is not used.
template <bool kExact, class Access, int kWidth>
__device__ __noinline__ CodedStream encode_byte_plane(BlockValues<Access, kWidth> values,
                                                      unsigned plane, std::uint32_t pad,
                                                      std::uint32_t lut, std::uint32_t ring,
                                                      std::uint8_t* words_end, std::uint32_t room) {
  WordSink sink(ring, words_end);
  std::uint32_t x = codec::entropy::kStateLow;
  const unsigned lanes_from = lanes_from_here();
  auto group = static_cast<std::int32_t>((values.n + 127) / 128) - 1;
  std::uint32_t words[kWidth];
  values.load(static_cast<std::uint32_t>(group) * 128 + 4 * lane_id(), words);
  for (; group >= 0; --group) {
    const std::uint32_t value = static_cast<std::uint32_t>(group) * 128 + 4 * lane_id();
    std::uint32_t bytes = plane_of<kWidth>(words, plane);
    if (group > 0) values.load(value - 128, words);
    if (value + 4 > values.n) {
      const std::uint32_t kept = value < values.n ? (1u << (8 * (values.n - value))) - 1 : 0;
      bytes = (bytes & kept) | (pad * 0x01010101u & ~kept);
    }
    uint2 first[4], second[4];
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const std::uint32_t byte = __byte_perm(bytes, 0, 0x4440 | step);
      first[step] = load_shared8(lut + (byte >> 4) * 8);
      second[step] = load_shared8(lut + 128 + byte * 8);
    }
#pragma unroll
    for (int step = 3; step >= 0; --step)
      encode_pair<kExact>(x, first[step], second[step], sink, lanes_from);
    sink.flush_chunk();
    if (sink.num_bytes() > room) break;  // too many to be of use
  }
  return {sink.finish(), 0, x};
}

// The same for a palette plane, 8 values a lane. Values beyond the block count as
// the commonest one.
template <bool kExact, class Access, int kWidth>
__device__ __noinline__ CodedStream encode_palette_plane(
    BlockValues<Access, kWidth> values, unsigned plane, std::uint32_t commonest, std::uint32_t lut,
    std::uint32_t ring, std::uint8_t* words_end, std::uint8_t* escapes_end, std::uint32_t room) {
  WordSink sink(ring, words_end);
  std::uint32_t x = codec::entropy::kStateLow, num_escapes = 0;
  const unsigned lanes_from = lanes_from_here();
  for (auto group = static_cast<std::int32_t>((values.n + 255) / 256) - 1; group >= 0; --group) {
    const std::uint32_t value = static_cast<std::uint32_t>(group) * 256 + 8 * lane_id();
    uint2 bytes = {values.plane(value, plane), values.plane(value + 4, plane)};
    const std::uint32_t here = value + 8 <= values.n ? 8 : value < values.n ? values.n - value : 0;
    if (here < 8) {
      const std::uint64_t kept = (std::uint64_t{1} << (8 * here)) - 1;
      bytes.x = (bytes.x & static_cast<std::uint32_t>(kept)) |
                (commonest * 0x01010101u & ~static_cast<std::uint32_t>(kept));
      bytes.y = (bytes.y & static_cast<std::uint32_t>(kept >> 32)) |
                (commonest * 0x01010101u & ~static_cast<std::uint32_t>(kept >> 32));
    }
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
#pragma unroll
    for (int i = 3; i >= 0; --i)
      encode_pair<kExact>(x, symbols[2 * i], symbols[2 * i + 1], sink, lanes_from);
    sink.flush_chunk();
    if (sink.num_bytes() > room) break;
  }
  return {sink.finish(), num_escapes, x};
}

// entropy::write_byte_model, symbol by lane; returns the bytes used.
inline __device__ __noinline__ std::uint32_t write_byte_table(PlaneSmem* smem) {
  const unsigned lane = lane_id();
  std::uint32_t used = 0;
#pragma unroll 1
  for (unsigned row = 0; row < 17; ++row) {
    if (row > 0 && smem->model.freq[0][row - 1] == 0) continue;
    const std::uint32_t freq = lane < 16 ? smem->model.freq[row][lane] : 0;
    unsigned mask = __ballot_sync(kAll, freq != 0);
    if (row > 0 && __all_sync(kAll, lane >= 16 || freq == codec::entropy::kFreqTotal / 16))
      mask = 0;
    if (lane < 2) smem->table[used + lane] = static_cast<std::uint8_t>(mask >> (8 * lane));
    used += 2;
    if (mask >> lane & 1)
      smem->table[used + __popc(mask & ((1u << lane) - 1))] = static_cast<std::uint8_t>(freq - 1);
    used += __popc(mask);
  }
  __syncwarp();
  return used;
}

// Header, states, table, words and escapes of a section, one after the other.
inline __device__ __noinline__ bool write_section(const PlaneSmem* smem, std::uint32_t table_bytes,
                                                  std::uint32_t palette_size, CodedStream coded,
                                                  PlaneOut& out) {
  const unsigned lane = lane_id();
  const std::uint32_t words_at =
      static_cast<std::uint32_t>(codec::kTableOffset + align16(table_bytes));
  const std::uint32_t escapes_at = words_at + 2 * coded.num_words;
  const auto total = static_cast<std::uint32_t>(align16(escapes_at + coded.num_escapes));
  std::uint8_t* at = out.take(total);
  if (at == nullptr) return false;
  auto* head = reinterpret_cast<std::uint32_t*>(at);
  if (lane == 0)
    *reinterpret_cast<uint4*>(at) = {coded.num_words, coded.num_escapes,
                                     table_bytes | palette_size << 16, 0};
  head[4 + lane] = coded.state;
  for (std::uint32_t i = lane; i < align16(table_bytes); i += kWarp)
    at[codec::kTableOffset + i] = i < table_bytes ? smem->table[i] : 0;
  // Words are at even addresses: whole registers, or registers shifted by half.
  const std::uint8_t* words = out.words_end - 2 * coded.num_words;
  const std::uint32_t odd =
      static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(words) & 2) * 8;
  const auto* aligned = reinterpret_cast<const std::uint32_t*>(words - odd / 8);
  const std::uint32_t num_pairs = coded.num_words / 2;
#pragma unroll 4
  for (std::uint32_t i = lane; i < num_pairs; i += kWarp)
    head[words_at / 4 + i] =
        odd == 0 ? aligned[i] : __funnelshift_r(aligned[i], aligned[i + 1], 16);
  if (lane == 0 && coded.num_words % 2 != 0)
    reinterpret_cast<std::uint16_t*>(at + words_at)[coded.num_words - 1] =
        reinterpret_cast<const std::uint16_t*>(words)[coded.num_words - 1];
  for (std::uint32_t i = lane; i < coded.num_escapes; i += kWarp)
    at[escapes_at + i] = out.escapes_end[static_cast<std::int64_t>(i) - coded.num_escapes];
  for (std::uint32_t i = escapes_at + coded.num_escapes + lane; i < total; i += kWarp) at[i] = 0;
  __syncwarp();
  return true;
}

template <class Access, int kWidth>
__device__ bool put_palette_plane(const BlockValues<Access, kWidth>& values, unsigned plane,
                                  const DevicePalette& palette, PlaneSmem* smem, PlaneOut& out) {
  const bool exact = fill_palette_lut(palette.freq, palette.value, palette.size, smem->lut);
  if (lane_id() < 16) {
    smem->table[lane_id()] = static_cast<std::uint8_t>(palette.value);
    smem->table[16 + lane_id()] = static_cast<std::uint8_t>(palette.freq);
  }
  __syncwarp();
  const std::uint32_t commonest = __shfl_sync(kAll, palette.value, 0);
  const std::uint32_t lut = shared_address(smem->lut), ring = shared_address(smem->ring);
  const CodedStream coded =
      exact ? encode_palette_plane<true>(values, plane, commonest, lut, ring, out.words_end,
                                         out.escapes_end, out.room)
            : encode_palette_plane<false>(values, plane, commonest, lut, ring, out.words_end,
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
  const std::uint32_t lut = shared_address(smem->lut), ring = shared_address(smem->ring);
  const CodedStream coded =
      exact ? encode_byte_plane<true>(values, plane, best, lut, ring, out.words_end, out.room)
            : encode_byte_plane<false>(values, plane, best, lut, ring, out.words_end, out.room);
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
#pragma unroll 2
  for (std::uint32_t value = 4 * lane_id(); value < part; value += 128) {
    std::uint32_t words[kWidth];
    values.load(value, words);
    std::uint32_t at = value;
#pragma unroll
    for (unsigned p = 0; p < kWidth; ++p) {
      if ((plane_modes >> (2 * p) & 3) != 0) continue;
      const std::uint32_t bytes = plane_of<kWidth>(words, p);
      __stcs(reinterpret_cast<std::uint32_t*>(payload + at), bytes);
      sum += checksum_term(bytes, at / 4);
      at += part;
    }
  }
  return sum;
}

}  // namespace snug::cuda
