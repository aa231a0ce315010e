// gemm/sm90_batch_gemm.cuh - y = x W^T for many rows of x, with wgmma.
//
// Warpgroups decode their 64 rows of W into registers, which are operand A; x
// comes through the copy engine into shared memory as operand B. While the
// tensor cores work on one half tile, the warps decode the next. Thread blocks
// work in pairs on neighbouring rows of W: each fetches half of x for both.
// The tiles of y, times the steps of k, are one long line that all pairs share
// evenly (stream-K). Where a tile of y is cut, its parts go to the workspace,
// and a second kernel adds them in their order.
#pragma once
#include <cuda.h>

#include "gemm/linear_params.cuh"
#include "gemm/sm90_wgmma.cuh"

namespace snug::gemm {

struct BatchParams {
  LinearParams p;
  CUtensorMap x_map;  // boxes of 64 columns by kCols / 2 rows, swizzled
  std::uint32_t token_tiles, pairs;
};

template <int kCols_, int kGroups_, int kSubs_, Kind kKind_>
struct BatchShape {
  static constexpr int kCols = kCols_;      // rows of x
  static constexpr int kGroups = kGroups_;  // warpgroups that multiply
  static constexpr int kSubs = kSubs_;      // 64-row tiles of each of them
  // Halves of a tile in one stage. Whole tiles are read a tenth faster, where x leaves room for them (H200).
  static constexpr int kHalves = kCols <= 64 ? 2 : 1;
  static constexpr Kind kKind = kKind_;
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr std::uint32_t kStrips = kGroups * kSubs * 4;
  static constexpr std::uint32_t kTileBytes = kKind == Kind::kRaw ? kRawTileBytes : kNibbleTileBytes;
  // A stage is x, and half a tile or a whole one of every strip.
  static constexpr std::uint32_t kHalfBytes = kTileBytes / 2;
  static constexpr std::uint32_t kStripBytes = kHalves * kHalfBytes;
  static constexpr std::uint32_t kXHalfBytes = kCols * 128;
  static constexpr std::uint32_t kXBytes = kHalves * kXHalfBytes;
  static constexpr std::uint32_t kStageBytes = kXBytes + kStrips * kStripBytes;
  static constexpr std::uint32_t kMaxSmem = 226 * 1024;
  static constexpr std::uint32_t kStages = (kMaxSmem - 2048) / kStageBytes < 8 ? (kMaxSmem - 2048) / kStageBytes : 8;
  static_assert(kStageBytes % 1024 == 0 && kStages >= 2);
  static constexpr std::uint32_t kFull = 0, kEmpty = 8 * kStages, kStageStart = 1024;
  static constexpr std::uint32_t kSmemBytes = 1024 + kStageStart + kStages * kStageBytes;
  static constexpr std::uint32_t kWarps = kGroups * 4;
  static constexpr std::uint32_t kPartQuads = kStrips * kStripRows * kCols / 4;  // of four floats
};

// A piece of one tile of y (rows for both blocks of a pair) that one pair computes.
struct Segment {
  std::uint32_t tile, begin, end;  // steps of k: [begin, end)
};

// Steps [first, last) of the line belong to this pair; calls f for each piece.
template <class F>
__device__ __forceinline__ void for_each_segment(std::uint64_t first, std::uint64_t last, std::uint32_t steps,
                                                 const F& f) {
  while (first < last) {
    const auto tile = static_cast<std::uint32_t>(first / steps);
    const auto begin = static_cast<std::uint32_t>(first % steps);
    const auto end = static_cast<std::uint32_t>(min(std::uint64_t{steps}, begin + (last - first)));
    f(Segment{tile, begin, end});
    first += end - begin;
  }
}

// How the line is shared.
template <class Shape>
struct Line {
  std::uint64_t total;
  std::uint32_t steps, pairs;

