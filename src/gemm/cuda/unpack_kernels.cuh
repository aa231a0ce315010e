// gemm/cuda/unpack_kernels.cuh - from a packed matrix back to rows.
#pragma once
#include "gemm/cuda/tile_decode.cuh"

namespace snug::gemm {

struct UnpackParams : PackedParts {
  std::uint64_t n, k, first_strip, num_strips, tiles_per_strip;
  std::uint16_t* w;  // where row first_strip * kStripRows is written
  std::uint64_t ld;
  bool wide;  // w can be written in pieces of 16 bytes
};

template <Kind kKind>
__global__ void __launch_bounds__(256) unpack_tiles(const __grid_constant__ UnpackParams p) {
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint64_t tile_idx = blockIdx.x * std::uint64_t{8} + threadIdx.x / 32;
  if (tile_idx >= p.num_strips * p.tiles_per_strip) return;
  const std::uint64_t strip = p.first_strip + tile_idx / p.tiles_per_strip;
  const std::uint64_t col0 = tile_idx % p.tiles_per_strip * kTileCols;
  constexpr std::uint32_t kTileBytes = tile_bytes_of(kKind);
  const std::uint64_t at_tile = strip * p.tiles_per_strip + col0 / kTileCols;
  const std::uint8_t* tile = p.tiles + at_tile * kTileBytes;
  HalfFragments halves[2];
  if constexpr (kKind == Kind::kRaw) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      halves[i / 4].set(i % 4, __ldcs(reinterpret_cast<const uint4*>(tile) + i * 32 + lane));
  } else {
    const LanePalette palette =
        single_tile_palette(p.escapes + at_tile, __ldg(p.palettes + strip), p.overflows, lane);
    HalfCodes codes[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto* at = reinterpret_cast<const uint4*>(tile + h * kHalfBytes) + lane;
      codes[h] = {{__ldcs(at), __ldcs(at + 32)}, __ldcs(at + 64)};
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) decode_half(halves[h], codes[h], palette, h);
  }
  const std::uint64_t row0 = strip * kStripRows;
  std::uint16_t* const out = p.w - p.first_strip * kStripRows * p.ld;
  if (p.wide && row0 + kStripRows <= p.n && col0 + kTileCols <= p.k) {
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i) {
      // 32 adjacent columns of eight rows: every store fills whole sectors.
      const std::uint32_t half = i / 4, frag = i / 2 % 2 * 2, reg = i % 2;
      const auto& a = halves[half].a;
      std::uint32_t v[4] = {a[frag][reg], a[frag][reg + 2], a[frag + 1][reg], a[frag + 1][reg + 2]};
      transpose_in_quad(v, lane);  // lane c now has eight columns of the c-th of these
      const Place first{lane & ~3u, 0, reg + lane % 2 * 2, frag + lane % 4 / 2, half};
      store_global(out + (row0 + row_of(first)) * p.ld + col0 + col_of(first),
                   {v[0], v[1], v[2], v[3]});
    }
    return;
  }
#pragma unroll
  for (std::uint32_t bits = 0; bits < 64; ++bits) {
    const Place place = place_from(bits * 32 | lane);
    const std::uint64_t row = row0 + row_of(place), col = col0 + col_of(place);
    if (row < p.n && col < p.k)
      out[row * p.ld + col] = static_cast<std::uint16_t>(
          halves[place.half].a[place.frag][place.reg] >> 16 * place.elem);
  }
}

}  // namespace snug::gemm
