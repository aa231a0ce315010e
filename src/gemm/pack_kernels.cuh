// gemm/pack_kernels.cuh - packing and unpacking on the GPU; the bytes of pack_host.cpp.
//
// One thread block packs one strip: it counts the upper bytes, chooses the
// palette, and writes the tiles while the strip is still in the L2 cache. Tiles
// with more patches than fit are rare; a scan gives them places in the overflow
// and a last kernel, which leaves at once where there are none, writes them.
#pragma once
#include "gemm/tile_decode.cuh"
#include "snug/cuda.h"

namespace snug::gemm {

struct PackParams {
  const std::uint16_t* w;
  std::uint64_t ld, n, k;
  bool pairs;  // w can be read in pieces of 4 bytes
  std::uint8_t* dst;
  std::uint64_t dst_words;  // room for overflow
  Kind kind;
  // Per strip: patches and overflow words; then the place of the overflow.
  std::uint64_t *strip_patches, *strip_overflow;
  std::uint32_t* tile_overflow;  // words, per tile
  DeviceResult* result;
  const DeviceResult* upstream;  // of the frame that w was decoded from, or null
  std::uint64_t upstream_bytes;  // that it should have
};

inline constexpr int kPackThreads = 256;

// Two neighbouring weights; zero beyond the edge.
__device__ __forceinline__ std::uint32_t load_pair(const PackParams& p, std::uint64_t row, std::uint64_t col) {
  if (row >= p.n || col >= p.k) return 0;
  const std::uint16_t* at = p.w + row * p.ld + col;
  if (p.pairs && col + 1 < p.k) return __ldg(reinterpret_cast<const std::uint32_t*>(at));
  return at[0] | (col + 1 < p.k ? static_cast<std::uint32_t>(at[1]) << 16 : 0);
}

__device__ __forceinline__ void count_strip(const PackParams& p, std::uint64_t strip, std::uint32_t* counts) {
  // A column of counters per lane: no two lanes of a warp meet in a bank.
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint64_t rows = min(std::uint64_t{kStripRows}, p.n - strip * kStripRows);
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

// Packs one tile and returns its number of patches. With `overflow`, writes the
// patches from the fourth on there and nothing else.
__device__ __forceinline__ std::uint32_t pack_tile(const PackParams& p, std::uint64_t row0, std::uint64_t col0,
                                                   const std::uint8_t* index_of, std::uint8_t* tile,
                                                   std::uint32_t* words, std::uint32_t* overflow, std::uint32_t lane) {
  std::uint32_t count = 0;
  if (overflow == nullptr && lane < kInlinePatches) words[lane] = 0;
  __syncwarp();
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
          const Place place{lane, elem, reg, frag, half};
          const std::uint32_t value = pair >> 16 * elem & 0xFFFF, high = value >> 8 & 0x7F;
          const bool there = row < p.n && col + elem < p.k;
          std::uint32_t index = there ? index_of[high] : 0;
          const std::uint32_t misses = __ballot_sync(~0u, index == kPaletteSize);
          if (index == kPaletteSize) {
            index = 0;
            const std::uint32_t at = count + __popc(misses & ((1u << lane) - 1));
            const std::uint32_t patch = kPatchValid | high << 11 | place.bits();
            if (overflow == nullptr) {
              if (at < kInlinePatches) words[at] = patch;
            } else if (at >= kInlinePatches - 1) {
              overflow[at - (kInlinePatches - 1)] = patch;
            }
          }
          count += __popc(misses);
          nibbles[frag] |= nibble_bits(place, index, there ? value >> 15 : 0);
        }
      }
    }
    if (overflow != nullptr) continue;
    auto* out = reinterpret_cast<uint4*>(tile + half * kHalfBytes) + lane;
    out[0] = {low[0], low[1], low[2], low[3]};
    out[32] = {low[4], low[5], low[6], low[7]};
    out[64] = {nibbles[0], nibbles[1], nibbles[2], nibbles[3]};
  }
  return count;
}

