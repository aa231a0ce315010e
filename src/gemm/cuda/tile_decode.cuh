// gemm/cuda/tile_decode.cuh - from the bytes of a tile to the registers of mma's operand A.
#pragma once
#include "gemm/cuda/linear_params.h"
#include "gemm/cuda/warp_mma.cuh"

namespace snug::gemm {

// Four fragments of sixteen columns: what a lane holds of half a tile.
struct HalfFragments {
  std::uint32_t a[4][4];

  __device__ __forceinline__ void set(int i, uint4 v) {
    a[i][0] = v.x, a[i][1] = v.y, a[i][2] = v.z, a[i][3] = v.w;
  }
};

// What a lane reads of half a tile of kind kFixed.
struct HalfCodes {
  uint4 low[2], nibbles;
};

inline constexpr std::uint32_t kNoOverflow = ~0u;

// How one lane reads one tile: through the palette of its strip, changed by escapes, or
// with the upper bytes of an overflow.
struct LanePalette {
  uint2 entries;
  std::uint32_t overflow;
  const uint4* upper;  // with an overflow: this lane's part of it
};

// Without branches: all lanes see every escape of the tile; it changes the palette of one.
__device__ __forceinline__ void apply_escape(uint2& palette, std::uint32_t escape,
                                             std::uint32_t lane) {
  const bool mine = (escape & (kEscapeValid | 31)) == (kEscapeValid | lane);
  const std::uint32_t shift = escape >> 2 & 24;  // of the entry in its word
  const std::uint32_t mask = mine ? 0xFFu << shift : 0, value = (escape >> 8 & 0x7F) << shift;
  const std::uint32_t in_y = (escape >> 7 & 1) != 0 ? mask : 0, in_x = mask ^ in_y;
  palette.x = (palette.x & ~in_x) | (value & in_x);
  palette.y = (palette.y & ~in_y) | (value & in_y);
}

// Escape words of eight tiles, held by the warp: lane 4j + i has word i of the j-th. They
// take one register and one load; most tiles have no escape.
struct EscapeWords {
  std::uint32_t word = 0, marked = 0;  // marked: lanes whose word is in use

  __device__ __forceinline__ void take(std::uint32_t loaded) {
    word = loaded;
    marked = __ballot_sync(kAllLanes, loaded != 0);
  }
  __device__ __forceinline__ LanePalette palette_of(std::uint32_t tile, uint2 palette,
                                                    const Overflows& overflows,
                                                    std::uint32_t lane) const {
    LanePalette out;
    out.entries = palette;
    out.overflow = kNoOverflow;
    const std::uint32_t first = tile * kEscapeWords;
    if ((marked >> first & 15) == 0) return out;
#pragma unroll 1
    for (std::uint32_t i = 0; i < kEscapeWords; ++i) {
      const std::uint32_t escapes = __shfl_sync(kAllLanes, word, first + i);
      if (escapes == 0) break;
      if (escapes == kOverflowMark) {
        const std::uint32_t overflow = __shfl_sync(kAllLanes, word, first + 1);
        if (overflow < overflows.count) {
          out.overflow = overflow;
          out.upper = reinterpret_cast<const uint4*>(overflows.bytes +
                                                     std::uint64_t{overflow} * kOverflowBytes) +
                      lane;
        }
        break;
      }
      apply_escape(out.entries, escapes, lane);
      apply_escape(out.entries, escapes >> 16, lane);
    }
    return out;
  }
};

// Four bytes of the palette by the four lower digits of `indices`, each at most 7. Unlike
// __byte_perm, this does not mask them once more.
__device__ __forceinline__ std::uint32_t permute(uint2 palette, std::uint32_t indices) {
  std::uint32_t out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(palette.x), "r"(palette.y), "r"(indices));
  return out;
}

// One byte permute turns four indices into four bytes, one operation adds their signs.
__device__ __forceinline__ uint2 upper_bytes(std::uint32_t nibbles, uint2 palette) {
  const std::uint32_t indices = nibbles & 0x77777777u;
  return {permute(palette, indices) | (nibbles & 0x80808080u),
          permute(palette, indices >> 16) | (nibbles << 4 & 0x80808080u)};
}

