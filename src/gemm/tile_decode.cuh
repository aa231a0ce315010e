// gemm/tile_decode.cuh - from the bytes of a tile to the registers of mma's operand A.
#pragma once
#include "gemm/sm90_ptx.cuh"
#include "gemm/tile_format.h"

namespace snug::gemm {

// Four fragments of sixteen columns: what a lane holds of half a tile.
struct HalfFragments {
  std::uint32_t a[4][4];
};

// What a lane reads of half a nibble tile.
struct HalfCodes {
  uint4 low[2], nibbles;
};

// Eight weights in eleven operations: the palette turns four indices at once into
// four bytes, one operation adds their signs, two more join them with the low bytes.
__device__ __forceinline__ void decode_fragment(std::uint32_t (&a)[4], std::uint32_t nibbles, std::uint32_t low01,
                                                std::uint32_t low23, uint2 palette) {
  const std::uint32_t indices = nibbles & 0x77777777u;
  const std::uint32_t high01 = __byte_perm(palette.x, palette.y, indices) | (nibbles & 0x80808080u);
  const std::uint32_t high23 = __byte_perm(palette.x, palette.y, indices >> 16) | (nibbles << 4 & 0x80808080u);
  a[0] = __byte_perm(low01, high01, 0x5140);
  a[1] = __byte_perm(low01, high01, 0x7362);
  a[2] = __byte_perm(low23, high23, 0x5140);
  a[3] = __byte_perm(low23, high23, 0x7362);
}

__device__ __forceinline__ void decode_half(HalfFragments& half, const HalfCodes& codes, uint2 palette) {
  decode_fragment(half.a[0], codes.nibbles.x, codes.low[0].x, codes.low[0].y, palette);
  decode_fragment(half.a[1], codes.nibbles.y, codes.low[0].z, codes.low[0].w, palette);
  decode_fragment(half.a[2], codes.nibbles.z, codes.low[1].x, codes.low[1].y, palette);
  decode_fragment(half.a[3], codes.nibbles.w, codes.low[1].z, codes.low[1].w, palette);
}

// `patch` is the same in the whole warp, so only the lane it names pays attention.
// Selects over all registers: an index known only at run time would move them to memory.
__device__ __forceinline__ void apply_patch(HalfFragments& half, std::uint32_t patch, std::uint32_t which_half,
                                            std::uint32_t lane) {
  if ((patch >> 10 & 1) != which_half) return;
  const std::uint32_t slot = (patch & 31) == lane ? patch >> 6 & 15 : 16;
  const bool upper = (patch >> 5 & 1) != 0;
  const std::uint32_t keep = upper ? 0x80FFFFFFu : 0xFFFF80FFu;
  const std::uint32_t bits = (patch >> 11 & 0x7F) << (upper ? 24 : 8);
#pragma unroll
  for (std::uint32_t i = 0; i < 16; ++i)
    if (slot == i) half.a[i / 4][i % 4] = (half.a[i / 4][i % 4] & keep) | bits;
}

// The patches of a matrix that did not fit into their tiles.
struct Overflow {
  const std::uint32_t* words;
  std::uint32_t num_words;
};

// Length of the list at a place in the overflow. Bounds are checked here, since
// nothing else looks at these words before.
__device__ __forceinline__ std::uint32_t overflow_count(const Overflow& overflow, std::uint32_t at) {
  return at >= overflow.num_words ? 0 : min(__ldg(overflow.words + at), overflow.num_words - at - 1);
}

// Patch words of eight tiles, held by the warp: lane 4j + i has word i of the j-th.
// One register and one load for eight tiles, of which most have no patch at all.
struct PatchWords {
  std::uint32_t word = 0, marked = 0;  // marked: lanes whose word is in use

  __device__ __forceinline__ void take(std::uint32_t loaded) {
    word = loaded;
    marked = __ballot_sync(~0u, loaded != 0);
  }
  __device__ __forceinline__ uint4 of(std::uint32_t tile) const {
    if ((marked >> 4 * tile & 15) == 0) return {};
    return {__shfl_sync(~0u, word, 4 * tile), __shfl_sync(~0u, word, 4 * tile + 1),
            __shfl_sync(~0u, word, 4 * tile + 2), __shfl_sync(~0u, word, 4 * tile + 3)};
  }
};

// Kept as one small loop: most tiles have no patch, and code that is jumped over
// still has to be fetched.
__device__ __forceinline__ void apply_patches(HalfFragments& half, uint4 words, std::uint32_t which_half,
                                              std::uint32_t lane, const Overflow& overflow) {
  std::uint32_t patch = words.x, at = 0, left = 0;
#pragma unroll 1
  while (patch != 0) {
    if ((patch & kPatchMore) != 0) {
      at = patch & kPatchIndexMask;
      left = overflow_count(overflow, at);
    } else {
      apply_patch(half, patch, which_half, lane);
    }
    if (left != 0) {
      --left;
      patch = __ldg(overflow.words + ++at) & ~kPatchMore;
    } else {
      words = {words.y, words.z, words.w, 0};
      patch = words.x;
    }
  }
}

}  // namespace snug::gemm