  __device__ __forceinline__ Line(const BatchParams& b) {
    const std::uint32_t row_tiles = (b.p.strips + 2 * Shape::kStrips - 1) / (2 * Shape::kStrips);
    steps = b.p.tiles_per_strip;
    total = std::uint64_t{row_tiles} * b.token_tiles * steps;
    pairs = b.pairs;
  }
  __device__ __forceinline__ std::uint64_t start(std::uint32_t pair) const { return total * pair / pairs; }
  // The pair that computes step `at`.
  __device__ __forceinline__ std::uint32_t pair_of(std::uint64_t at) const {
    return static_cast<std::uint32_t>(((at + 1) * pairs - 1) / total);
  }
};

// Where a block leaves its part of a cut tile. A pair has at most two: that of a
// tile it does not begin, and that of a tile it does not end.
template <class Shape>
__device__ __forceinline__ float4* part_of(const LinearParams& p, std::uint32_t pair, bool begins, std::uint32_t rank) {
  return p.partials + ((std::uint64_t{pair} * 2 + begins) * 2 + rank) * Shape::kPartQuads;
}

// One warp fills the stages. x is asked for first: it is in the cache and on the
// way of every block, and behind the weights it would come late.
template <class Shape>
__device__ __forceinline__ void batch_produce(const BatchParams& b, std::uint32_t base, std::uint32_t stages,
                                              const Line<Shape>& line, std::uint32_t rank) {
  const LinearParams& p = b.p;
  const std::uint32_t lane = threadIdx.x % 32, pair = blockIdx.x / 2;
  std::uint32_t slot = 0, phase = 1;
  for_each_segment(line.start(pair), line.start(pair + 1), line.steps, [&](const Segment& s) {
    const std::uint32_t strip0 = (s.tile / b.token_tiles * 2 + rank) * Shape::kStrips;
    const std::uint32_t strip = min(strip0 + lane % Shape::kStrips, p.strips - 1);
    const std::uint32_t token0 = s.tile % b.token_tiles * Shape::kCols + rank * (Shape::kCols / 2);
    const std::uint8_t* tile = p.tiles + (std::uint64_t{strip} * p.tiles_per_strip + s.begin) * Shape::kTileBytes;
    for (std::uint32_t half = 2 * s.begin; half < 2 * s.end; half += Shape::kHalves, tile += Shape::kStripBytes) {
      const std::uint32_t full = base + Shape::kFull + slot * 8, stage = stages + slot * Shape::kStageBytes;
      barrier_wait(base + Shape::kEmpty + slot * 8, phase);
      if (lane == 0) {
        barrier_expect(full, Shape::kStageBytes);
#pragma unroll
        for (std::uint32_t i = 0; i < Shape::kHalves; ++i)
          tensor_copy_to_pair(stage + i * Shape::kXHalfBytes + rank * (Shape::kXHalfBytes / 2), &b.x_map,
                              (half + i) * 64, token0, full);
      }
      __syncwarp();
      if (lane < Shape::kStrips)
        bulk_copy_streaming(stage + Shape::kXBytes + lane * Shape::kStripBytes, tile, Shape::kStripBytes, full);
      if (++slot == Shape::kStages) slot = 0, phase ^= 1;
    }
  });
}

// Half a tile of this warp's strip, from shared memory to operand A.
template <Kind kKind>
__device__ __forceinline__ void load_half(HalfFragments& a, std::uint32_t strip_at, uint4 patches, std::uint32_t half,
                                          uint2 palette, const Overflow& overflow, std::uint32_t lane) {
  if constexpr (kKind == Kind::kRaw) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 v = load_shared_16(strip_at + i * 512 + lane * 16);
      a.a[i][0] = v.x, a.a[i][1] = v.y, a.a[i][2] = v.z, a.a[i][3] = v.w;
    }
  } else {
    const std::uint32_t at = strip_at + lane * 16;
    const HalfCodes codes{{load_shared_16(at), load_shared_16(at + 512)}, load_shared_16(at + 1024)};
    decode_half(a, codes, palette);
    apply_patches(a, patches, half, lane, overflow);
  }
}

template <class Shape>
__device__ __forceinline__ void write_tile(const LinearParams& p, const float (&acc)[Shape::kSubs][Shape::kCols / 2],
                                           std::uint32_t first_strip, std::uint32_t token0, std::uint32_t lane) {
#pragma unroll
  for (int sub = 0; sub < Shape::kSubs; ++sub)
#pragma unroll
    for (int t = 0; t < Shape::kCols / 8; ++t) {
      const float* v = acc[sub] + t * 4;
      write_strip(p, {v[0], v[1], v[2], v[3]}, first_strip + sub * 4, token0 + t * 8, lane);
    }
}

