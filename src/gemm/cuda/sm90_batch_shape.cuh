// gemm/cuda/sm90_batch_shape.cuh - how the batch kernel divides its work: tile sizes, shared
// memory, scheduler.
#pragma once
#include <cuda.h>

#include <algorithm>

#include "gemm/cuda/linear_output.cuh"
#include "gemm/plan.h"
#include "gpu/ptx_cluster.cuh"

namespace snug::gemm {

struct BatchParams {
  LinearParams p;     // split_k: teams of a cluster; 1: whole tiles, or stream-K
  CUtensorMap x_map;  // boxes of 64 columns by kTileM / kTeam rows, swizzled
  // Without clusters: `teams` take whole tiles in `waves`, adjacent ones at a time, since these
  // share weights in the cache. Of the rest each gets `share` units of `unit` steps, `extra` of
  // them one more.
  std::uint32_t waves, share, extra, unit, teams, token_tiles;
};

template <int kTileM_, int kRowGroups_, int kKGroups_, Kind kKind_>
struct BatchShape {
  static constexpr int kTileM = kTileM_;  // rows of x
  // Warpgroups that multiply: each of kRowGroups has 64 rows of W of its own. With two kKGroups,
  // one warpgroup takes the first half of each tile of W and another the second.
  static constexpr int kRowGroups = kRowGroups_, kKGroups = kKGroups_;
  static constexpr int kGroups = kRowGroups * kKGroups;
  static constexpr Kind kKind = kKind_;
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr std::uint32_t kWarps = kGroups * 4;
  static constexpr std::uint32_t kStrips = kRowGroups * 4;
  static constexpr std::uint32_t kTileBytes = tile_bytes_of(kKind);
  // A stage has whole tiles of W, since copies of half tiles are a tenth slower (H200), or x
  // for half tiles.
  static constexpr std::uint32_t kWBytes = kStrips * kTileBytes;
  static constexpr std::uint32_t kXBytes = kTileM * 128;
  static constexpr std::uint32_t kMaxSmem = 227 * 1024;
  static constexpr int kQuads = kTileM / 8;                       // sums of a thread, by fours
  static constexpr std::uint32_t kOutThreads = kRowGroups * 128;  // those with sums at the end
  static constexpr std::uint32_t kSumBytes = kKGroups == 1 ? 0 : kOutThreads * kQuads * 16;
  // Barriers take 1024 bytes. Copies are served in order, so x waits for all W requested before
  // it: its ring should reach as far ahead. But less than four stages of W are slower.
  static constexpr std::uint32_t kRoom = kMaxSmem - 1024 - kSumBytes;
  // Two sets of registers for operand A take turns, also from one round to the next.
  static constexpr std::uint32_t kStageStep = kKGroups;
  static constexpr std::uint32_t kFarStages =
      std::min(kRoom / (kWBytes + 2 * kXBytes), 8u) / kStageStep * kStageStep;
  static constexpr std::uint32_t kWStages =
      kFarStages >= 4 ? kFarStages
                      : std::min(kRoom / (kWBytes + kXBytes), 4u) / kStageStep * kStageStep;
  // A round is one passage through the ring of W. The ring of x is passed once or twice.
  static constexpr std::uint32_t kXStages = kFarStages >= 4 ? 2 * kWStages : kWStages;
  static_assert(kXBytes % 1024 == 0 && kWStages >= 2);
  // Shared memory, in bytes from a multiple of 1024: x, W, barriers, sums of other warpgroups.
  static constexpr std::uint32_t kX = 0, kW = kX + kXStages * kXBytes;
  static constexpr std::uint32_t kWFull = kW + kWStages * kWBytes, kWEmpty = kWFull + 8 * kWStages;
  static constexpr std::uint32_t kXFull = kWEmpty + 8 * kWStages, kXEmpty = kXFull + 8 * kXStages;
  static constexpr std::uint32_t kSums = kWFull + 1024, kSmemBytes = kSums + kSumBytes;
  // Registers a thread, after setmaxnreg.
  static constexpr int kCopyRegs = kGroups == 2 ? 40 : 32;
  static constexpr int kMultiplyRegs = kGroups == 2 ? 232 : 160;
  // Whether codes of the next half tile are prefetched. Raw weights have no codes: they go into
  // operand registers that wgmma may still read.
  static constexpr bool kAhead = kKind == Kind::kFixed;
  static constexpr std::uint32_t kPartQuads = kStrips * kStripRows * kTileM / 4;
  static_assert(kPartQuads * 16 <= kWFull);
};

// The stages of a ring as its writer takes them. Every segment starts at the first stage, so that
// the reader's places are constants. Stages may then have been used unequally: each has its own
// phase.
template <std::uint32_t kStages>
struct RingWriter {
  std::uint32_t slot = 0, phases = ~0u;

