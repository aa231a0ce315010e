// gemm/cuda/sm90_batch_shape.cuh - how the batch kernel divides its work: tile sizes, shared
// memory, scheduler.
#pragma once
#include <cuda.h>

#include <algorithm>

#include "gemm/cuda/linear_output.cuh"
#include "gpu/ptx_cluster.cuh"

namespace snug::gemm {

struct BatchParams {
  LinearParams p;       // split_k: teams of a cluster; 1: stream-K
  CUtensorMap x_map;    // boxes of 64 columns by kTileM / kTeam rows, swizzled
  std::uint64_t share;  // stream-K: steps of each of `teams`; `extra` of them have one more
  std::uint32_t extra, teams, token_tiles;
};

inline constexpr std::uint32_t kTeam = 2;  // thread blocks that share x

template <int kTileM_, int kGroups_, int kSubs_, Kind kKind_>
struct BatchShape {
  static constexpr int kTileM = kTileM_;    // rows of x
  static constexpr int kGroups = kGroups_;  // warpgroups that multiply
  static constexpr int kSubs = kSubs_;      // 64-row tiles of each of them
  static constexpr Kind kKind = kKind_;
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr std::uint32_t kWarps = kGroups * 4;
  static constexpr std::uint32_t kStrips = kGroups * kSubs * 4;
  static constexpr std::uint32_t kTileBytes = tile_bytes_of(kKind);
  // A stage has whole tiles of W, since copies of half tiles are a tenth slower (H200), or x
  // for half tiles.
  static constexpr std::uint32_t kWBytes = kStrips * kTileBytes;
  static constexpr std::uint32_t kXBytes = kTileM * 128;
  static constexpr std::uint32_t kMaxSmem = 227 * 1024;
  // Barriers take 1024 bytes. Copies are served in order, so x waits for all W requested before
  // it: its ring must reach as far ahead. But less than four stages of W are slower.
  static constexpr std::uint32_t kRoom = kMaxSmem - 1024;
  static constexpr std::uint32_t kWStages =
      std::min(kTileM == 256 ? (kRoom - 4 * kXBytes) / kWBytes
                             : std::max(kRoom / (kWBytes + 2 * kXBytes),
                                        std::min((kRoom - 5 * kXBytes) / kWBytes, 4u)),
               8u);
  static constexpr std::uint32_t kXStages = std::min((kRoom - kWStages * kWBytes) / kXBytes, 16u);
  static_assert(kXBytes % 1024 == 0 && kWStages >= 2);
  // Shared memory, in bytes from a multiple of 1024: x, W, barriers.
  static constexpr std::uint32_t kX = 0, kW = kX + kXStages * kXBytes;
  static constexpr std::uint32_t kWFull = kW + kWStages * kWBytes, kWEmpty = kWFull + 8 * kWStages;
  static constexpr std::uint32_t kXFull = kWEmpty + 8 * kWStages, kXEmpty = kXFull + 8 * kXStages;
  static constexpr std::uint32_t kSmemBytes = kWFull + 1024;
  static constexpr std::uint32_t kQuads = kSubs * kTileM / 8;  // sums of a thread, by fours
  // Registers a thread, after setmaxnreg.
  static constexpr int kCopyRegs = kGroups == 2 ? 40 : 32;
  static constexpr int kMultiplyRegs = kGroups == 4 ? 112 : kGroups == 3 ? 160 : 232;
  // Whether there are registers to prefetch codes of the next half tile. Raw weights have no
  // codes: they go into operand registers that wgmma may still read.
  static constexpr bool kAhead = kKind == Kind::kFixed && (kMultiplyRegs > 112 || kTileM < 64);
  static constexpr std::uint32_t kPartQuads = kStrips * kStripRows * kTileM / 4;
  static_assert(kPartQuads * 16 <= kWFull);
  // Sums of a strip that are written or added at once: at most so many, and an even share.
  static constexpr int even_share(int most) {
    while (kTileM / 8 % most != 0) most -= 2;
    return most;
  }
};

// Steps through the stages of a ring.
template <std::uint32_t kStages>
struct RingPosition {
  std::uint32_t slot = 0, phase;

  __device__ __forceinline__ explicit RingPosition(std::uint32_t first_phase)
      : phase(first_phase) {}
  __device__ __forceinline__ void advance() {
    if (++slot == kStages) slot = 0, phase ^= 1;
  }
};

// The part of one tile of y (rows of all blocks of a team) that one team computes.
struct Segment {
  std::uint32_t tile, row_tile, token_tile;
  std::uint32_t begin, end;  // steps of k
};

// Most numbers are small, and 64-bit divisions would delay the start of the kernel.
__device__ __forceinline__ std::uint64_t quotient(std::uint64_t a, std::uint64_t b) {
  if ((a | b) >> 32 == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

// The scheduler: which team computes which steps of k of which tiles of y.
struct Line {
  std::uint64_t share;
  std::uint32_t extra, teams, token_tiles, steps, split_k;

  __device__ __forceinline__ explicit Line(const BatchParams& b)
      : share(b.share),
        extra(b.extra),
        teams(b.teams),
        token_tiles(b.token_tiles),
        steps(b.p.tiles_per_strip),
        split_k(b.p.split_k) {}
  __device__ __forceinline__ std::uint64_t start(std::uint32_t team) const {
    if (split_k == 1) return team * share + team * extra / teams;
    const std::uint32_t log_split_k = split_k == 4 ? 2 : 1;
    return std::uint64_t{team >> log_split_k} * steps +
           ((team & (split_k - 1)) * steps >> log_split_k);
  }
  // Stream-K: the team that computes step `at`.
  __device__ __forceinline__ std::uint32_t team_of(std::uint64_t at) const {
    return static_cast<std::uint32_t>(quotient((at + 1) * teams - 1, share * teams + extra));
  }
  // Calls f for each segment of a team.
  template <class F>
  __device__ __forceinline__ void for_each_segment(std::uint32_t team, const F& f) const {
    std::uint64_t first = start(team);
    const std::uint64_t last = start(team + 1);
    while (first < last) {
      const auto tile = static_cast<std::uint32_t>(quotient(first, steps));
      const auto begin = static_cast<std::uint32_t>(first - std::uint64_t{tile} * steps);
      const auto end =
          static_cast<std::uint32_t>(min(std::uint64_t{steps}, begin + (last - first)));
      const std::uint32_t row_tile = token_tiles == 1 ? tile : tile / token_tiles;
      f(Segment{tile, row_tile, tile - row_tile * token_tiles, begin, end});
      first += end - begin;
    }
  }
};

// The position of a thread block in its cluster, and its team.
struct Rank {
  std::uint32_t in_cluster, team;

  __device__ __forceinline__ Rank() : in_cluster(cluster_rank()), team(blockIdx.x / kTeam) {}
  __device__ __forceinline__ std::uint32_t in_team() const { return in_cluster % kTeam; }
  __device__ __forceinline__ std::uint32_t first_of_team() const { return in_cluster - in_team(); }
};

// Stream-K: where a block stores its part of a divided tile. A team has at most two: of the
// tile that it does not begin, and of the one that it does not end.
template <class Shape>
__device__ __forceinline__ float4* part_of(const LinearParams& p, std::uint32_t team, bool begins,
                                           std::uint32_t rank) {
  return p.partials + ((std::uint64_t{team} * 2 + begins) * kTeam + rank) * Shape::kPartQuads;
}

}  // namespace snug::gemm
