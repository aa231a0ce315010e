// cuda/decode_any.cuh - raw blocks, and the path that restores any other block
// plane by plane: rare layouts, and types that have no path of their own.
#pragma once
#include "codec/entropy/model.h"
#include "codec/sections.h"
#include "cuda/decode_fixed.cuh"
#include "cuda/decode_palette.cuh"

namespace snug::cuda {

// Tables of a byte stream: row 0 for the first symbol, row 1 + s for the second
// after s. A palette stream has row 0 only.
struct StreamTables {
  std::uint8_t symbol_of_slot[17][256];
  std::uint16_t freq[17][16];
  std::uint16_t start[17][16];
};

union DecodeSmem {
  PaletteSmem palette;
  StreamTables tables;
};

template <class Team, class Access>
__device__ Reason decode_raw(const std::uint8_t* payload, const DeviceEntry& e, std::uint32_t n, unsigned width,
                             const Access& dst, std::uint64_t pos, std::uint64_t& sum) {
  const std::uint64_t raw = std::uint64_t{n} * width;
  if (e.plane_modes != 0 || e.num_bytes != align16(raw)) return kReasonPayload;
  const uint4* vecs = reinterpret_cast<const uint4*>(payload);
  constexpr int kUnroll = 4;
  const std::uint32_t full = static_cast<std::uint32_t>(raw / 16);
  std::uint32_t i = Team::idx();
  for (; i + (kUnroll - 1) * Team::kSize < full; i += kUnroll * Team::kSize) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) v[u] = __ldcs(vecs + i + u * Team::kSize);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      dst.store16(pos + 16 * std::uint64_t{i + u * Team::kSize}, v[u]);
      sum += checksum_term(v[u], i + u * Team::kSize);
    }
  }
  for (; 16 * std::uint64_t{i} < raw; i += Team::kSize) {
    const uint4 v = __ldg(vecs + i);
    store_upto16(dst, pos + 16 * std::uint64_t{i}, v, static_cast<std::int64_t>(raw - 16 * std::uint64_t{i}));
    sum += checksum_term(v, i);
  }
  return kReasonNone;
}

// One value, over and over.
template <class Team, class Access>
__device__ Reason decode_constant(const std::uint8_t* payload, const DeviceEntry& e, std::uint32_t n, unsigned width,
                                  const Access& dst, std::uint64_t pos, std::uint64_t& sum) {
  if (e.plane_modes != 0 || e.num_bytes != 16) return kReasonPayload;
  const uint4 stored = __ldg(reinterpret_cast<const uint4*>(payload));
  if (Team::idx() == 0) sum += checksum_term(stored, 0);
  uint4 v = stored;
  if (width == 1) v.x = __byte_perm(v.x, 0, 0x0000);
  if (width == 2) v.x = __byte_perm(v.x, 0, 0x1010);
  if (width < 8) v.y = v.x;
  v.z = v.x;
  v.w = v.y;
  const std::uint64_t raw = std::uint64_t{n} * width;
#pragma unroll 1
  for (std::uint64_t at = 16 * Team::idx(); at < raw; at += 16 * Team::kSize)
    store_upto16(dst, pos + at, v, static_cast<std::int64_t>(raw - at));
  return kReasonNone;
}

// Fills starts and slots of `num_rows` rows; false if one does not add up to 256.
__device__ inline bool finish_tables(StreamTables& t, unsigned num_rows) {
  bool good = true;
  for (unsigned row = lane_id(); row < num_rows; row += kWarp) {
    std::uint32_t start = 0;
    for (unsigned s = 0; s < 16; ++s) {
      t.start[row][s] = static_cast<std::uint16_t>(start);
      start += t.freq[row][s];
    }
    good &= start == codec::entropy::kFreqTotal;
  }
  __syncwarp();
  if (!__all_sync(kAll, good)) return false;
  for (unsigned row = 0; row < num_rows; ++row)
    for (unsigned s = 0; s < 16; ++s)
      for (unsigned k = lane_id(); k < t.freq[row][s]; k += kWarp)
        t.symbol_of_slot[row][t.start[row][s] + k] = static_cast<std::uint8_t>(s);
  __syncwarp();
  return true;
}