  __device__ __forceinline__ void restart() { slot = 0; }
  __device__ __forceinline__ std::uint32_t phase() const { return phases >> slot & 1; }
  __device__ __forceinline__ void advance() {
    phases ^= 1u << slot;
    if (++slot == kStages) slot = 0;
  }
};

// The bits of stages whose phase has changed after `uses` of a ring from its first stage, at most
// two passages.
__device__ __forceinline__ std::uint32_t changed_phases(std::uint32_t uses, std::uint32_t stages) {
  const auto low_bits = [](std::uint32_t count) { return (1u << count) - 1; };
  return low_bits(min(uses, stages)) ^ low_bits(uses > stages ? uses - stages : 0);
}

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
  std::uint32_t waves, share, extra, unit, teams, token_tiles, steps, split_k;

  __device__ __forceinline__ explicit Line(const BatchParams& b)
      : waves(b.waves),
        share(b.share),
        extra(b.extra),
        unit(b.unit),
        teams(b.teams),
        token_tiles(b.token_tiles),
        steps(b.p.tiles_per_strip),
        split_k(b.p.split_k) {}
  // The first step of a team after the waves, counted from there.
  __device__ __forceinline__ std::uint32_t start(std::uint32_t team) const {
    if (split_k == 1) return (team * share + team * extra / teams) * unit;
    const std::uint32_t log_split_k = split_k == 4 ? 2 : 1;
    return (team >> log_split_k) * steps + ((team & (split_k - 1)) * steps >> log_split_k);
  }
  __device__ __forceinline__ std::uint32_t first_tile() const { return waves * teams; }
  // Stream-K: the team that computes step `at` after the waves.
  __device__ __forceinline__ std::uint32_t team_of(std::uint32_t at) const {
    return static_cast<std::uint32_t>(
        quotient((at + std::uint64_t{1}) * teams - 1, std::uint64_t{share} * teams + extra));
  }
  // Calls f for each segment of a team. Those after the waves come last first: then the part of
  // a tile that another team waits for is there long before.
  template <class F>
  __device__ __forceinline__ void for_each_segment(std::uint32_t team, const F& f) const {
    const std::uint32_t first = start(team);
    std::uint32_t last = start(team + 1);
    for (std::uint32_t wave = 0; wave < waves || first < last;) {
      std::uint32_t tile, begin = 0, end = steps;
      if (wave < waves) {
        tile = wave * teams + team;
        ++wave;
      } else {
        tile = (last - 1) / steps;
        const std::uint32_t tile_start = tile * steps;
        begin = first > tile_start ? first - tile_start : 0;
        end = last - tile_start;
        last = tile_start + begin;
        tile += first_tile();
      }
      const std::uint32_t row_tile = token_tiles == 1 ? tile : tile / token_tiles;
      f(Segment{tile, row_tile, tile - row_tile * token_tiles, begin, end});
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

// Stream-K: where a block stores its part of a tile that it does not end. A team has at most one.
template <class Shape>
__device__ __forceinline__ float4* part_of(const LinearParams& p, std::uint32_t team,
                                           std::uint32_t rank) {
  return p.partials + (std::uint64_t{team} * kTeam + rank) * Shape::kPartQuads;
}

}  // namespace snug::gemm
