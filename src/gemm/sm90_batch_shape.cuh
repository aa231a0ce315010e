// gemm/sm90_batch_shape.cuh - how the batch kernel divides its work: sizes, shared memory,
// who computes what.
#pragma once
#include <cuda.h>

#include "gemm/linear_params.cuh"

namespace snug::gemm {

struct BatchParams {
  LinearParams p;     // splits: teams of a cluster; 1: stream-K
  CUtensorMap x_map;  // boxes of 64 columns by kCols / kTeam rows, swizzled
  std::uint32_t token_tiles, teams;
};

template <int kCols_, int kGroups_, int kSubs_, int kBlocks_, int kTeam_, Kind kKind_>
struct BatchShape {
  static constexpr int kCols = kCols_;      // rows of x
  static constexpr int kGroups = kGroups_;  // warpgroups that multiply
  static constexpr int kSubs = kSubs_;      // 64-row tiles of each of them
  // Thread blocks on one SM. Two: the next kernel's are there before those of this one
  // leave, which hides its start where there is little to do.
  static constexpr int kBlocks = kBlocks_;
  static constexpr std::uint32_t kTeam = kTeam_;  // thread blocks that share x
  static constexpr Kind kKind = kKind_;
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr std::uint32_t kWarps = kGroups * 4;
  static constexpr std::uint32_t kStrips = kGroups * kSubs * 4;
  static constexpr std::uint32_t kTileBytes =
      kKind == Kind::kRaw ? kRawTileBytes : kNibbleTileBytes;
  // Whole tiles of W, since copies of half of one are a tenth slower (H200), and x for half of
  // them.
  static constexpr std::uint32_t kWBytes = kStrips * kTileBytes;
  static constexpr std::uint32_t kXBytes = kCols * 128;
  static constexpr std::uint32_t kMaxSmem = (kBlocks == 2 ? 113 : 226) * 1024;
  static constexpr std::uint32_t kXStages = kXBytes * kBlocks <= 8192 ? 8 : kCols == 128 ? 5 : 4;
  static constexpr std::uint32_t kWRoom = kMaxSmem - 2048 - kXStages * kXBytes;
  static constexpr std::uint32_t kWStages = kWRoom / kWBytes < 8 ? kWRoom / kWBytes : 8;
  static_assert(kXBytes % 1024 == 0 && kWStages >= 2);
  // Shared memory, in bytes from a multiple of 1024: barriers, x, W.
  static constexpr std::uint32_t kWFull = 0, kWEmpty = kWFull + 8 * kWStages;
  static constexpr std::uint32_t kXFull = kWEmpty + 8 * kWStages, kXEmpty = kXFull + 8 * kXStages;
  static constexpr std::uint32_t kX = 1024, kW = kX + kXStages * kXBytes;
  static constexpr std::uint32_t kSmemBytes = 1024 + kW + kWStages * kWBytes;
  static constexpr std::uint32_t kQuads = kSubs * kCols / 8;  // sums of a thread, by fours
  // Registers after they have been shared out anew.
  static constexpr int kCopyRegs = kGroups == 2 && kBlocks == 1 ? 40 : 32;
  static constexpr int kMultiplyRegs = kBlocks == 2   ? 104
                                       : kGroups == 4 ? 112
                                       : kGroups == 3 ? 160
                                                      : 232;
  // Whether there are registers for codes of the next half tile. Raw weights have no
  // codes, and wgmma may still read the registers they belong in.
  static constexpr bool kAhead = kKind == Kind::kNibble && (kMultiplyRegs > 112 || kCols < 64);
  static constexpr std::uint32_t kPartQuads = kStrips * kStripRows * kCols / 4;
  static_assert(kPartQuads * 16 <= kSmemBytes - 2048);
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

// A piece of one tile of y (rows for all blocks of a team) that one team computes.
struct Segment {
  std::uint32_t tile, begin, end;  // steps of k: [begin, end)
};

// How the line is shared.
template <class Shape>
struct Line {
  std::uint64_t total;
  std::uint32_t steps, teams, splits;

  __device__ __forceinline__ explicit Line(const BatchParams& b) {
    constexpr std::uint32_t kTeamStrips = Shape::kTeam * Shape::kStrips;
    const std::uint32_t row_tiles = (b.p.strips + kTeamStrips - 1) / kTeamStrips;
    steps = b.p.tiles_per_strip;
    total = std::uint64_t{row_tiles} * b.token_tiles * steps;
    teams = b.teams;
    splits = b.p.splits;
  }
  __device__ __forceinline__ std::uint64_t start(std::uint32_t team) const {
    if (splits == 1) return total * team / teams;
    return std::uint64_t{team / splits} * steps + team % splits * steps / splits;
  }
  // The team that computes step `at`, without splits.
  __device__ __forceinline__ std::uint32_t team_of(std::uint64_t at) const {
    return static_cast<std::uint32_t>(((at + 1) * teams - 1) / total);
  }
  // Calls f for each piece that belongs to a team.
  template <class F>
  __device__ __forceinline__ void for_each_segment(std::uint32_t team, const F& f) const {
    std::uint64_t first = start(team);
    const std::uint64_t last = start(team + 1);
    while (first < last) {
      const auto tile = static_cast<std::uint32_t>(first / steps);
      const auto begin = static_cast<std::uint32_t>(first % steps);
      const auto end =
          static_cast<std::uint32_t>(min(std::uint64_t{steps}, begin + (last - first)));
      f(Segment{tile, begin, end});
      first += end - begin;
    }
  }
};

// Where a block is: in its team, and which team.
template <class Shape>
struct Rank {
  std::uint32_t in_cluster, team;

  __device__ __forceinline__ Rank() : in_cluster(cluster_rank()), team(blockIdx.x / Shape::kTeam) {}
  __device__ __forceinline__ std::uint32_t in_team() const { return in_cluster % Shape::kTeam; }
  __device__ __forceinline__ std::uint32_t first_of_team() const { return in_cluster - in_team(); }
};

// Where a block leaves its part of a cut tile. A team has at most two: that of a
// tile it does not begin, and that of a tile it does not end.
template <class Shape>
__device__ __forceinline__ float4* part_of(const LinearParams& p, std::uint32_t team, bool begins,
                                           std::uint32_t rank) {
  return p.partials +
         ((std::uint64_t{team} * 2 + begins) * Shape::kTeam + rank) * Shape::kPartQuads;
}

}  // namespace snug::gemm
