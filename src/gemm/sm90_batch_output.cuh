// gemm/sm90_batch_output.cuh - from the sums of the batch kernel's threads to y.
#pragma once
#include "gemm/sm90_batch_shape.cuh"

namespace snug::gemm {

// The sums of a thread, by fours: 16 rows of W, eight of x.
template <class Shape>
struct Sums {
  float v[Shape::kSubs][Shape::kCols / 2];

  __device__ __forceinline__ float4 quad(int i) const {
    const float* at = v[i / (Shape::kCols / 8)] + i % (Shape::kCols / 8) * 4;
    return {at[0], at[1], at[2], at[3]};
  }
};

// Writes kCount neighbouring quads of a thread, all of one strip; strip0 and token0 are
// those of its first quad.
template <class Shape, int kCount>
__device__ __forceinline__ void write_quads(const LinearParams& p, const float4 (&sums)[kCount],
                                            std::uint32_t quad, std::uint32_t strip0,
                                            std::uint32_t token0) {
  constexpr std::uint32_t kTokenTiles = Shape::kCols / 8;
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

// All sums of a thread, some at a time: the code should not grow beyond all measure.
template <class Shape>
__device__ __forceinline__ void write_tile(const LinearParams& p, const Sums<Shape>& sums,
                                           std::uint32_t strip0, std::uint32_t token0) {
  constexpr int kCount = Shape::kCols / 8 < 8 ? Shape::kCols / 8 : 8;
#pragma unroll
  for (int i = 0; i < static_cast<int>(Shape::kQuads); i += kCount) {
    float4 some[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) some[j] = sums.quad(i + j);
    write_quads<Shape>(p, some, i, strip0, token0);
  }
}

// The teams of a cluster add their parts: each gets some of the sums from all of them,
// two quads at a time in turn.
template <class Shape>
__device__ __forceinline__ void add_in_cluster(const LinearParams& p, const Sums<Shape>& sums,
                                               std::uint32_t base, const Rank<Shape>& rank,
                                               std::uint32_t strip0, std::uint32_t token0) {
  constexpr std::uint32_t kThreads = Shape::kGroups * 128;
  const std::uint32_t mine = rank.in_cluster / Shape::kTeam, log_splits = p.splits == 4 ? 2 : 1;
  const std::uint32_t shares = (Shape::kQuads / 2 + p.splits - 1) >> log_splits;
  const auto place = [&](std::uint32_t split, std::uint32_t share) {
    return base + Shape::kX + ((split * shares + share) * 2 * kThreads + threadIdx.x) * 16;
  };
  cluster_sync();  // no block needs its rings any more
#pragma unroll
  for (std::uint32_t i = 0; i < Shape::kQuads; ++i)
    store_in_cluster_16(address_in(place(mine, i / 2 >> log_splits) + i % 2 * (kThreads * 16),
                                   (i / 2 & (p.splits - 1)) * Shape::kTeam + rank.in_team()),
                        sums.quad(i));
  cluster_sync();
  for (std::uint32_t share = 0; share < shares; ++share) {
    const std::uint32_t quad = (share * p.splits + mine) * 2;
    if (quad >= Shape::kQuads) break;
    float4 sum[2] = {};
    for (std::uint32_t split = 0; split < p.splits; ++split)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 part = load_shared_quad(place(split, share) + i * (kThreads * 16));
        sum[i] = split == 0 ? part : add(sum[i], part);
      }
    write_quads<Shape>(p, sum, quad, strip0, token0);
  }
}

}  // namespace snug::gemm