template <class Shape>
__device__ __forceinline__ void write_part(float4* part, const float (&acc)[Shape::kSubs][Shape::kCols / 2]) {
#pragma unroll
  for (int sub = 0; sub < Shape::kSubs; ++sub)
#pragma unroll
    for (int t = 0; t < Shape::kCols / 8; ++t) {
      const float* v = acc[sub] + t * 4;
      __stcg(part + (sub * (Shape::kCols / 8) + t) * (Shape::kGroups * 128) + threadIdx.x,
             float4{v[0], v[1], v[2], v[3]});
    }
}

// Both blocks of the pair must know that x in a stage is no longer needed.
__device__ __forceinline__ void release_stage(std::uint32_t barrier, std::uint32_t lane) {
  if (lane < 2) barrier_arrive_at(barrier, lane);
}

template <class Shape>
__device__ __forceinline__ void batch_consume(const BatchParams& b, std::uint32_t base, std::uint32_t stages,
                                              const Line<Shape>& line, std::uint32_t rank) {
  const LinearParams& p = b.p;
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, pair = blockIdx.x / 2;
  const std::uint32_t my_strip = warp / 4 * Shape::kSubs * 4 + warp % 4;  // of the first 64-row tile
  std::uint32_t slot = 0, phase = 0, last_slot = Shape::kStages;
  for_each_segment(line.start(pair), line.start(pair + 1), line.steps, [&](const Segment& s) {
    const std::uint32_t strip0 = (s.tile / b.token_tiles * 2 + rank) * Shape::kStrips + my_strip;
    uint2 palettes[Shape::kSubs];
#pragma unroll
    for (int sub = 0; sub < Shape::kSubs; ++sub)
      palettes[sub] = Shape::kKind == Kind::kRaw ? uint2{} : __ldg(p.palettes + min(strip0 + sub * 4, p.strips - 1));
    float acc[Shape::kSubs][Shape::kCols / 2];
#pragma unroll
    for (int sub = 0; sub < Shape::kSubs; ++sub)
#pragma unroll
      for (int i = 0; i < Shape::kCols / 2; ++i) acc[sub][i] = 0.0f;
    HalfFragments a[2];  // the one in use by the tensor cores and the one being decoded
    // Patch words of eight steps; those of the next eight are on their way.
    const auto load_patches = [&](int sub, std::uint32_t step) -> std::uint32_t {
      const std::uint32_t at = step + lane / 4;
      if (Shape::kKind == Kind::kRaw || at >= s.end) return 0;
      const uint4* words = p.patches + (std::uint64_t{min(strip0 + sub * 4, p.strips - 1)} * line.steps + at);
      return __ldg(reinterpret_cast<const std::uint32_t*>(words) + lane % 4);
    };
    PatchWords patches[Shape::kSubs];
    std::uint32_t next_patches[Shape::kSubs];
#pragma unroll
    for (int sub = 0; sub < Shape::kSubs; ++sub) next_patches[sub] = load_patches(sub, s.begin);
    for (std::uint32_t step = s.begin; step < s.end; ++step) {
      if (Shape::kKind == Kind::kNibble && (step - s.begin) % 8 == 0) {
#pragma unroll
        for (int sub = 0; sub < Shape::kSubs; ++sub) {
          patches[sub].take(next_patches[sub]);
          next_patches[sub] = load_patches(sub, step + 8);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t stage = stages + slot * Shape::kStageBytes, part = half % Shape::kHalves;
        if (part == 0) barrier_wait(base + Shape::kFull + slot * 8, phase);
#pragma unroll
        for (int sub = 0; sub < Shape::kSubs; ++sub) {
          HalfFragments& regs = a[(half * Shape::kSubs + sub) & 1];
          load_half<Shape::kKind>(
              regs, stage + Shape::kXBytes + (my_strip + sub * 4) * Shape::kStripBytes + part * Shape::kHalfBytes,
              patches[sub].of((step - s.begin) % 8), half, palettes[sub], p.overflow, lane);
          wgmma_fence();
#pragma unroll
          for (int i = 0; i < 4; ++i)
            Wgmma<Shape::kCols>::multiply(acc[sub], regs.a[i],
                                          wgmma_descriptor(stage + part * Shape::kXHalfBytes) + i * 2);
          wgmma_commit();
          // The other registers are free once all groups but this one are done, and
          // with the last of a stage's groups its shared memory is, too.
          wgmma_wait<1>();
          if (part == 0 && sub == 0 && last_slot != Shape::kStages)
            release_stage(base + Shape::kEmpty + last_slot * 8, lane);
        }
        if (part + 1 < Shape::kHalves) continue;
        last_slot = slot;
        if (++slot == Shape::kStages) slot = 0, phase ^= 1;
      }
    }
    wgmma_wait<0>();
    release_stage(base + Shape::kEmpty + last_slot * 8, lane);
    last_slot = Shape::kStages;
    if (s.begin == 0 && s.end == line.steps)
      write_tile<Shape>(p, acc, strip0, s.tile % b.token_tiles * Shape::kCols, lane);
    else
      write_part<Shape>(part_of<Shape>(p, pair, s.begin == 0, rank), acc);
  });
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1) batch_gemm(const __grid_constant__ BatchParams b) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::uint8_t unaligned[];
  // Swizzled rows need stages on multiples of 1024 bytes.
  const std::uint32_t base = (smem_address(unaligned) + 1023) / 1024 * 1024, stages = base + Shape::kStageStart;
  const std::uint32_t rank = cluster_rank();
  if (threadIdx.x == 0) {
    for (std::uint32_t i = 0; i < Shape::kStages; ++i) {
      barrier_init(base + Shape::kFull + 8 * i, 1);
      barrier_init(base + Shape::kEmpty + 8 * i, 2 * Shape::kWarps);
    }
    barrier_init_done();
  }
  cluster_sync();
  let_next_kernel_start();
  wait_for_previous_kernel();
  const Line<Shape> line(b);
  if (threadIdx.x >= Shape::kGroups * 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x / 32 == Shape::kWarps) batch_produce<Shape>(b, base, stages, line, rank);
  } else {
    if constexpr (Shape::kGroups == 2)
      asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    else
      asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
    batch_consume<Shape>(b, base, stages, line, rank);
  }
  __syncwarp();
  cluster_sync();  // the other block may still send x or release stages here
