// cuda/encode_any.cuh - the path that codes any block of any type, plane by
// plane, into scratch memory: codec/block_encode.cpp by one warp. Also raw and
// constant blocks.
#pragma once
#include "codec/sample.h"
#include "codec/sections.h"
#include "cuda/entropy_tables.cuh"
#include "cuda/tensor_access.cuh"

namespace snug::cuda {

// Scratch of one warp: a payload, then the words of one section, which are
// written from the end.
__host__ __device__ constexpr std::uint64_t any_payload_room(unsigned width, int log2_block) {
  return (std::uint64_t{width} << log2_block) + 256;
}
__host__ __device__ constexpr std::uint64_t any_words_room(int log2_block) {
  return (std::uint64_t{2} << log2_block) + 256;
}

struct alignas(16) AnySmem {
  std::uint32_t histogram[256];
  std::uint32_t list[kPaletteListWords];
  std::uint32_t nibbles[7][2][16];
  ByteModel model;
  std::uint8_t lut[256];
  std::uint8_t table[codec::entropy::kMaxByteTableBytes + 2];
};

// The elements of one block.
template <class Access>
struct Elements {
  Access src;
  std::uint64_t pos;
  std::uint32_t n;
  unsigned width;
  bool rotate;

  __device__ std::uint64_t raw(std::uint32_t i) const { return load_elem(src, pos + std::uint64_t{i} * width, width); }
  __device__ std::uint64_t at(std::uint32_t i) const { return rotate ? rotate_left1(raw(i), width) : raw(i); }
  __device__ std::uint32_t byte(std::uint32_t i, unsigned plane) const {
    return static_cast<std::uint32_t>(at(i) >> (8 * plane)) & 255;
  }
};

template <class Access>
__device__ bool is_constant_block(const Elements<Access>& e) {
  const std::uint64_t first = e.raw(0);
  for (std::uint32_t base = 0; base < e.n; base += kWarp) {
    const std::uint32_t i = base + lane_id();
    if (__any_sync(kAll, i < e.n && e.raw(i) != first)) return false;
  }
  return true;
}

template <class Access>
__device__ void take_sample(const Elements<Access>& e, AnySmem& smem) {
  for (unsigned i = lane_id(); i < 256; i += kWarp) smem.histogram[i] = 0;
  for (unsigned i = lane_id(); i < 7 * 32; i += kWarp) (&smem.nibbles[0][0][0])[i] = 0;
  __syncwarp();
  const auto stride = static_cast<std::uint32_t>(codec::sample_stride(e.n));
  for (std::uint32_t i = lane_id(); i / 16 * stride * 16 < e.n; i += kWarp) {
    const std::uint32_t run = i / 16, at = (run * stride + run % stride) * 16 + i % 16;
    if (at >= e.n) continue;
    const std::uint64_t v = e.at(at);
    atomicAdd(&smem.histogram[v >> (8 * e.width - 8) & 255], 1u);
    if (e.width == 1 || run % 4 != 0) continue;
    for (unsigned p = 0; p + 1 < e.width; ++p) {
      atomicAdd(&smem.nibbles[p][0][v >> (8 * p) & 15], 1u);
      atomicAdd(&smem.nibbles[p][1][v >> (8 * p + 4) & 15], 1u);
    }
  }
  __syncwarp();
}

// Room left in the scratch payload; kernels give up where the CPU does.
struct AnyOut {
  std::uint8_t* payload;
  std::uint8_t* words_end;
  std::uint32_t used;
  std::uint32_t room;