// entropy::read_byte_model, by lane 0.
__device__ inline bool read_byte_tables(const std::uint8_t* src, std::uint32_t num_bytes, StreamTables& t) {
  bool good = true;
  if (lane_id() == 0) {
    std::uint32_t used = 0;
    for (unsigned row = 0; row < 17 && good; ++row) {
      const bool unused = row > 0 && t.freq[0][row - 1] == 0;
      unsigned mask = 0;
      if (!unused) {
        good = num_bytes - used >= 2;
        if (!good) break;
        mask = src[used] | src[used + 1] << 8;
        used += 2;
        good = mask != 0 || row > 0;
      }
      for (unsigned s = 0; s < 16; ++s) {
        std::uint32_t freq = mask == 0 ? codec::entropy::kFreqTotal / 16 : 0;
        if (mask >> s & 1) {
          good &= used < num_bytes;
          if (good) freq = src[used++] + 1u;
        }
        t.freq[row][s] = static_cast<std::uint16_t>(freq);
      }
    }
    good &= used == num_bytes;
  }
  __syncwarp();
  return __shfl_sync(kAll, good, 0) && finish_tables(t, 17);
}

__device__ inline bool read_palette_table(const std::uint8_t* src, std::uint32_t size, StreamTables& t,
                                          std::uint32_t& value) {
  const unsigned lane = lane_id();
  const std::uint32_t byte = src[lane];
  value = __shfl_sync(kAll, byte, lane & 15);
  if (lane >= 16) t.freq[0][lane - 16] = static_cast<std::uint16_t>(byte);
  const bool stray = lane < 16 ? lane >= size && byte != 0 : lane - 16 > size && byte != 0;
  __syncwarp();
  return size >= 1 && size <= 15 && !__any_sync(kAll, stray) && finish_tables(t, 1);
}

// Decodes num_groups groups; after each, emit(group, symbols) gets the lane's
// four symbol bytes. Returns whether the stream was intact.
template <class Emit>
__device__ bool rans_decode_any(const std::uint8_t* words, std::uint32_t num_words, std::uint32_t x, bool conditional,
                                const StreamTables& t, std::uint32_t num_groups, Emit emit) {
  const unsigned lanes_below = (1u << lane_id()) - 1;
  std::uint32_t used = 0;
  for (std::uint32_t group = 0; group < num_groups; ++group) {
    std::uint32_t symbols = 0;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      std::uint32_t slot = x & 255;
      const std::uint32_t a = t.symbol_of_slot[0][slot];
      x = t.freq[0][a] * (x >> 8) + slot - t.start[0][a];
      const std::uint32_t row = conditional ? 1 + a : 0;
      slot = x & 255;
      const std::uint32_t b = t.symbol_of_slot[row][slot];
      x = t.freq[row][b] * (x >> 8) + slot - t.start[row][b];
      symbols |= (a | b << 4) << (8 * step);
      const bool needs_word = x < kStateLow;
      const unsigned needing = __ballot_sync(kAll, needs_word);
      const std::uint32_t at = used + __popc(needing & lanes_below);
      if (needs_word && at < num_words) x = x << 16 | __ldg(reinterpret_cast<const std::uint16_t*>(words) + at);
      used += __popc(needing);
    }
    emit(group, symbols);
  }
  return __all_sync(kAll, x == kStateLow && used == num_words);
}

// One plane to bytes at stride `width` from pos + plane.
template <class Access>
struct PlaneTarget {
  const Access& dst;
  std::uint64_t pos;
  std::uint32_t n;
  unsigned width;

  __device__ void put(std::uint32_t i, std::uint32_t byte) const {
    if (i < n) dst.store_byte(pos + std::uint64_t{i} * width, static_cast<std::uint8_t>(byte));
  }
};

