// gemm/cuda/pack_kernels.cuh - packing on the GPU; the bytes of pack_host.cpp.
//
// One thread block packs one strip: it counts the upper bytes, chooses the palette, and writes
// the tiles while the strip is still in the L2 cache. Tiles that overflow are rare: a scan
// numbers them, and a last kernel, which returns at once where there are none, writes them.
#pragma once
#include "gemm/cuda/pack_params.cuh"
#include "gemm/cuda/tile_decode.cuh"

namespace snug::gemm {

inline constexpr int kPackThreads = 256;

// A weight; the padding of a part is zeros that count as weights.
__device__ __forceinline__ std::uint32_t load_weight(const PackParams& p, std::uint64_t row,
                                                     std::uint64_t col) {
  return row < p.row_end ? p.w[row * p.ld + col] : 0;
}

// Two adjacent weights; zero beyond the edge.
__device__ __forceinline__ std::uint32_t load_pair(const PackParams& p, std::uint64_t row,
                                                   std::uint64_t col) {
  if (row >= p.row_end || col >= p.k) return 0;
  const std::uint16_t* at = p.w + row * p.ld + col;
  if (p.pairs && col + 1 < p.k) return __ldg(reinterpret_cast<const std::uint32_t*>(at));
  return at[0] | (col + 1 < p.k ? static_cast<std::uint32_t>(at[1]) << 16 : 0);
}

__device__ __forceinline__ void count_strip(const PackParams& p, std::uint64_t strip,
                                            std::uint32_t* counts) {
  // A column of counters per lane, so that the lanes of a warp use different banks.
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint64_t row0 = strip * kStripRows,
                      rows = min(std::uint64_t{kStripRows}, p.row_end - row0),
                      padding = min(std::uint64_t{kStripRows}, p.n - row0) - rows;
  if (threadIdx.x == 0) atomicAdd(counts, static_cast<std::uint32_t>(padding * p.k));
  const std::uint64_t chunks = p.k / 8;
  const bool wide = p.ld % 8 == 0 && reinterpret_cast<std::uintptr_t>(p.w) % 16 == 0;
  for (std::uint64_t row = 0; row < rows; ++row) {
    const std::uint16_t* at = p.w + (strip * kStripRows + row) * p.ld;
    const std::uint64_t first_single = wide ? chunks * 8 : 0;
#pragma unroll 2
    for (std::uint64_t i = threadIdx.x; wide && i < chunks; i += kPackThreads) {
      const uint4 v = __ldg(reinterpret_cast<const uint4*>(at) + i);
#pragma unroll
      for (const std::uint32_t word : {v.x, v.y, v.z, v.w}) {
        atomicAdd(counts + (word >> 8 & 0x7F) * 32 + lane, 1u);
        atomicAdd(counts + (word >> 24 & 0x7F) * 32 + lane, 1u);
      }
    }
    for (std::uint64_t i = first_single + threadIdx.x; i < p.k; i += kPackThreads)
      atomicAdd(counts + (at[i] >> 8 & 0x7F) * 32 + lane, 1u);
  }
}

struct TileResult {
  std::uint32_t num_escaped;  // weights
  bool overflows;
};

// Gives values outside the palette entries that their lane does not use: writes the escapes,
// and their indices into the nibbles that this lane has just written.
__device__ __forceinline__ void escape_tile(const PackParams& p, std::uint64_t row0,
                                            std::uint64_t col0, const std::uint8_t* index_of,
                                            const LaneValues& values, std::uint8_t* tile,
                                            std::uint16_t* escapes, std::uint32_t lane) {
  __syncwarp();  // the words are zero before any escape is written
  std::uint32_t at = warp_inclusive_sum(values.num_missing()) - values.num_missing();
  for (std::uint32_t half = 0; half < 2; ++half) {
    std::uint64_t missing = half == 0 ? values.missing_low : values.missing_high;
    for (; missing != 0; missing &= missing - 1) {
      const auto value =
          static_cast<std::uint32_t>(__ffsll(static_cast<long long>(missing)) - 1 + 64 * half);
      escapes[at++] = static_cast<std::uint16_t>(escape_of(lane, values.entry_for(value), value));
    }
  }
  if (values.num_missing() == 0) return;
#pragma unroll 1
  for (std::uint32_t bits = lane; bits < kTileWeights; bits += 32) {
    const Place place = place_from(bits);
    const std::uint64_t row = row0 + row_of(place), col = col0 + col_of(place);
    if (row >= p.n || col >= p.k) continue;
    const std::uint32_t value = load_weight(p, row, col) >> 8 & 0x7F;
    if (index_of[value] == kPaletteSize)
      *reinterpret_cast<std::uint32_t*>(tile + nibble_word_at(place)) |=
          nibble_bits(place, values.entry_for(value), 0);
  }
}

// What the weights of a lane need; slow, and only for tiles with escapes.
__device__ __forceinline__ LaneValues lane_values(const PackParams& p, std::uint64_t row0,
                                                  std::uint64_t col0, const std::uint8_t* index_of,
                                                  std::uint32_t lane, std::uint32_t* num_missing) {
  LaneValues values;
#pragma unroll 1
  for (std::uint32_t bits = lane; bits < kTileWeights; bits += 32) {
    const Place place = place_from(bits);
    const std::uint64_t row = row0 + row_of(place), col = col0 + col_of(place);
    if (row >= p.n || col >= p.k) continue;
    const std::uint32_t value = load_weight(p, row, col) >> 8 & 0x7F, index = index_of[value];
    values.add(index, value);
    *num_missing += index == kPaletteSize;
  }
  return values;
}

__device__ __forceinline__ TileResult pack_tile(const PackParams& p, std::uint64_t row0,
                                                std::uint64_t col0, const std::uint8_t* index_of,
                                                std::uint8_t* tile, std::uint32_t* words,
                                                std::uint32_t lane) {
  if (lane < kEscapeWords) words[lane] = 0;
  std::uint32_t indices = 0;  // in use, a bit each
#pragma unroll
  for (std::uint32_t half = 0; half < 2; ++half) {
    std::uint32_t low[8], nibbles[4] = {};
#pragma unroll
    for (std::uint32_t frag = 0; frag < 4; ++frag) {
#pragma unroll
      for (std::uint32_t reg = 0; reg < 4; ++reg) {
        const Place first{lane, 0, reg, frag, half};
        const std::uint64_t row = row0 + row_of(first), col = col0 + col_of(first);
        const std::uint32_t pair = load_pair(p, row, col);
        const std::uint32_t bytes = (pair & 0xFF) | (pair >> 8 & 0xFF00);
        low[frag * 2 + reg / 2] = reg % 2 == 0 ? bytes : low[frag * 2 + reg / 2] | bytes << 16;
#pragma unroll
        for (std::uint32_t elem = 0; elem < 2; ++elem) {
          if (row >= p.n || col + elem >= p.k) continue;
          const std::uint32_t value = pair >> 16 * elem & 0xFFFF, high = value >> 8 & 0x7F;
          const std::uint32_t index = index_of[high];
          indices |= 1u << index;
          nibbles[frag] |=
              nibble_bits({lane, elem, reg, frag, half}, index % kPaletteSize, value >> 15);
        }
      }
    }
    auto* out = reinterpret_cast<uint4*>(tile + half * kHalfBytes) + lane;
    out[0] = {low[0], low[1], low[2], low[3]};
    out[32] = {low[4], low[5], low[6], low[7]};
    out[64] = {nibbles[0], nibbles[1], nibbles[2], nibbles[3]};
  }
  if (!__any_sync(kAllLanes, indices >> kPaletteSize != 0)) return {0, false};
  std::uint32_t num_missing = 0;
  const LaneValues values = lane_values(p, row0, col0, index_of, lane, &num_missing);
  num_missing = __reduce_add_sync(kAllLanes, num_missing);
  const bool overflows = __any_sync(kAllLanes, !values.fits()) ||
                         __reduce_add_sync(kAllLanes, values.num_missing()) > kTileEscapes;
  if (!overflows)
    escape_tile(p, row0, col0, index_of, values, tile, reinterpret_cast<std::uint16_t*>(words),
                lane);
  return {num_missing, overflows};
}

__device__ __forceinline__ void pack_raw_tile(const PackParams& p, std::uint64_t row0,
                                              std::uint64_t col0, std::uint8_t* tile,
                                              std::uint32_t lane) {
#pragma unroll
  for (std::uint32_t i = 0; i < 8; ++i) {
    std::uint32_t v[4];
#pragma unroll
    for (std::uint32_t reg = 0; reg < 4; ++reg) {
      const Place place{lane, 0, reg, i % 4, i / 4};
      v[reg] = load_pair(p, row0 + row_of(place), col0 + col_of(place));
    }
    reinterpret_cast<uint4*>(tile)[i * 32 + lane] = {v[0], v[1], v[2], v[3]};
  }
}

__global__ void __launch_bounds__(kPackThreads)
    pack_strips(const __grid_constant__ PackParams all) {
  const PackParams p = of_strip(all, blockIdx.x);
  __shared__ std::uint32_t counts[128 * 32];
  __shared__ std::uint8_t index_of[128];
  __shared__ unsigned long long num_escaped, num_overflows;
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Layout layout(p.n, p.k, p.kind);
  const std::uint64_t strip = blockIdx.x;
  std::uint8_t* const tiles =
      p.dst + layout.tiles + strip * layout.tiles_per_strip * layout.tile_bytes;
  auto* const words = reinterpret_cast<std::uint32_t*>(p.dst + layout.escapes) +
                      strip * layout.tiles_per_strip * kEscapeWords;
  if (p.kind == Kind::kRaw) {
    for (std::uint64_t t = warp; t < layout.tiles_per_strip; t += kPackThreads / 32)
      pack_raw_tile(p, strip * kStripRows, t * kTileCols, tiles + t * kRawTileBytes, lane);
    if (threadIdx.x == 0) p.strip_escaped[strip] = p.strip_overflows[strip] = 0;
    return;
  }
  for (std::uint32_t i = threadIdx.x; i < 128 * 32; i += kPackThreads) counts[i] = 0;
  if (threadIdx.x == 0) num_escaped = num_overflows = 0;
  __syncthreads();
  count_strip(p, strip, counts);
  __syncthreads();
  // Lane columns to one count per value, rotated so that lanes use different banks.
  std::uint32_t total = 0;
  if (threadIdx.x < 128)
    for (std::uint32_t i = 0; i < 32; ++i) total += counts[threadIdx.x * 32 + (i + lane) % 32];
  __syncthreads();
  if (threadIdx.x < 128) counts[threadIdx.x] = total, index_of[threadIdx.x] = kPaletteSize;
  __syncthreads();
  // The rank of a value decides whether it is in the palette.
  bool chosen = false;
  if (threadIdx.x < 128) {
    std::uint32_t rank = 0;
    for (std::uint32_t v = 0; v < 128; ++v)
      rank += counts[v] > total || (counts[v] == total && v < threadIdx.x);
    chosen = total != 0 && rank < kPaletteSize;
    const std::uint32_t members = __ballot_sync(kAllLanes, chosen);
    if (lane == 0) counts[128 + warp] = members;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    std::uint64_t palette = 0;
    std::uint32_t used = 0, last = 0;
    for (std::uint32_t v = 0; v < 128; ++v)
      if (counts[128 + v / 32] >> v % 32 & 1) {
        index_of[v] = static_cast<std::uint8_t>(used);
        palette |= std::uint64_t{last = v} << 8 * used++;
      }
    for (; used < kPaletteSize; ++used) palette |= std::uint64_t{last} << 8 * used;
    reinterpret_cast<std::uint64_t*>(p.dst + layout.palettes)[strip] = palette;
  }
  __syncthreads();
  for (std::uint64_t t = warp; t < layout.tiles_per_strip; t += kPackThreads / 32) {
    const TileResult result =
        pack_tile(p, strip * kStripRows, t * kTileCols, index_of, tiles + t * kFixedTileBytes,
                  words + t * kEscapeWords, lane);
    if (lane != 0) continue;
    p.tile_overflows[strip * layout.tiles_per_strip + t] = result.overflows;
    if (result.num_escaped != 0) atomicAdd(&num_escaped, result.num_escaped);
    if (result.overflows) atomicAdd(&num_overflows, 1ull);
  }
  __syncthreads();
  if (threadIdx.x == 0)
    p.strip_escaped[strip] = num_escaped, p.strip_overflows[strip] = num_overflows;
}

// One thread block: numbers the overflows, writes the header and the result.
__global__ void __launch_bounds__(1024) finish_pack(const __grid_constant__ PackParams all) {
  const PackParams p = of_matrix(all);
  __shared__ unsigned long long sums[32], escapes[32];
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Layout layout(p.n, p.k, p.kind);
  unsigned long long before = 0, all_escaped = 0;
  for (std::uint64_t base = 0; base < layout.strips; base += 1024) {
    const std::uint64_t i = base + threadIdx.x;
    const bool there = i < layout.strips;
    const unsigned long long mine = there ? p.strip_overflows[i] : 0;
    unsigned long long sum = mine, escaped_sum = there ? p.strip_escaped[i] : 0;
    for (int d = 1; d < 32; d *= 2) {
      const unsigned long long below = __shfl_up_sync(kAllLanes, sum, d),
                               also = __shfl_up_sync(kAllLanes, escaped_sum, d);
      if (lane >= d) sum += below, escaped_sum += also;
    }
    if (lane == 31) sums[warp] = sum, escapes[warp] = escaped_sum;
    __syncthreads();
    unsigned long long below = 0, total = 0;
    for (std::uint32_t w = 0; w < 32; ++w) {
      if (w < warp) below += sums[w];
      total += sums[w];
      all_escaped += escapes[w];
    }
    if (there) p.strip_overflows[i] = before + below + sum - mine;
    before += total;
    __syncthreads();
  }
  // Zeros as padding, so that equal matrices are equal bytes.
  if (p.kind == Kind::kFixed) {
    const std::uint64_t palettes_end = layout.palettes + layout.strips * kPaletteSize + threadIdx.x;
    if (palettes_end < layout.escapes) p.dst[palettes_end] = 0;
    const std::uint64_t escapes_end =
        layout.escapes + layout.strips * layout.tiles_per_strip * kEscapeBytes + threadIdx.x;
    if (escapes_end < layout.tiles) p.dst[escapes_end] = 0;
  }
  auto* const header = reinterpret_cast<std::uint64_t*>(p.dst);
  if (threadIdx.x < kHeaderBytes / 8) header[threadIdx.x] = 0;
  __syncthreads();
  if (threadIdx.x != 0) return;
  p.strip_overflows[layout.strips] = before;
  if (p.upstream != nullptr && p.upstream->code != 0) {
    *p.result = {0, p.upstream->code, p.upstream->reason, p.upstream->block};
    return;
  }
  if (p.upstream != nullptr && p.upstream->num_bytes != p.upstream_bytes) {
    *p.result = {0, static_cast<std::uint32_t>(Code::kUsage), 0, p.upstream->num_bytes};
    return;
  }
  if (before > p.max_overflows) {
    *p.result = {0, static_cast<std::uint32_t>(Code::kDstTooSmall), 0, kNowhere};
    return;
  }
  Header h{};
  h.magic = kMagic;
  h.version = kVersion;
  h.kind = static_cast<std::int32_t>(p.kind);
  h.n = p.n;
  h.k = p.k;
  h.num_bytes = layout.overflows + kOverflowBytes * before;
  h.num_escaped = all_escaped;
  h.num_overflows = before;
  h.checksum = header_checksum(h);
  *reinterpret_cast<Header*>(p.dst) = h;
  *p.result = {h.num_bytes, 0, 0, kNowhere};
}

// One warp a strip: writes its overflows.
__global__ void __launch_bounds__(32) pack_overflows(const __grid_constant__ PackParams all) {
  const PackParams p = of_strip(all, blockIdx.x);
  const std::uint64_t strip = blockIdx.x;
  const std::uint32_t lane = threadIdx.x;
  const Layout layout(p.n, p.k, p.kind);
  std::uint64_t overflow = p.strip_overflows[strip];
  if (p.strip_overflows[strip + 1] == overflow ||
      p.strip_overflows[layout.strips] > p.max_overflows)
    return;
  for (std::uint64_t t = 0; t < layout.tiles_per_strip; ++t) {
    const std::uint64_t tile_idx = strip * layout.tiles_per_strip + t;
    if (p.tile_overflows[tile_idx] == 0) continue;
    if (lane == 0) {
      auto* const words =
          reinterpret_cast<std::uint32_t*>(p.dst + layout.escapes) + tile_idx * kEscapeWords;
      words[0] = kOverflowMark;
      words[1] = static_cast<std::uint32_t>(overflow);
    }
    for (std::uint32_t half = 0; half < 2; ++half)
      for (std::uint32_t frag = 0; frag < 4; ++frag) {
        std::uint32_t bytes[2] = {};
        for (std::uint32_t reg = 0; reg < 4; ++reg) {
          const Place place{lane, 0, reg, frag, half};
          const std::uint32_t pair =
              load_pair(p, strip * kStripRows + row_of(place), t * kTileCols + col_of(place));
          bytes[reg / 2] |= __byte_perm(pair, 0, 0x4431) << reg % 2 * 16;
        }
        *reinterpret_cast<uint2*>(p.dst + layout.overflows + overflow * kOverflowBytes +
                                  overflow_byte_at({lane, 0, 0, frag, half})) = {bytes[0],
                                                                                 bytes[1]};
      }
    ++overflow;
  }
}

}  // namespace snug::gemm
