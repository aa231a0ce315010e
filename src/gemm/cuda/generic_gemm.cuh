// gemm/cuda/generic_gemm.cuh - y = x W^T on any GPU from sm_80 on. Simple rather than fast:
// no pipeline through shared memory, x straight from the caches.
#pragma once
#include "gemm/cuda/linear_output.cuh"

namespace snug::gemm {

inline constexpr int kGenericWarps = 8;
inline constexpr int kGenericTokens = 32;  // of one thread block

// Two adjacent values of x; zero beyond the edges.
__device__ __forceinline__ std::uint32_t load_x_pair(const LinearParams& p, std::uint32_t token,
                                                     std::uint32_t col) {
  if (token >= p.m || col >= p.k) return 0;
  const std::uint16_t* at = p.x + token * p.ldx + col;
  if (p.x_aligned && col + 1 < p.k) return *reinterpret_cast<const std::uint32_t*>(at);
  return at[0] | (col + 1 < p.k ? static_cast<std::uint32_t>(at[1]) << 16 : 0);
}

// One thread block: one strip, 32 tokens; its warps share the tiles of the strip.
template <Kind kKind>
__global__ void __launch_bounds__(kGenericWarps * 32)
    generic_gemm(const __grid_constant__ LinearParams p) {
  __shared__ float4 sums[kGenericWarps][kGenericTokens / 8][32];
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, strip = blockIdx.x;
  const std::uint32_t token0 = blockIdx.y * kGenericTokens;
  constexpr std::uint32_t kTileBytes = tile_bytes_of(kKind);
  const uint2 palette = kKind == Kind::kRaw ? uint2{} : __ldg(p.palettes + strip);
  float acc[kGenericTokens / 8][4] = {};
  for (std::uint32_t tile = warp; tile < p.tiles_per_strip; tile += kGenericWarps) {
    const std::uint64_t tile_idx = std::uint64_t{strip} * p.tiles_per_strip + tile;
    const std::uint8_t* at = p.tiles + tile_idx * kTileBytes;
    LanePalette lane_palette{};
    if constexpr (kKind == Kind::kFixed)
      lane_palette = single_tile_palette(p.escapes + tile_idx, palette, p.overflows, lane);
    for (std::uint32_t half = 0; half < 2; ++half) {
      HalfFragments a;
      if constexpr (kKind == Kind::kRaw) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          a.set(i, __ldg(reinterpret_cast<const uint4*>(at + half * 2048) + i * 32 + lane));
      } else {
        const auto* codes = reinterpret_cast<const uint4*>(at + half * kHalfBytes) + lane;
        decode_half(a, {{__ldg(codes), __ldg(codes + 32)}, __ldg(codes + 64)}, lane_palette, half);
      }
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) {
        const std::uint32_t col = tile * kTileCols + half * 64 + i * 16 + lane % 4 * 2;
#pragma unroll
        for (std::uint32_t t = 0; t < kGenericTokens / 8; ++t) {
          const std::uint32_t token = token0 + t * 8 + lane / 4;
          mma_16x8x16(acc[t], a.a[i], load_x_pair(p, token, col), load_x_pair(p, token, col + 8));
        }
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kGenericTokens / 8; ++t)
    sums[warp][t][lane] = {acc[t][0], acc[t][1], acc[t][2], acc[t][3]};
  __syncthreads();
  if (warp >= kGenericTokens / 8) return;
  float4 sum = sums[0][warp][lane];
  for (int w = 1; w < kGenericWarps; ++w) sum = add(sum, sums[w][warp][lane]);
  write_strip(p, sum, strip, token0 + warp * 8, lane);
}

}  // namespace snug::gemm