__device__ __forceinline__ void pack_raw_tile(const PackParams& p, std::uint64_t row0, std::uint64_t col0,
                                              std::uint8_t* tile, std::uint32_t lane) {
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

__global__ void __launch_bounds__(kPackThreads) pack_strips(const __grid_constant__ PackParams p) {
  __shared__ std::uint32_t counts[128 * 32];
  __shared__ std::uint8_t index_of[128];
  __shared__ unsigned long long num_patches, num_overflow;
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Layout layout(p.n, p.k, p.kind);
  const std::uint64_t strip = blockIdx.x;
  std::uint8_t* const tiles = p.dst + layout.tiles + strip * layout.tiles_per_strip * layout.tile_bytes;
  auto* const words =
      reinterpret_cast<std::uint32_t*>(p.dst + layout.patches) + strip * layout.tiles_per_strip * kInlinePatches;
  if (p.kind == Kind::kRaw) {
    for (std::uint64_t t = warp; t < layout.tiles_per_strip; t += kPackThreads / 32)
      pack_raw_tile(p, strip * kStripRows, t * kTileCols, tiles + t * kRawTileBytes, lane);
    if (threadIdx.x == 0) p.strip_patches[strip] = p.strip_overflow[strip] = 0;
    return;
  }
  for (std::uint32_t i = threadIdx.x; i < 128 * 32; i += kPackThreads) counts[i] = 0;
  if (threadIdx.x == 0) num_patches = num_overflow = 0;
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
  // A value's rank among all decides whether it is in the palette.
  bool chosen = false;
  if (threadIdx.x < 128) {
    std::uint32_t rank = 0;
    for (std::uint32_t v = 0; v < 128; ++v) rank += counts[v] > total || (counts[v] == total && v < threadIdx.x);
    chosen = total != 0 && rank < kPaletteSize;
    const std::uint32_t members = __ballot_sync(~0u, chosen);
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
    const std::uint32_t count = pack_tile(p, strip * kStripRows, t * kTileCols, index_of, tiles + t * kNibbleTileBytes,
                                          words + t * kInlinePatches, nullptr, lane);
    if (lane != 0) continue;
    const std::uint32_t words = count > kInlinePatches ? count - kInlinePatches + 2 : 0;
    p.tile_overflow[strip * layout.tiles_per_strip + t] = words;
    if (count != 0) atomicAdd(&num_patches, count);
    if (words != 0) atomicAdd(&num_overflow, words);
  }
  __syncthreads();
  if (threadIdx.x == 0) p.strip_patches[strip] = num_patches, p.strip_overflow[strip] = num_overflow;
}

// One thread block: places of the strips' overflow, the header, the result.
__global__ void __launch_bounds__(1024) finish_pack(const __grid_constant__ PackParams p) {
  __shared__ unsigned long long sums[32], patches[32];
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Layout layout(p.n, p.k, p.kind);
  unsigned long long before = 0, all_patches = 0;
  for (std::uint64_t base = 0; base < layout.strips; base += 1024) {
    const std::uint64_t i = base + threadIdx.x;
    const bool there = i < layout.strips;
    const unsigned long long mine = there ? p.strip_overflow[i] : 0;
    unsigned long long sum = mine, patch_sum = there ? p.strip_patches[i] : 0;
    for (int d = 1; d < 32; d *= 2) {
      const unsigned long long below = __shfl_up_sync(~0u, sum, d), also = __shfl_up_sync(~0u, patch_sum, d);
      if (lane >= d) sum += below, patch_sum += also;
    }
    if (lane == 31) sums[warp] = sum, patches[warp] = patch_sum;
    __syncthreads();
    unsigned long long below = 0, total = 0;
    for (std::uint32_t w = 0; w < 32; ++w) {
      if (w < warp) below += sums[w];
      total += sums[w];
      all_patches += patches[w];
    }
    if (there) p.strip_overflow[i] = before + below + sum - mine;
    before += total;
    __syncthreads();
  }
  // Zeros where parts are filled up, so that equal matrices are equal bytes.
  if (p.kind == Kind::kNibble) {
    const std::uint64_t palettes_end = layout.palettes + layout.strips * kPaletteSize + threadIdx.x;
    if (palettes_end < layout.patches) p.dst[palettes_end] = 0;
    const std::uint64_t patches_end =
        layout.patches + layout.strips * layout.tiles_per_strip * kPatchBytes + threadIdx.x;
    if (patches_end < layout.tiles) p.dst[patches_end] = 0;
  }
  auto* const header = reinterpret_cast<std::uint64_t*>(p.dst);
  if (threadIdx.x < kHeaderBytes / 8) header[threadIdx.x] = 0;
  __syncthreads();
  if (threadIdx.x != 0) return;
  p.strip_overflow[layout.strips] = before;
  if (p.upstream != nullptr && p.upstream->code != 0) {
    *p.result = {0, p.upstream->code, p.upstream->reason, p.upstream->block};
    return;
  }
  if (p.upstream != nullptr && p.upstream->num_bytes != p.upstream_bytes) {
    *p.result = {0, static_cast<std::uint32_t>(Code::kUsage), 0, p.upstream->num_bytes};
    return;
  }
  if (before > p.dst_words) {
    *p.result = {0, static_cast<std::uint32_t>(Code::kDstTooSmall), 0, kNowhere};
    return;
  }
  Header h{};
  h.magic = kMagic;
  h.version = kVersion;
  h.kind = static_cast<std::int32_t>(p.kind);
  h.n = p.n;
  h.k = p.k;
  h.num_bytes = layout.overflow + 4 * before;
  h.num_patches = all_patches;
  h.overflow_words = before;
  h.checksum = header_checksum(h);
  *reinterpret_cast<Header*>(p.dst) = h;
  *p.result = {h.num_bytes, 0, 0, kNowhere};
}

// One warp a strip: the patches of tiles that have too many.
__global__ void __launch_bounds__(32) pack_overflow(const __grid_constant__ PackParams p) {
  __shared__ std::uint8_t index_of[128];
  const std::uint64_t strip = blockIdx.x;
  const std::uint32_t lane = threadIdx.x;
  const Layout layout(p.n, p.k, p.kind);
  std::uint64_t at = p.strip_overflow[strip];
  if (p.strip_overflow[strip + 1] == at || p.strip_overflow[layout.strips] > p.dst_words) return;
  const std::uint64_t palette = reinterpret_cast<const std::uint64_t*>(p.dst + layout.palettes)[strip];
  for (std::uint32_t v = lane; v < 128; v += 32) index_of[v] = static_cast<std::uint8_t>(palette_index(palette, v));
  __syncwarp();
  auto* const overflow = reinterpret_cast<std::uint32_t*>(p.dst + layout.overflow);
  for (std::uint64_t t = 0; t < layout.tiles_per_strip; ++t) {
    const std::uint64_t tile_idx = strip * layout.tiles_per_strip + t;
    const std::uint32_t words = p.tile_overflow[tile_idx];
    if (words == 0) continue;
    std::uint8_t* const tile = p.dst + layout.tiles + tile_idx * layout.tile_bytes;
    auto* const inline_words = reinterpret_cast<std::uint32_t*>(p.dst + layout.patches) + tile_idx * kInlinePatches;
    pack_tile(p, strip * kStripRows, t * kTileCols, index_of, tile, inline_words, overflow + at + 1, lane);
    if (lane == 0) {
      overflow[at] = words - 1;
      inline_words[kInlinePatches - 1] = kPatchValid | kPatchMore | static_cast<std::uint32_t>(at);
    }
    at += words;
  }
}

// ---- back to rows ----------------------------------------------------------

struct UnpackParams {
  const std::uint8_t* tiles;
  const uint2* palettes;
  const uint4* patches;
  Overflow overflow;
  std::uint64_t n, k, first_strip, num_strips, tiles_per_strip;
  std::uint16_t* w;  // row first_strip * kStripRows goes here
  std::uint64_t ld;
  bool wide;  // w can be written in pieces of 16 bytes
};

// Lane c of four gives the others what is theirs of v[0..3]: v[i] becomes what lane i held in v[c].
__device__ __forceinline__ void transpose_in_quad(std::uint32_t (&v)[4], std::uint32_t lane) {
  const bool odd = lane & 1, high = lane & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t got = __shfl_xor_sync(~0u, odd ? v[i] : v[i + 1], 1);
    (odd ? v[i] : v[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t got = __shfl_xor_sync(~0u, high ? v[i] : v[i + 2], 2);
    (high ? v[i] : v[i + 2]) = got;
  }
}

template <Kind kKind>
__global__ void __launch_bounds__(256) unpack_tiles(const __grid_constant__ UnpackParams p) {
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint64_t tile_idx = blockIdx.x * std::uint64_t{8} + threadIdx.x / 32;
  if (tile_idx >= p.num_strips * p.tiles_per_strip) return;
  const std::uint64_t strip = p.first_strip + tile_idx / p.tiles_per_strip;
  const std::uint64_t col0 = tile_idx % p.tiles_per_strip * kTileCols;
  constexpr std::uint32_t kTileBytes = kKind == Kind::kRaw ? kRawTileBytes : kNibbleTileBytes;
  const std::uint64_t at_tile = strip * p.tiles_per_strip + col0 / kTileCols;
  const std::uint8_t* tile = p.tiles + at_tile * kTileBytes;
  HalfFragments halves[2];
  if constexpr (kKind == Kind::kRaw) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint4 v = __ldcs(reinterpret_cast<const uint4*>(tile) + i * 32 + lane);
      halves[i / 4].a[i % 4][0] = v.x, halves[i / 4].a[i % 4][1] = v.y;
      halves[i / 4].a[i % 4][2] = v.z, halves[i / 4].a[i % 4][3] = v.w;
    }
  } else {
    const uint4 patches = __ldg(p.patches + at_tile);
    const uint2 palette = __ldg(p.palettes + strip);
    HalfCodes codes[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto* at = reinterpret_cast<const uint4*>(tile + h * kHalfBytes) + lane;
      codes[h] = {{__ldcs(at), __ldcs(at + 32)}, __ldcs(at + 64)};
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      decode_half(halves[h], codes[h], palette);
      apply_patches(halves[h], patches, h, lane, p.overflow);
    }
  }
  const std::uint64_t row0 = strip * kStripRows;
  std::uint16_t* const out = p.w - p.first_strip * kStripRows * p.ld;
  if (p.wide && row0 + kStripRows <= p.n && col0 + kTileCols <= p.k) {
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i) {
      // 32 neighbouring columns of eight rows: every store fills whole sectors.
      const std::uint32_t half = i / 4, frag = i / 2 % 2 * 2, reg = i % 2;
      const auto& a = halves[half].a;
      std::uint32_t v[4] = {a[frag][reg], a[frag][reg + 2], a[frag + 1][reg], a[frag + 1][reg + 2]};
      transpose_in_quad(v, lane);  // lane c now has eight columns of the c-th of these
      const Place first{lane & ~3u, 0, reg + lane % 2 * 2, frag + lane % 4 / 2, half};
      *reinterpret_cast<uint4*>(out + (row0 + row_of(first)) * p.ld + col0 + col_of(first)) = {v[0], v[1], v[2], v[3]};
    }
    return;
  }
#pragma unroll
  for (std::uint32_t bits = 0; bits < 64; ++bits) {
    const Place place = place_from(bits * 32 | lane);
    const std::uint64_t row = row0 + row_of(place), col = col0 + col_of(place);
    if (row < p.n && col < p.k)
      out[row * p.ld + col] =
          static_cast<std::uint16_t>(halves[place.half].a[place.frag][place.reg] >> 16 * place.elem);
  }
}

}  // namespace snug::gemm