#endif
}

// One warp: sixteen outputs of eight tokens of a tile that was cut.
template <class Shape>
__global__ void __launch_bounds__(256) batch_add(const __grid_constant__ BatchParams b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  let_next_kernel_start();
  wait_for_previous_kernel();
  const LinearParams& p = b.p;
  const Line<Shape> line(b);
  constexpr std::uint32_t kChunks = Shape::kPartQuads / 32;
  const std::uint32_t lane = threadIdx.x % 32, chunk = blockIdx.x * 8 + threadIdx.x / 32;
  const std::uint32_t tile = chunk / (2 * kChunks), rank = chunk / kChunks % 2, quad = chunk % kChunks;
  const std::uint64_t start = std::uint64_t{tile} * line.steps;
  if (start >= line.total) return;
  const std::uint32_t first = line.pair_of(start), last = line.pair_of(start + line.steps - 1);
  if (first == last) return;  // whole, and already written
  const std::uint32_t warp = quad % Shape::kWarps, sub = quad / Shape::kWarps / (Shape::kCols / 8);
  const std::uint32_t token = tile % b.token_tiles * Shape::kCols + quad / Shape::kWarps % (Shape::kCols / 8) * 8;
  const std::uint32_t strip =
      (tile / b.token_tiles * 2 + rank) * Shape::kStrips + warp / 4 * Shape::kSubs * 4 + warp % 4 + sub * 4;
  if (token >= p.m || strip >= p.strips) return;
  float4 sum = __ldcg(part_of<Shape>(p, first, true, rank) + quad * 32 + lane);
#pragma unroll 4
  for (std::uint32_t pair = first + 1; pair <= last; ++pair)
    sum = add(sum, __ldcg(part_of<Shape>(p, pair, false, rank) + quad * 32 + lane));
  write_strip(p, sum, strip, token, lane);
#endif
}

}  // namespace snug::gemm