  __device__ std::uint8_t* take(std::uint64_t num_bytes) {
    if (num_bytes > room - used) return nullptr;
    std::uint8_t* at = payload + used;
    used += static_cast<std::uint32_t>(num_bytes);
    return at;
  }
};

// rANS over symbol bytes symbol(i), i < num_symbols, then pads: the reference
// coder with lanes for its inner loop. Returns the number of words and leaves
// the lane's state.
template <class Symbol>
__device__ std::uint32_t rans_encode_any(Symbol symbol, std::uint32_t num_symbols, std::uint32_t pad,
                                         bool conditional, const ByteModel& model, std::uint8_t* words_end,
                                         std::uint32_t& state) {
  const unsigned lane = lane_id();
  const unsigned lanes_above = lane == 31 ? 0 : kAll << (lane + 1);
  std::uint32_t x = codec::entropy::kStateLow, used = 0;
  for (std::uint32_t group = (num_symbols + 127) / 128; group-- > 0;) {
    for (int step = 3; step >= 0; --step) {
      const std::uint32_t i = group * 128 + 4 * lane + static_cast<std::uint32_t>(step);
      const std::uint32_t pair = i < num_symbols ? symbol(i) : pad;
      const std::uint32_t a = pair & 15, b = pair >> 4, row = conditional ? 1 + a : 0;
      const std::uint32_t f1 = model.freq[0][a], f2 = model.freq[row][b];
      const bool full = (x >> 16) >= f1 * f2;
      const unsigned mask = __ballot_sync(kAll, full);
      if (full) {
        *reinterpret_cast<std::uint16_t*>(words_end - used - 2 - 2 * __popc(mask & lanes_above)) =
            static_cast<std::uint16_t>(x);
        x >>= 16;
      }
      used += 2 * __popc(mask);
      x = (x / f2 << 8) + x % f2 + model.start[row][b];
      x = (x / f1 << 8) + x % f1 + model.start[0][a];
    }
  }
  __syncwarp();
  state = x;
  return used / 2;
}

// Header, states, table and words of a section; escapes are the caller's.
__device__ inline std::uint8_t* write_section(const AnySmem& smem, std::uint32_t table_bytes, std::uint32_t palette_size,
                                              std::uint32_t num_words, std::uint32_t num_escapes, std::uint32_t state,
                                              AnyOut& out) {
  const unsigned lane = lane_id();
  const std::uint64_t words_at = codec::kTableOffset + align16(table_bytes);
  const std::uint64_t total = align16(words_at + 2 * std::uint64_t{num_words} + num_escapes);
  std::uint8_t* at = out.take(total);
  if (at == nullptr) return nullptr;
  auto* words = reinterpret_cast<std::uint32_t*>(at);
  if (lane == 0) {
    words[0] = num_words;
    words[1] = num_escapes;
    words[2] = table_bytes | palette_size << 16;
    words[3] = 0;
  }
  words[4 + lane] = state;
  for (std::uint32_t i = lane; i < align16(table_bytes); i += kWarp)
    at[codec::kTableOffset + i] = i < table_bytes ? smem.table[i] : 0;
  for (std::uint32_t i = lane; i < num_words; i += kWarp)
    reinterpret_cast<std::uint16_t*>(at + words_at)[i] =
        reinterpret_cast<const std::uint16_t*>(out.words_end)[static_cast<std::int64_t>(i) - num_words];
  for (std::uint64_t i = words_at + 2 * std::uint64_t{num_words} + num_escapes + lane; i < total; i += kWarp) at[i] = 0;
  return at + words_at + 2 * std::uint64_t{num_words};
}

template <class Access>
__device__ bool any_palette_section(const Elements<Access>& e, unsigned plane, const DevicePalette& palette,
                                    AnySmem& smem, AnyOut& out) {
  const unsigned lane = lane_id();
  for (unsigned i = lane; i < 256; i += kWarp) smem.lut[i] = static_cast<std::uint8_t>(palette.size);
  __syncwarp();
  if (lane < palette.size) smem.lut[palette.value] = static_cast<std::uint8_t>(lane);
  std::uint32_t end = lane < 16 ? palette.freq : 0;
  for (int d = 1; d < 16; d *= 2) {
    const std::uint32_t below = __shfl_up_sync(kAll, end, d);
    if (lane >= static_cast<unsigned>(d)) end += below;
  }
  if (lane < 16) {
    smem.model.freq[0][lane] = static_cast<std::uint16_t>(palette.freq);
    smem.model.start[0][lane] = static_cast<std::uint16_t>(end - palette.freq);
    smem.table[lane] = static_cast<std::uint8_t>(palette.value);
    smem.table[16 + lane] = static_cast<std::uint8_t>(palette.freq);
  }
  __syncwarp();
  const auto index = [&](std::uint32_t i) -> std::uint32_t { return i < e.n ? smem.lut[e.byte(i, plane)] : 0; };
  std::uint32_t num_escapes = 0;
  for (std::uint32_t i = lane; i < e.n; i += kWarp) num_escapes += index(i) == palette.size;
  num_escapes = __reduce_add_sync(kAll, num_escapes);
  std::uint32_t state;
  const std::uint32_t num_words = rans_encode_any([&](std::uint32_t i) { return index(2 * i) | index(2 * i + 1) << 4; },
                                                  (e.n + 1) / 2, 0, false, smem.model, out.words_end, state);
  std::uint8_t* escapes = write_section(smem, 32, palette.size, num_words, num_escapes, state, out);
  if (escapes == nullptr) return false;
  for (std::uint32_t base = 0; base < e.n; base += kWarp) {
    const std::uint32_t i = base + lane;
    const bool escaped = i < e.n && index(i) == palette.size;
    const unsigned mask = __ballot_sync(kAll, escaped);
    if (escaped) escapes[__popc(mask & ((1u << lane) - 1))] = static_cast<std::uint8_t>(e.byte(i, plane));
    escapes += __popc(mask);
  }
  return true;
}

// entropy::write_byte_model, by lane 0; returns the bytes used.
__device__ inline std::uint32_t write_byte_table(AnySmem& smem) {
  std::uint32_t used = 0;
  if (lane_id() == 0) {
    for (unsigned row = 0; row < 17; ++row) {
      if (row > 0 && smem.model.freq[0][row - 1] == 0) continue;
      unsigned mask = 0;
      bool uniform = row > 0;
      for (unsigned s = 0; s < 16; ++s) {
        mask |= static_cast<unsigned>(smem.model.freq[row][s] != 0) << s;
        uniform &= smem.model.freq[row][s] == codec::entropy::kFreqTotal / 16;
      }
      if (uniform) mask = 0;
      smem.table[used++] = static_cast<std::uint8_t>(mask);
      smem.table[used++] = static_cast<std::uint8_t>(mask >> 8);
      for (unsigned s = 0; s < 16; ++s)
        if (mask >> s & 1) smem.table[used++] = static_cast<std::uint8_t>(smem.model.freq[row][s] - 1);
    }
  }
  __syncwarp();
  return __shfl_sync(kAll, used, 0);
}

// A plane in byte mode; turns into a constant plane where it holds one byte only.
template <class Access>
__device__ bool any_bytes_section(const Elements<Access>& e, unsigned plane, AnySmem& smem, AnyOut& out,
                                  unsigned& mode) {
  const unsigned lane = lane_id();
  for (unsigned i = lane; i < 256; i += kWarp) smem.histogram[i] = 0;
  __syncwarp();
  for (std::uint32_t i = lane; i < e.n; i += kWarp) atomicAdd(&smem.histogram[e.byte(i, plane)], 1u);
  __syncwarp();
  const std::uint32_t first = e.byte(0, plane);
  if (smem.histogram[first] == e.n) {
    mode = 1;
    std::uint8_t* at = out.take(16);
    if (at == nullptr) return false;
    if (lane < 16) at[lane] = lane == 0 ? static_cast<std::uint8_t>(first) : 0;
    return true;
  }
  std::uint32_t best = 0;  // commonest byte, the smallest of equals
  for (unsigned i = 0; i < 8; ++i) {
    const std::uint32_t v = i * kWarp + lane;
    best = max(best, smem.histogram[v] << 8 | (255 - v));
  }
  best = 255 - (__reduce_max_sync(kAll, best) & 255);
  make_byte_model(smem.histogram, smem.model);
  const std::uint32_t table_bytes = write_byte_table(smem);
  const auto swapped = [](std::uint32_t b) { return (b << 4 & 0xF0) | b >> 4; };
  std::uint32_t state;
  const std::uint32_t num_words = rans_encode_any([&](std::uint32_t i) { return swapped(e.byte(i, plane)); }, e.n,
                                                  swapped(best), true, smem.model, out.words_end, state);
  return write_section(smem, table_bytes, 0, num_words, 0, state, out) != nullptr;
}

// block_encode.cpp's encode_entropy; plane modes in two bits a plane, or false.
template <class Access>
__device__ bool encode_entropy_any(const Elements<Access>& e, DType dtype, AnySmem& smem, AnyOut& out,
                                   std::uint32_t& plane_modes) {
  const unsigned lane = lane_id();
  take_sample(e, smem);
  const DevicePalette palette = make_palette(smem.histogram, smem.list);
  unsigned modes[8] = {};
  const bool may_use_palette = has_exponent_plane(dtype);
  unsigned top = 3;
  if (!may_use_palette || palette.cost >= palette.total * 5 * 256) {
    const std::uint32_t bytes_cost = make_byte_model(smem.histogram, smem.model);
    const std::uint32_t limit = palette.total * (8 * 256 - 8 * 256 / 32);
    top = bytes_cost < limit && (!may_use_palette || bytes_cost < palette.cost) ? 2
          : may_use_palette && palette.cost < limit                             ? 3
                                                                                : 0;
  }
  bool any_coded = top != 0;
  for (unsigned p = 0; p + 1 < e.width; ++p) {
    modes[p] = worth_coding(smem.nibbles[p][lane / 16][lane & 15]) ? 2 : 0;
    any_coded |= modes[p] != 0;
  }
  modes[e.width - 1] = top;
  if (!any_coded) return false;
  for (unsigned p = 0; p < e.width; ++p) {
    if (modes[p] != 0) continue;
    std::uint8_t* at = out.take(align16(e.n));
    if (at == nullptr) return false;
    for (std::uint32_t i = lane; i < align16(e.n); i += kWarp)
      at[i] = i < e.n ? static_cast<std::uint8_t>(e.byte(i, p)) : 0;
  }
  plane_modes = 0;
  for (unsigned p = 0; p < e.width; ++p) {
    if (modes[p] == 3 && !any_palette_section(e, p, palette, smem, out)) return false;
    if (modes[p] == 2 && !any_bytes_section(e, p, smem, out, modes[p])) return false;
    plane_modes |= modes[p] << (2 * p);
    __syncwarp();
  }
  return out.used < out.room;
}

// The 7 commonest values of the upper 7 exponent bits, in falling order, as two
// registers; `histogram` counts whole exponents.
__device__ inline uint2 make_fixed_palette(const std::uint32_t* histogram) {
  const unsigned lane = lane_id();
  std::uint32_t keys[4];
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned v = i * kWarp + lane;
    keys[i] = ((histogram[2 * v] + histogram[2 * v + 1]) << 7 | (127 - v)) + 1;  // 0: taken
  }
  std::uint64_t palette = 0;
  for (int s = 0; s < 7; ++s) {
    const std::uint32_t best = __reduce_max_sync(kAll, max(max(keys[0], keys[1]), max(keys[2], keys[3])));
    palette |= std::uint64_t{127 - ((best - 1) & 127)} << (8 * s);
#pragma unroll
    for (unsigned i = 0; i < 4; ++i)
      if (keys[i] == best) keys[i] = 0;
  }
  return {static_cast<std::uint32_t>(palette), static_cast<std::uint32_t>(palette >> 32)};
}

