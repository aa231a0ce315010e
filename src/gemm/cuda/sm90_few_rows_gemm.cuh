// gemm/cuda/sm90_few_rows_gemm.cuh - y = x W^T for few rows of x, bound by reading W once.
//
// One persistent thread block per SM keeps its part of x in shared memory and streams strips
// of sixteen rows of W past it. Each warp takes every kWarps-th tile of the strip through its
// own ring of bulk copies, which it refills as soon as a tile is in registers; all rings
// together keep 70 KB and more in flight. The sums of the warps meet in shared memory, where
// a few more warps, in turn a strip each, add them in a fixed order and write y. So the
// streaming warps never wait for their stores.
// Where x is too large for one SM, split-K divides k into `split_k` parts, each with its own
// thread blocks; the last block to finish a strip adds the parts in order.
#pragma once
#include "gemm/cuda/linear_output.cuh"
#include "gemm/few_rows_smem.h"

namespace snug::gemm {

// Loads x[0..m)[first_col..) into shared memory, zeros beyond k.
template <int kThreads>
__device__ __forceinline__ void load_x_by_threads(const LinearParams& p, std::uint8_t* rows,
                                                  std::uint32_t row_bytes, std::uint32_t first_col,
                                                  std::uint32_t cols) {
  for (std::uint32_t i = threadIdx.x; i < p.m * cols; i += kThreads) {
    const std::uint32_t row = i / cols, col = i % cols;
    std::uint16_t v = 0;
    if (first_col + col < p.k) v = p.x[row * p.ldx + first_col + col];
    *reinterpret_cast<std::uint16_t*>(rows + row * row_bytes + col * 2) = v;
  }
}

// One tile: loads its codes into registers, refills its stage, then multiplies.
template <int kTokenTiles, Kind kKind, class Refill>
__device__ __forceinline__ void multiply_tile(float (&acc)[kTokenTiles][4], std::uint32_t tile,
                                              const std::uint32_t (&x)[kTokenTiles],
                                              std::uint32_t col_bytes, const LanePalette& palette,
                                              std::uint32_t lane, const Refill& refill) {
  HalfInput<kKind> input[2];
  input[0].load(tile + lane * 16, 0);
  input[1].load(tile + lane * 16, 1);
  refill(input[0].any() | input[1].any());
#pragma unroll
  for (std::uint32_t half = 0; half < 2; ++half) {
    uint4 b[2][kTokenTiles];  // loaded before decoding, which hides the latency
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t)
        b[i][t] = load_matrix_x4(x[t] + col_bytes + half * 128 + i * 64);
    HalfFragments w;
    input[half].decode(w, half, palette);
#pragma unroll
    for (int i = 0; i < 2; ++i)  // 32 columns
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        mma_16x8x16(acc[t], w.a[i * 2], b[i][t].x, b[i][t].y);
        mma_16x8x16(acc[t], w.a[i * 2 + 1], b[i][t].z, b[i][t].w);
      }
  }
}

// Adds the parts of k in order, once the last of them has arrived.
template <int kTokenTiles>
__device__ __forceinline__ bool add_splits(const LinearParams& p, float4 (&sums)[kTokenTiles],
                                           std::uint32_t strip, std::uint32_t split,
                                           std::uint32_t lane) {
  float4* parts = p.partials + std::uint64_t{strip} * p.split_k * kTokenTiles * 32 + lane;
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) __stcg(parts + (split * kTokenTiles + t) * 32, sums[t]);
  __threadfence();
  __syncwarp();
  std::uint32_t arrived = 0;
  if (lane == 0) arrived = atomicAdd(p.counters + strip, 1u);
  if (__shfl_sync(kAllLanes, arrived, 0) != p.split_k - 1) return false;
  __threadfence();
  if (lane == 0) p.counters[strip] = 0;  // ready for the next call
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) sums[t] = __ldcg(parts + t * 32);
#pragma unroll 4
  for (std::uint32_t s = 1; s < p.split_k; ++s)
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t)
      sums[t] = add(sums[t], __ldcg(parts + (s * kTokenTiles + t) * 32));
  return true;
}