// An entropy-coded section at `at`; moves `at` behind it.
template <class Access>
__device__ Reason decode_section_any(const std::uint8_t* payload, std::uint32_t num_bytes, bool is_palette,
                                     const PlaneTarget<Access>& out, StreamTables& tables, std::uint64_t& at) {
  const unsigned lane = lane_id();
  if (num_bytes - at < codec::kTableOffset) return kReasonPayload;
  const uint4 head = __ldg(reinterpret_cast<const uint4*>(payload + at));
  const std::uint32_t table_bytes = head.z & 0xFFFF, palette_size = head.z >> 16 & 255;
  const std::uint32_t num_symbols = is_palette ? (out.n + 1) / 2 : out.n;
  const std::uint64_t words_at = at + codec::kTableOffset + align16(table_bytes);
  const std::uint64_t escapes_at = words_at + 2 * std::uint64_t{head.x};
  const std::uint64_t end = align16(escapes_at + head.y);
  if (head.w != 0 || head.z >> 24 != 0 || head.x > codec::padded_symbols(num_symbols) ||
      head.y > (is_palette ? out.n : 0) || end > num_bytes)
    return kReasonPayload;
  const std::uint8_t* table = payload + at + codec::kTableOffset;
  std::uint32_t value = 0;
  const bool good = is_palette ? table_bytes == 32 && read_palette_table(table, palette_size, tables, value)
                               : palette_size == 0 && read_byte_tables(table, table_bytes, tables);
  if (!good) return kReasonPayload;
  const std::uint32_t state = __ldg(reinterpret_cast<const std::uint32_t*>(payload + at + codec::kStatesOffset) + lane);
  const auto num_groups = static_cast<std::uint32_t>(codec::padded_symbols(num_symbols) / 128);
  bool intact;
  if (is_palette) {
    std::uint32_t used = 0;
    intact = rans_decode_any(payload + words_at, head.x, state, false, tables, num_groups,
                             [&](std::uint32_t group, std::uint32_t symbols) {
                               const std::uint32_t first = group * 256 + 8 * lane;
                               std::uint32_t count = 0;
                               for (unsigned i = 0; i < 8; ++i)
                                 count += first + i < out.n && (symbols >> (4 * i) & 15) == palette_size;
                               std::uint32_t before = count;
                               for (int d = 1; d < 32; d *= 2) {
                                 const std::uint32_t below = __shfl_up_sync(kAll, before, d);
                                 if (lane >= static_cast<unsigned>(d)) before += below;
                               }
                               std::uint32_t next = used + before - count;
                               for (unsigned i = 0; i < 8; ++i) {
                                 const std::uint32_t idx = symbols >> (4 * i) & 15;
                                 std::uint32_t byte = __shfl_sync(kAll, value, static_cast<int>(idx));
                                 if (idx == palette_size && first + i < out.n) {
                                   byte = next < head.y ? payload[escapes_at + next] : 0;
                                   ++next;
                                 }
                                 out.put(first + i, byte);
                               }
                               used += __shfl_sync(kAll, before, 31);
                             });
    intact = intact && used == head.y;
  } else {
    intact = rans_decode_any(payload + words_at, head.x, state, true, tables, num_groups,
                             [&](std::uint32_t group, std::uint32_t symbols) {
                               // Symbol bytes hold the high nibble first.
                               const std::uint32_t bytes = (symbols << 4 & 0xF0F0F0F0u) | (symbols >> 4 & 0x0F0F0F0Fu);
                               for (unsigned i = 0; i < 4; ++i)
                                 out.put(group * 128 + 4 * lane + i, bytes >> (8 * i) & 255);
                             });
  }
  at = end;
  return intact ? kReasonNone : kReasonStream;
}

