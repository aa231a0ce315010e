// gemm/cuda/sm90_batch_output.cuh - the epilogue of the batch kernel: from sums to y.
#pragma once
#include "gemm/cuda/sm90_batch_shape.cuh"

namespace snug::gemm {

// The sums of a thread, by fours: 16 rows of W, eight of x.
template <class Shape>
struct Sums {
  float v[Shape::kSubs][Shape::kTileM / 2];

  __device__ __forceinline__ float4 quad(int i) const {
    const float* at = v[i / (Shape::kTileM / 8)] + i % (Shape::kTileM / 8) * 4;
    return {at[0], at[1], at[2], at[3]};
  }
  __device__ __forceinline__ void set(int i, float4 quad) {
    float* at = v[i / (Shape::kTileM / 8)] + i % (Shape::kTileM / 8) * 4;
    at[0] = quad.x, at[1] = quad.y, at[2] = quad.z, at[3] = quad.w;
  }
};

// Writes kCount adjacent quads of a thread, all of one strip; strip0 and token0 belong to
// its first quad.
template <class Shape, int kCount>
__device__ __forceinline__ void write_quads(const LinearParams& p, const float4 (&sums)[kCount],
                                            std::uint32_t quad, std::uint32_t strip0,
                                            std::uint32_t token0) {
  constexpr std::uint32_t kTokenTiles = Shape::kTileM / 8;
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t strip = strip0 + quad / kTokenTiles * 4;
  const std::uint32_t token = token0 + quad % kTokenTiles * 8;
  if (can_write_wide(p, strip)) {
    write_strip_wide<kCount / 2>(p, sums, strip, token, lane);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) write_strip(p, sums[i], strip, token + i * 8, lane);
  }
}

// All sums of a thread, some at a time to limit the code size.
template <class Shape>
__device__ __forceinline__ void write_tile(const LinearParams& p, const Sums<Shape>& sums,
                                           std::uint32_t strip0, std::uint32_t token0) {
  constexpr int kCount = Shape::even_share(14);
#pragma unroll
  for (int i = 0; i < static_cast<int>(Shape::kQuads); i += kCount) {
    float4 some[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) some[j] = sums.quad(i + j);
    write_quads<Shape>(p, some, i, strip0, token0);
  }
}

// Stream-K: stores the sums of a warp for its part of a tile. The last warp to arrive for
// these rows of the tile adds all parts in order, so that no warp waits for another.
template <class Shape>
__device__ __forceinline__ void add_parts(const LinearParams& p, Sums<Shape>& sums,
                                          const Line& line, const Rank& rank, const Segment& s,
                                          std::uint32_t strip0, std::uint32_t token0) {
  constexpr std::uint32_t kThreads = Shape::kGroups * 128;
  constexpr int kQuads = static_cast<int>(Shape::kQuads);
  // Quads and parts that are loaded at a time.
  constexpr int kCount = Shape::even_share(8);
  constexpr std::uint32_t kParts = Shape::kQuads > 16 ? 1 : Shape::kGroups == 2 ? 4 : 2;
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float4* const mine = part_of<Shape>(p, rank.team, s.begin == 0, rank.in_team()) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kQuads; ++i) __stcg(mine + i * kThreads, sums.quad(i));
  const std::uint64_t start = std::uint64_t{s.tile} * line.steps;
  const std::uint32_t first = line.team_of(start), last = line.team_of(start + line.steps - 1);
  // A team begins at most one tile that it does not end, so its number identifies the tile.
  std::uint32_t* const counter =
      p.counters + (first * kTeam + rank.in_team()) * Shape::kWarps + warp;
  fence_gpu();
  __syncwarp();
  std::uint32_t arrived = 0;
  if (lane == 0) arrived = atomicAdd(counter, 1u);
  if (__shfl_sync(kAllLanes, arrived, 0) != last - first) return;
  fence_gpu();
  if (lane == 0) *counter = 0;  // ready for the next call
#pragma unroll
  for (int quad = 0; quad < kQuads; quad += kCount) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      sums.set(quad + i, {-0.0f, -0.0f, -0.0f, -0.0f});  // changes no sum
#pragma unroll 1
    for (std::uint32_t team = first; team <= last; team += kParts) {
      float4 parts[kParts][kCount];
#pragma unroll
      for (std::uint32_t j = 0; j < kParts; ++j) {
        const std::uint32_t from = min(team + j, last);
        const float4* const part =
            part_of<Shape>(p, from, from == first, rank.in_team()) + threadIdx.x;
#pragma unroll
        for (int i = 0; i < kCount; ++i) parts[j][i] = __ldcg(part + (quad + i) * kThreads);
      }
#pragma unroll
      for (std::uint32_t j = 0; j < kParts; ++j) {
        const bool there = team + j <= last;
#pragma unroll
        for (int i = 0; i < kCount; ++i)
          if (there) sums.set(quad + i, add(sums.quad(quad + i), parts[j][i]));
      }
    }
  }
  write_tile<Shape>(p, sums, strip0, token0);
}

// Split-K: the teams of a cluster add their parts. Each team gets a share of the sums from
// all of them; two quads at a time go to each team in turn.
template <class Shape>
__device__ __forceinline__ void add_in_cluster(const LinearParams& p, const Sums<Shape>& sums,
                                               std::uint32_t base, const Rank& rank,
                                               std::uint32_t strip0, std::uint32_t token0) {
  constexpr std::uint32_t kThreads = Shape::kGroups * 128;
  const std::uint32_t mine = rank.in_cluster / kTeam, log_split_k = p.split_k == 4 ? 2 : 1;
  const std::uint32_t shares = (Shape::kQuads / 2 + p.split_k - 1) >> log_split_k;
  const auto place = [&](std::uint32_t split, std::uint32_t share) {
    return base + Shape::kX + ((split * shares + share) * 2 * kThreads + threadIdx.x) * 16;
  };
  cluster_sync();  // the rings, whose memory is reused, are no longer needed
#pragma unroll
  for (std::uint32_t i = 0; i < Shape::kQuads; ++i)
    store_cluster(cluster_address(place(mine, i / 2 >> log_split_k) + i % 2 * (kThreads * 16),
                                  (i / 2 & (p.split_k - 1)) * kTeam + rank.in_team()),
                  sums.quad(i));
  cluster_sync();
  for (std::uint32_t share = 0; share < shares; ++share) {
    const std::uint32_t quad = (share * p.split_k + mine) * 2;
    if (quad >= Shape::kQuads) break;
    float4 sum[2] = {};
    for (std::uint32_t split = 0; split < p.split_k; ++split)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 part = load_shared_f32x4(place(split, share) + i * (kThreads * 16));
        sum[i] = split == 0 ? part : add(sum[i], part);
      }
    write_quads<Shape>(p, sum, quad, strip0, token0);
  }
}

}  // namespace snug::gemm