__device__ __forceinline__ void join_bytes(std::uint32_t (&a)[4], std::uint32_t low01,
                                           std::uint32_t low23, uint2 high) {
  a[0] = __byte_perm(low01, high.x, 0x5140);
  a[1] = __byte_perm(low01, high.x, 0x7362);
  a[2] = __byte_perm(low23, high.y, 0x5140);
  a[3] = __byte_perm(low23, high.y, 0x7362);
}

// Half of an overflow; off the fast path.
__device__ __forceinline__ void load_overflow(uint2 (&high)[4], const uint4* upper) {
  const uint4 v = __ldg(upper), w = __ldg(upper + 32);
  high[0] = {v.x, v.y}, high[1] = {v.z, v.w}, high[2] = {w.x, w.y}, high[3] = {w.z, w.w};
}

// Eight weights in ten operations.
__device__ __forceinline__ void decode_half(HalfFragments& half, const HalfCodes& codes,
                                            const LanePalette& palette, std::uint32_t which_half) {
  uint2 high[4] = {
      upper_bytes(codes.nibbles.x, palette.entries), upper_bytes(codes.nibbles.y, palette.entries),
      upper_bytes(codes.nibbles.z, palette.entries), upper_bytes(codes.nibbles.w, palette.entries)};
  // Opaque to the compiler, which would otherwise duplicate the code that follows; wgmma
  // must not be in a branch.
  std::uint32_t number = palette.overflow;
  asm volatile("" : "+r"(number));
  if (__builtin_expect(number != kNoOverflow, 0))
    load_overflow(high, palette.upper + which_half * 64);
    // Both paths join here, so that operand A of wgmma is written outside of branches;
    // otherwise the compiler waits for each wgmma.
#pragma unroll
  for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(high[i].x), "+r"(high[i].y));
  join_bytes(half.a[0], codes.low[0].x, codes.low[0].y, high[0]);
  join_bytes(half.a[1], codes.low[0].z, codes.low[0].w, high[1]);
  join_bytes(half.a[2], codes.low[1].x, codes.low[1].y, high[2]);
  join_bytes(half.a[3], codes.low[1].z, codes.low[1].w, high[3]);
}

// The palette for a single tile.
__device__ __forceinline__ LanePalette single_tile_palette(const uint4* escapes, uint2 palette,
                                                           const Overflows& overflows,
                                                           std::uint32_t lane) {
  EscapeWords words;
  words.take(lane < kEscapeWords ? __ldg(reinterpret_cast<const std::uint32_t*>(escapes) + lane)
                                 : 0);
  return words.palette_of(0, palette, overflows, lane);
}

// What a lane loads of half a tile from shared memory before it decodes; `at` is its
// place in the tile.
template <Kind kKind>
struct HalfInput;
template <>
struct HalfInput<Kind::kFixed> {
  HalfCodes codes;

  __device__ __forceinline__ void load(std::uint32_t at, std::uint32_t half) {
    at += half * kHalfBytes;
    codes = {{load_shared_b128(at), load_shared_b128(at + 512)}, load_shared_b128(at + 1024)};
  }
  // A word of every load.
  __device__ __forceinline__ std::uint32_t any() const {
    return codes.low[0].x | codes.low[1].x | codes.nibbles.x;
  }
  __device__ __forceinline__ void decode(HalfFragments& out, std::uint32_t half,
                                         const LanePalette& palette) const {
    decode_half(out, codes, palette, half);
  }
};
template <>
struct HalfInput<Kind::kRaw> {
  HalfFragments weights;

  __device__ __forceinline__ void load(std::uint32_t at, std::uint32_t half) {
#pragma unroll
    for (int i = 0; i < 4; ++i) weights.set(i, load_shared_b128(at + half * 2048 + i * 512));
  }
  __device__ __forceinline__ std::uint32_t any() const {
    return weights.a[0][0] | weights.a[1][0] | weights.a[2][0] | weights.a[3][0];
  }
  __device__ __forceinline__ void decode(HalfFragments& out, std::uint32_t,
                                         const LanePalette&) const {
    out = weights;
  }
};

}  // namespace snug::gemm
