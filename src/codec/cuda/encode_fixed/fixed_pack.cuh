// codec/cuda/encode_fixed/fixed_pack.cuh - the arithmetic of the `fixed` encoder: eight values (a
// unit) become bytes of planes and one word of nibbles, without a table lookup a value.
#pragma once
#include "codec/cuda/frame/device_frame.cuh"
#include "codec/cuda/frame/plane_merge.cuh"
#include "codec/sections.h"

namespace snug::cuda {

// Offsets of the parts of a fixed payload.
struct FixedParts {
  u32 plane[3];
  u32 nibbles;
  u32 head;

  __device__ FixedParts(u32 n, unsigned width, u32 plane_modes) {
    u32 at = 0;
#pragma unroll
    for (unsigned pass = 0; pass < 2; ++pass)
#pragma unroll
      for (unsigned p = 0; p < 3; ++p) {
        if (p + 1 >= width || (plane_modes >> (2 * p) & 3) != pass) continue;
        plane[p] = at;
        at += pass == 0 ? static_cast<u32>(align16(n)) : 16;
      }
    nibbles = at;
    head = at + static_cast<u32>(align16(codec::fixed_nibble_bytes(n)));
  }
};

template <int kWidth>
struct UnitVecs {
  uint4 v[kWidth / 2];

  __device__ __forceinline__ void load(u32 stage, u32 unit) {
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i)
      v[i] = load_shared_b128(stage + 8 * kWidth * unit + 16 * static_cast<unsigned>(i));
  }
  // Bits in which values differ from the first one, which is repeated in `first`.
  __device__ __forceinline__ u32 differs(u32 first) const {
    u32 bits = 0;
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i)
      bits |= (v[i].x ^ first) | (v[i].y ^ first) | (v[i].z ^ first) | (v[i].w ^ first);
    return bits;
  }
  // Top bytes of values 0 to 3 and 4 to 7.
  __device__ __forceinline__ uint2 high() const {
    if constexpr (kWidth == 2) {
      return {__byte_perm(v[0].x, v[0].y, 0x7531), __byte_perm(v[0].z, v[0].w, 0x7531)};
    } else {
      const auto tops = [](uint4 a) {
        return __byte_perm(__byte_perm(a.x, a.y, 0x0073), __byte_perm(a.z, a.w, 0x0073), 0x5410);
      };
      return {tops(v[0]), tops(v[kWidth / 2 - 1])};
    }
  }
  // The planes: lows[p] holds byte p of each value.
  __device__ __forceinline__ void split(uint2 (&lows)[kWidth - 1], uint2& high_bytes) const {
    if constexpr (kWidth == 2) {
      lows[0] = {__byte_perm(v[0].x, v[0].y, 0x6420), __byte_perm(v[0].z, v[0].w, 0x6420)};
      high_bytes = high();
    } else {
      const uint4 a = transpose_bytes(v[0].x, v[0].y, v[0].z, v[0].w);
      const uint4& last = v[kWidth / 2 - 1];
      const uint4 b = transpose_bytes(last.x, last.y, last.z, last.w);
      lows[0] = {a.x, b.x};
      lows[1] = {a.y, b.y};
      lows[2] = {a.z, b.z};
      high_bytes = {a.w, b.w};
    }
  }
};

// The palette by slot, the lowest three bits of a top byte: one byte permute looks up four values.
// Of entries with the same slot the commonest is in the first table and the next one in the second;
// the others are looked up one by one.
struct PackTables {
  uint2 value, index;
};

// __byte_perm without the mask that the compiler adds to its selector.
__device__ __forceinline__ u32 pick_bytes(uint2 table, u32 selector) {
  u32 v;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(table.x), "r"(table.y), "r"(selector));
  return v;
}

__device__ __forceinline__ u32 first_set(u32 bits) {
  return static_cast<u32>(__ffs(static_cast<int>(bits)) - 1);
}

// A unit looked up in a table. Even stands for values 0 2 4 6, odd for 1 3 5 7.
struct Lookup {
  u32 selector;                 // nibbles 0 2 4 6 1 3 5 7
  u32 even, odd;                // top bytes
  u32 even_misses, odd_misses;  // bytes that are not 0

  Lookup() = default;
  __device__ __forceinline__ Lookup(uint2 high, uint2 value) {
    const u32 a = __byte_perm(high.x, high.y, 0x5140) & 0x07070707u;  // 0 4 1 5
    const u32 b = __byte_perm(high.x, high.y, 0x7362) & 0x07070707u;  // 2 6 3 7
    selector = a + (b << 4);
    even = __byte_perm(high.x, high.y, 0x6420);
    odd = __byte_perm(high.x, high.y, 0x7531);
    look_up(value);
  }
  __device__ __forceinline__ void look_up(uint2 value) {
    even_misses = (pick_bytes(value, selector) ^ even) & 0x7F7F7F7Fu;
    odd_misses = (pick_bytes(value, selector >> 16) ^ odd) & 0x7F7F7F7Fu;
  }
  // The same values in another table.
  __device__ __forceinline__ Lookup with(uint2 value) const {
    Lookup other = *this;
    other.look_up(value);
    return other;
  }
  __device__ __forceinline__ bool misses() const { return (even_misses | odd_misses) != 0; }
  // Bit 4i is set where value i misses.
  __device__ __forceinline__ u32 miss_flags() const {
    const u32 even_bits = (even_misses + 0x7F7F7F7Fu) >> 7 & 0x01010101u;
    const u32 odd_bits = (odd_misses + 0x7F7F7F7Fu) >> 3 & 0x10101010u;
    return even_bits | odd_bits;
  }
  __device__ __forceinline__ u32 top_byte(u32 i) const {
    return (i % 2 == 0 ? even : odd) >> (i / 2 * 8) & 255;
  }
  // Palette indices of the values that do not miss.
  __device__ __forceinline__ u32 indices(uint2 index) const {
    return pick_bytes(index, selector) + (pick_bytes(index, selector >> 16) << 4);
  }
};

// Adds the signs to the indices of a nibble word.
__device__ __forceinline__ u32 with_signs(u32 indices, uint2 high) {
  const u32 with_upper = indices | (high.y >> 4 & 0x08080808u);
  return with_upper | (high.x & 0x80808080u);
}

// Bits of a nibble word that belong to the values from `num_values` on.
__device__ __forceinline__ u32 rest_of_word(i32 num_values) {
  u32 bits = 0;
  for (i32 i = max(num_values, 0); i < 8; ++i)
    bits |= 7u << (4 * i) | 1u << (i < 4 ? 8 * i + 7 : 8 * (i - 4) + 3);
  return bits;
}

// Flags (bit 4i) of the first num_values.
__device__ __forceinline__ u32 existing_flags(i32 num_values) {
  return num_values >= 8   ? 0x11111111u
         : num_values <= 0 ? 0
                           : 0x11111111u & ((1u << (4 * num_values)) - 1);
}

}  // namespace snug::cuda