template <int kTokenTiles, int kWarps, Kind kKind>
__global__ void __launch_bounds__(FewRowsSmem(kTokenTiles, kWarps, kKind).threads, 1)
    few_rows_gemm(const __grid_constant__ LinearParams p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr FewRowsSmem smem(kTokenTiles, kWarps, kKind);
  extern __shared__ __align__(128) std::uint8_t memory[];
  const std::uint32_t base = shared_address(memory), lane = threadIdx.x % 32,
                      warp = threadIdx.x / 32;
  const std::uint32_t split = blockIdx.x % p.split_k, member = blockIdx.x / p.split_k,
                      members = gridDim.x / p.split_k;
  // Products below 2^32: a strip has less than 2^24 tiles, and split_k is small.
  const std::uint32_t first_tile = p.tiles_per_strip * split / p.split_k,
                      end_tile = p.tiles_per_strip * (split + 1) / p.split_k;
  const std::uint32_t row_bytes = smem.row_bytes(p.max_split_tiles), rows = smem.rows(p.stages);
  const std::uint32_t unknown_zero = p.stages >> 16;  // which the compiler cannot know

  const std::uint32_t first_col = first_tile * kTileCols,
                      cols = (end_tile - first_tile) * kTileCols;
  // x is loaded in chunks of columns, so that work begins with the first.
  const std::uint32_t chunk_tiles =
      max(kWarps, (end_tile - first_tile + smem.kMaxXChunks - 1) / smem.kMaxXChunks);

  if (warp < kWarps) {
    // ---- streaming warps ----
    const std::uint32_t ring = base + smem.rings + warp * p.stages * smem.tile_bytes;
    const std::uint32_t full = base + smem.full + warp * p.stages * 8;
    std::uint32_t ahead_strip = member, ahead_tile = first_tile + warp;  // to copy next
    if (ahead_tile >= end_tile) ahead_strip = p.strips;
    // `after` was loaded from this slot. The copy's address depends on it, so that the copy
    // does not begin before that load is complete.
    const auto copy_next = [&](std::uint32_t slot, std::uint32_t after) {
      if (ahead_strip >= p.strips) return;
      const std::uint64_t tile = std::uint64_t{ahead_strip} * p.tiles_per_strip + ahead_tile;
      barrier_expect(full + slot * 8, smem.tile_bytes);
      bulk_load<true>(ring + slot * smem.tile_bytes + (after & unknown_zero),
                      p.tiles + tile * smem.tile_bytes, smem.tile_bytes, full + slot * 8);
      ahead_tile += kWarps;
      if (ahead_tile >= end_tile) ahead_tile = first_tile + warp, ahead_strip += members;
    };
    // Weights depend on no other kernel: rings are filled before the previous one ends. But x
    // goes through the same queue, so only a few tiles at a time.
    constexpr std::uint32_t kAtOnce = 16 / kWarps;
    if (lane == 0) {
      for (std::uint32_t slot = 0; slot < p.stages; ++slot) barrier_init(full + slot * 8, 1);
      barrier_init_fence();
      for (std::uint32_t slot = 0; slot < kAtOnce; ++slot) copy_next(slot, 0);
    }
    // Escape words of eight of this warp's tiles of a strip, from the nth on.
    const auto load_escapes = [&](std::uint32_t strip, std::uint32_t nth) -> std::uint32_t {
      const std::uint32_t tile = first_tile + warp + (nth + lane / 4) * kWarps;
      if (kKind == Kind::kRaw || strip >= p.strips || tile >= end_tile) return 0;
      const uint4* words = p.escapes + (std::uint64_t{strip} * p.tiles_per_strip + tile);
      return __ldg(reinterpret_cast<const std::uint32_t*>(words) + lane % 4);
    };
    std::uint32_t next_escapes = load_escapes(member, 0);
    uint2 next_palette =
        member < p.strips && kKind == Kind::kFixed ? __ldg(p.palettes + member) : uint2{};
    __syncthreads();
    if (lane == 0)
      for (std::uint32_t slot = kAtOnce; slot < p.stages && ahead_strip < p.strips; ++slot) {
        barrier_wait_hinted(full + (slot - kAtOnce) * 8, 0);
        copy_next(slot, 0);
      }
    __syncwarp();
    if (!p.x_aligned) {
      wait_for_previous_kernel();
      load_x_by_threads<kWarps * 32>(p, memory + rows, row_bytes, first_col, cols);
    }
    if (p.x_aligned && first_col + cols > p.k) {
      const std::uint32_t present = p.k - first_col, missing = cols - present;
      for (std::uint32_t i = threadIdx.x; i < p.m * missing; i += kWarps * 32)
        *reinterpret_cast<std::uint16_t*>(memory + rows + i / missing * row_bytes +
                                          (present + i % missing) * 2) = 0;
    }
    if (!p.x_aligned || first_col + cols > p.k) BarrierTeam<kWarps * 32>::sync();

    // Lanes beyond the last row read row 0; their results are not stored.
    std::uint32_t x[kTokenTiles];
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      const std::uint32_t row = t * 8 + lane % 8;
      x[t] = base + rows + (row < p.m ? row : 0) * row_bytes + lane / 8 * 16;
    }
    EscapeWords escapes;
    std::uint32_t slot = 0, phase = 0, sum_buffer = 0, sum_phase = 1;
    for (std::uint32_t strip = member; strip < p.strips; strip += members) {
      const uint2 palette = next_palette;
      if (kKind == Kind::kFixed && strip + members < p.strips)
        next_palette = __ldg(p.palettes + strip + members);
      float acc[kTokenTiles][4] = {};
      for (std::uint32_t tile = first_tile + warp, nth = 0; tile < end_tile;
           tile += kWarps, ++nth) {
        if (kKind == Kind::kFixed && nth % 8 == 0) {
          escapes.take(next_escapes);
          const bool same_strip = tile + 8 * kWarps < end_tile;
          next_escapes =
              load_escapes(same_strip ? strip : strip + members, same_strip ? nth + 8 : 0);
        }
        LanePalette lane_palette{};
        if constexpr (kKind == Kind::kFixed)
          lane_palette = escapes.palette_of(nth % 8, palette, p.overflows, lane);
        if (p.x_aligned && strip == member)
          barrier_wait_hinted(base + smem.x_full + (tile - first_tile) / chunk_tiles * 8, 0);
        barrier_wait_hinted(full + slot * 8, phase);
        multiply_tile<kTokenTiles, kKind>(acc, ring + slot * smem.tile_bytes, x,
                                          (tile - first_tile) * kTileCols * 2, lane_palette, lane,
                                          [&](std::uint32_t loaded) {
                                            __syncwarp();
                                            if (lane == 0) copy_next(slot, loaded);
                                          });
        if (++slot == p.stages) slot = 0, phase ^= 1;
      }
      barrier_wait_hinted(base + smem.sum_empty + sum_buffer * 8, sum_phase);
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t)
        store_shared(base + smem.sums + sum_buffer * smem.sum_bytes +
                         (warp * kTokenTiles + t) * 512 + lane * 16,
                     {acc[t][0], acc[t][1], acc[t][2], acc[t][3]});
      barrier_arrive(base + smem.sum_full + sum_buffer * 8);
      if (++sum_buffer == smem.adders) sum_buffer = 0, sum_phase ^= 1;
    }
  } else {
    // ---- adding warps, which fetch x first ----
    const std::uint32_t adder = warp - kWarps;
    if (adder == 0 && lane == 0) {
      for (std::uint32_t i = 0; i < smem.adders; ++i) {
        barrier_init(base + smem.sum_full + 8 * i, kWarps * 32);
        barrier_init(base + smem.sum_empty + 8 * i, 32);
      }
      for (std::uint32_t i = 0; i < smem.kMaxXChunks; ++i)
        barrier_init(base + smem.x_full + 8 * i, 1);
      barrier_init_fence();
    }
    __syncthreads();
    // The next kernel may start on each SM as soon as this one leaves it.
    let_next_kernel_start();
    wait_for_previous_kernel();
    if (p.x_aligned)
      for (std::uint32_t chunk = adder; chunk * chunk_tiles * kTileCols < cols;
           chunk += smem.adders) {
        const std::uint32_t col = chunk * chunk_tiles * kTileCols, present = p.k - first_col;
        const std::uint32_t bytes =
            col < present ? min(chunk_tiles * kTileCols, min(cols, present) - col) * 2 : 0;
        if (lane == 0) barrier_expect(base + smem.x_full + chunk * 8, p.m * bytes);
        __syncwarp();
        if (lane < p.m && bytes != 0)
          bulk_load(base + rows + lane * row_bytes + col * 2, p.x + lane * p.ldx + first_col + col,
                    bytes, base + smem.x_full + chunk * 8);
      }
    for (std::uint32_t i = adder; member + i * members < p.strips; i += smem.adders) {
      const std::uint32_t buffer = i % smem.adders, strip = member + i * members;
      barrier_wait_hinted(base + smem.sum_full + buffer * 8, i / smem.adders & 1);
      const auto* parts =
          reinterpret_cast<const float4*>(memory + smem.sums + buffer * smem.sum_bytes) + lane;
      float4 sums[kTokenTiles];
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) sums[t] = parts[t * 32];
#pragma unroll
      for (int w = 1; w < kWarps; ++w)
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t)
          sums[t] = add(sums[t], parts[(w * kTokenTiles + t) * 32]);
      // The address depends on the sums, so that all of them have been read.
      std::uint32_t read = 0;
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) read |= __float_as_uint(sums[t].x);
      barrier_arrive(base + smem.sum_empty + buffer * 8 + (read & unknown_zero));
      if (p.split_k != 1 && !add_splits(p, sums, strip, split, lane)) continue;
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) write_strip(p, sums[t], strip, t * 8, lane);
    }
  }
#endif
}

}  // namespace snug::gemm