// block_encode.cpp's encode_fixed.
template <class Access>
__device__ bool encode_fixed_any(Elements<Access> e, DType dtype, AnySmem& smem, AnyOut& out,
                                 std::uint32_t& plane_modes) {
  const unsigned lane = lane_id();
  if (dtype != DType::kBF16 && dtype != DType::kF32) return false;
  take_sample(e, smem);
  const uint2 palette = make_fixed_palette(smem.histogram);
  for (unsigned i = lane; i < 128; i += kWarp) smem.lut[i] = 7;
  __syncwarp();
  if (lane == 0)
    for (int i = 7; i-- > 0;)
      smem.lut[(i < 4 ? palette.x : palette.y) >> (i % 4 * 8) & 255] = static_cast<std::uint8_t>(i);
  __syncwarp();
  e.rotate = false;
  plane_modes = 0;
  if (dtype == DType::kF32)
    for (unsigned p = 0; p < 3; ++p) {
      const std::uint32_t first = e.byte(0, p);
      bool same = true;
      for (std::uint32_t i = lane; i < e.n; i += kWarp) same &= e.byte(i, p) == first;
      if (__all_sync(kAll, same)) plane_modes |= 1u << (2 * p);
    }
  for (unsigned pass = 0; pass < 2; ++pass)
    for (unsigned p = 0; p + 1 < e.width; ++p) {
      if ((plane_modes >> (2 * p) & 3) != pass) continue;
      const std::uint32_t used = pass == 0 ? e.n : 1;
      std::uint8_t* at = out.take(align16(used));
      if (at == nullptr) return false;
      for (std::uint32_t i = lane; i < align16(used); i += kWarp)
        at[i] = i < used ? static_cast<std::uint8_t>(e.byte(i, p)) : 0;
    }
  std::uint8_t* nibbles = out.take(align16(codec::fixed_nibble_bytes(e.n)));
  std::uint8_t* head = out.take(codec::FixedHeader::kBytes);
  if (nibbles == nullptr || head == nullptr) return false;
  auto* escapes = reinterpret_cast<std::uint32_t*>(out.payload + out.used);
  const std::uint32_t room = (out.room - out.used) / 4;
  std::uint32_t num_escapes = 0;
  const std::uint32_t num_words = static_cast<std::uint32_t>(align16(codec::fixed_nibble_bytes(e.n)) / 4);
  for (std::uint32_t base = 0; base < num_words; base += kWarp) {
    const std::uint32_t group = base + lane;
    std::uint32_t word = 0, flags = 0;
    for (unsigned i = 0; i < 8; ++i) {
      const std::uint32_t at = group * 8 + i;
      if (group >= num_words || at >= e.n) break;
      const std::uint32_t byte = e.byte(at, e.width - 1), idx = smem.lut[byte & 127];
      word |= idx << (4 * i) | (byte >> 7) << (i < 4 ? 8 * i + 7 : 8 * (i - 4) + 3);
      flags |= static_cast<std::uint32_t>(idx == 7) << i;
    }
    if (group < num_words) reinterpret_cast<std::uint32_t*>(nibbles)[group] = word;
    std::uint32_t before = __popc(flags);
    for (int d = 1; d < 32; d *= 2) {
      const std::uint32_t below = __shfl_up_sync(kAll, before, d);
      if (lane >= static_cast<unsigned>(d)) before += below;
    }
    const std::uint32_t total = __shfl_sync(kAll, before, 31);
    std::uint32_t next = num_escapes + before - __popc(flags);
    for (; flags != 0; flags &= flags - 1, ++next) {
      const std::uint32_t at = group * 8 + static_cast<std::uint32_t>(__ffs(static_cast<int>(flags)) - 1);
      if (next < room) escapes[next] = at | e.byte(at, e.width - 1) << 24;
    }
    num_escapes += total;
    __syncwarp();
  }
  if (num_escapes > room || out.take(align16(std::uint64_t{num_escapes} * 4)) == nullptr) return false;
  if (lane < align16(num_escapes * 4) / 4 - num_escapes) escapes[num_escapes + lane] = 0;
  if (lane < 4)
    reinterpret_cast<std::uint32_t*>(head)[lane] = lane == 0 ? num_escapes : lane == 1 ? palette.x : lane == 2 ? palette.y : 0;
  return out.used < out.room;
}

}  // namespace snug::cuda