template <class Access>
__device__ Reason decode_entropy_any(const std::uint8_t* payload, const DeviceEntry& e, std::uint32_t n, DType dtype,
                                     const Access& dst, std::uint64_t pos, StreamTables& tables) {
  const unsigned lane = lane_id(), width = width_of(dtype);
  std::uint64_t at = 0;
  if (width < 8 && e.plane_modes >> (2 * width) != 0) return kReasonPayload;
  for (unsigned p = 0; p < width; ++p) {
    if (e.mode(p) != 0) continue;
    if (at + align16(n) > e.num_bytes) return kReasonPayload;
    const PlaneTarget<Access> out{dst, pos + p, n, width};
    for (std::uint32_t i = lane; i < n; i += kWarp) out.put(i, payload[at + i]);
    at += align16(n);
  }
  for (unsigned p = 0; p < width; ++p) {
    const PlaneTarget<Access> out{dst, pos + p, n, width};
    if (e.mode(p) == 1) {
      if (at + 16 > e.num_bytes) return kReasonPayload;
      for (std::uint32_t i = lane; i < n; i += kWarp) out.put(i, payload[at]);
      at += 16;
    } else if (e.mode(p) > 1) {
      const Reason reason = decode_section_any(payload, e.num_bytes, e.mode(p) == 3, out, tables, at);
      if (reason != kReasonNone) return reason;
    }
  }
  if (at != e.num_bytes) return kReasonPayload;
  if (!is_float(dtype)) return kReasonNone;
  __syncwarp();
  for (std::uint32_t i = lane; i < n; i += kWarp) {
    const std::uint64_t elem = pos + std::uint64_t{i} * width;
    store_elem(dst, elem, width, rotate_right1(load_elem(dst, elem, width), width));
  }
  return kReasonNone;
}

template <class Access>
__device__ Reason decode_fixed_any(const std::uint8_t* payload, const DeviceEntry& e, std::uint32_t n, DType dtype,
                                   const Access& dst, std::uint64_t pos) {
  if (dtype != DType::kBF16 && dtype != DType::kF32) return kReasonPayload;
  const unsigned width = width_of(dtype);
  FixedLayout layout;
  if (!open_fixed(payload, e.num_bytes, n, width, e, layout)) return kReasonPayload;
  for (std::uint32_t i = lane_id(); i < n; i += kWarp) {
    std::uint64_t v = 0;
#pragma unroll
    for (unsigned p = 0; p < 3; ++p)
      if (p + 1 < width)
        v |= std::uint64_t{e.mode(p) == 1 ? payload[layout.constants[p]] : payload[layout.planes[p] + i]} << (8 * p);
    const std::uint32_t word = reinterpret_cast<const std::uint32_t*>(payload + layout.nibbles)[i / 8];
    const uint2 high = fixed_high_bytes(word, layout.palette);
    v |= std::uint64_t{(i % 8 < 4 ? high.x : high.y) >> (i % 4 * 8) & 255} << (8 * (width - 1));
    store_elem(dst, pos + std::uint64_t{i} * width, width, v);
  }
  return patch_fixed_escapes<WarpTeam>(payload, layout, n, width, dst, pos);
}

// Everything by value: what a call takes by reference lives in memory in the
// callers' hot loops too.
template <class Access>
__device__ __noinline__ BlockResult decode_any(const std::uint8_t* payload, DeviceEntry e, std::uint32_t n, DType dtype,
                                             Access dst, std::uint64_t pos, DecodeSmem* smem) {
  const std::uint64_t sum = checksum_range<WarpTeam>(payload, 0, e.num_bytes / 16);
  __syncwarp();
  if (e.codec == static_cast<unsigned>(Codec::kEntropy))
    return {decode_entropy_any(payload, e, n, dtype, dst, pos, smem->tables), sum};
  if (e.codec == static_cast<unsigned>(Codec::kFixed)) return {decode_fixed_any(payload, e, n, dtype, dst, pos), sum};
  return {kReasonPayload, sum};
}

}  // namespace snug::cuda
