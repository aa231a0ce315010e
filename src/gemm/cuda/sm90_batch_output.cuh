// gemm/cuda/sm90_batch_output.cuh - the epilogue of the batch kernel: from sums to y.
#pragma once
#include "gemm/cuda/sm90_batch_shape.cuh"

namespace snug::gemm {

// The sums of a thread, by fours: 16 rows of W, eight of x.
template <class Shape>
struct Sums {
  float v[Shape::kTileM / 2];

  __device__ __forceinline__ float4 quad(int i) const {
    return {v[i * 4], v[i * 4 + 1], v[i * 4 + 2], v[i * 4 + 3]};
  }
  __device__ __forceinline__ void set(int i, float4 quad) {
    v[i * 4] = quad.x, v[i * 4 + 1] = quad.y, v[i * 4 + 2] = quad.z, v[i * 4 + 3] = quad.w;
  }
};

// Writes kCount adjacent quads of a thread; `token` belongs to the first.
template <int kCount>
__device__ __forceinline__ void write_quads(const LinearParams& p, const float4 (&sums)[kCount],
                                            std::uint32_t strip, std::uint32_t token) {
  const std::uint32_t lane = threadIdx.x % 32;
  if (can_write_wide(p, strip)) {
    write_strip_wide<kCount / 2>(p, sums, strip, token, lane);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) write_strip(p, sums[i], strip, token + i * 8, lane);
  }
}

// All sums of a thread, some at a time to limit the code size.
template <int kFrom = 0, class Shape>
__device__ __forceinline__ void write_tile(const LinearParams& p, const Sums<Shape>& sums,
                                           std::uint32_t strip, std::uint32_t token0) {
  constexpr int kCount = std::min(Shape::kQuads - kFrom, 14);
  float4 some[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) some[i] = sums.quad(kFrom + i);
  write_quads(p, some, strip, token0 + kFrom * 8);
  if constexpr (kFrom + kCount < Shape::kQuads) write_tile<kFrom + kCount>(p, sums, strip, token0);
}

// Adds the sums of the second warpgroup that shares rows of W to those of the first, which gets
// true.
template <class Shape>
__device__ __forceinline__ bool add_k_groups(Sums<Shape>& sums, std::uint32_t base, bool is_first) {
  if constexpr (Shape::kKGroups == 1) return true;
  const std::uint32_t mine = base + Shape::kSums + threadIdx.x % Shape::kOutThreads * 16;
  const auto sync = [] { asm volatile("bar.sync 1, %0;" ::"n"(Shape::kGroups * 128) : "memory"); };
  if (!is_first)
#pragma unroll
    for (int i = 0; i < Shape::kQuads; ++i)
      store_shared(mine + i * (Shape::kOutThreads * 16), sums.quad(i));
  sync();
  if (is_first)
#pragma unroll
    for (int i = 0; i < Shape::kQuads; ++i)
      sums.set(i, add(sums.quad(i), load_shared_f32x4(mine + i * (Shape::kOutThreads * 16))));
  sync();  // the next segment may use the place
  return is_first;
}

// Adds the parts of teams [first, last), in order, and then a thread's own sums; some at a time.
template <int kFrom = 0, class Shape>
__device__ __forceinline__ void add_before(const LinearParams& p, Sums<Shape>& sums,
                                           std::uint32_t first, std::uint32_t last,
                                           std::uint32_t rank) {
  constexpr int kCount = std::min(Shape::kQuads - kFrom, 8);
  float4 sum[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum[i] = {-0.0f, -0.0f, -0.0f, -0.0f};  // changes no sum
#pragma unroll 1
  for (std::uint32_t team = first; team < last; ++team) {
    const float4* const part = part_of<Shape>(p, team, rank) + threadIdx.x;
    float4 loaded[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) loaded[i] = __ldcg(part + (kFrom + i) * Shape::kOutThreads);
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum[i] = add(sum[i], loaded[i]);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums.set(kFrom + i, add(sum[i], sums.quad(kFrom + i)));
  if constexpr (kFrom + kCount < Shape::kQuads)
    add_before<kFrom + kCount>(p, sums, first, last, rank);
}

// Stream-K: a warp that does not end a tile stores its sums; the one that ends it waits for them
// and adds all in order. It waits for earlier thread blocks only, which therefore run or have run.
template <class Shape>
__device__ __forceinline__ void add_parts(const LinearParams& p, Sums<Shape>& sums,
                                          const Line& line, const Rank& rank, const Segment& s,
                                          std::uint32_t strip, std::uint32_t token0) {
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // The team that ends a tile identifies it.
  const std::uint32_t start = (s.tile - line.first_tile()) * line.steps;
  const std::uint32_t last = s.end == line.steps ? rank.team : line.team_of(start + line.steps - 1);
  std::uint32_t* const counter =
      p.counters + (last * kTeam + rank.in_team()) * Shape::kWarps + warp;
  if (s.end != line.steps) {
    float4* const mine = part_of<Shape>(p, rank.team, rank.in_team()) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < Shape::kQuads; ++i) __stcg(mine + i * Shape::kOutThreads, sums.quad(i));
    fence_gpu();
    __syncwarp();
    if (lane == 0) atomicAdd(counter, 1u);
    return;
  }
  const std::uint32_t first = line.team_of(start);
  while (!__all_sync(kAllLanes, load_acquire(counter) == last - first)) {
  }
  if (lane == 0) *counter = 0;  // ready for the next call
  add_before(p, sums, first, last, rank.in_team());
  write_tile(p, sums, strip, token0);
}

// Split-K: the teams of a cluster add their parts. Each team gets a share of the sums from
// all of them; two quads at a time go to each team in turn.
template <class Shape>
__device__ __forceinline__ void add_in_cluster(const LinearParams& p, const Sums<Shape>& sums,
                                               std::uint32_t base, const Rank& rank,
                                               std::uint32_t strip, std::uint32_t token0) {
  constexpr std::uint32_t kThreads = Shape::kOutThreads;
  const std::uint32_t mine = rank.in_cluster / kTeam, log_split_k = p.split_k == 4 ? 2 : 1;
  const std::uint32_t shares = (Shape::kQuads / 2 + p.split_k - 1) >> log_split_k;
  const auto place = [&](std::uint32_t split, std::uint32_t share) {
    return base + Shape::kX + ((split * shares + share) * 2 * kThreads + threadIdx.x) * 16;
  };
  cluster_sync();  // the rings, whose memory is reused, are no longer needed
#pragma unroll
  for (int i = 0; i < Shape::kQuads; ++i)
    store_cluster(cluster_address(place(mine, i / 2 >> log_split_k) + i % 2 * (kThreads * 16),
                                  (i / 2 & (p.split_k - 1)) * kTeam + rank.in_team()),
                  sums.quad(i));
  cluster_sync();
  for (std::uint32_t share = 0; share < shares; ++share) {
    const std::uint32_t quad = (share * p.split_k + mine) * 2;
    if (quad >= std::uint32_t{Shape::kQuads}) break;
    float4 sum[2] = {};
    for (std::uint32_t split = 0; split < p.split_k; ++split)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 part = load_shared_f32x4(place(split, share) + i * (kThreads * 16));
        sum[i] = split == 0 ? part : add(sum[i], part);
      }
    write_quads(p, sum, strip, token0 + quad * 8);
  }
}

}  // namespace snug::gemm
