// gemm/cuda/launch_batch.cuh - launches the batch kernel with tiles of kTileM rows of x. Each
// size is instantiated in one of the files batch_rows_*.cu: there are too many for one.
#pragma once
#include <algorithm>

#include "gemm/cuda/linear_host.h"
#include "gemm/cuda/sm90_batch_gemm.cuh"
#include "gemm/plan_cost.h"

namespace snug::gemm {

// Describes x to TMA, in boxes of 64 columns.
bool describe_x(CUtensorMap& map, const LinearParams& p, std::uint32_t box_rows) noexcept;

template <class Shape>
cudaError_t launch_shape(const Device& device, const LinearParams& params, const Plan& plan,
                         cudaStream_t stream) {
  BatchParams b;
  b.p = params;
  b.token_tiles = (params.m + Shape::kTileM - 1) / Shape::kTileM;
  if (!describe_x(b.x_map, params, Shape::kTileM / kTeam)) return cudaErrorNotSupported;
  constexpr std::uint32_t kTeamStrips = kTeam * Shape::kStrips;
  const std::uint64_t row_tiles = (params.strips + kTeamStrips - 1) / kTeamStrips;
  const std::uint64_t tiles = row_tiles * b.token_tiles;
  const std::uint32_t steps = params.tiles_per_strip;
  b.p.split_k = static_cast<std::uint32_t>(std::max(plan.split_k, 1));
  if (plan.split_k > 1) {
    b.teams = static_cast<std::uint32_t>(tiles) * b.p.split_k;
    b.waves = b.share = b.extra = b.unit = 0;
  } else {
    const bool stream_k = plan.split_k == kStreamK;
    const TeamShare share = share_tiles(device.num_sms, tiles, steps, stream_k);
    b.teams = share.teams;
    b.waves = share.waves;
    b.unit = stream_k ? 1 : steps;
    const std::uint64_t units =
        (tiles - std::uint64_t{share.waves} * share.teams) * (steps / b.unit);
    b.share = static_cast<std::uint32_t>(units / b.teams);
    b.extra = static_cast<std::uint32_t>(units % b.teams);
  }
  return launch_sm90(device, batch_gemm<Shape>,
                     {kTeam * b.teams, Shape::kThreads, Shape::kSmemBytes, stream, Start::kEarly,
                      kTeam * b.p.split_k},
                     b);
}

template <int kTileM, int kRowGroups, int kKGroups>
cudaError_t launch_kind(const Device& device, const LinearParams& params, Kind kind,
                        const Plan& plan, cudaStream_t stream) {
  return kind == Kind::kRaw ? launch_shape<BatchShape<kTileM, kRowGroups, kKGroups, Kind::kRaw>>(
                                  device, params, plan, stream)
                            : launch_shape<BatchShape<kTileM, kRowGroups, kKGroups, Kind::kFixed>>(
                                  device, params, plan, stream);
}

template <int kTileM>
cudaError_t launch_rows(const Device& device, const LinearParams& params, Kind kind,
                        const Plan& plan, cudaStream_t stream) {
  if constexpr (kTileM <= kMaxNarrowRows) {
    if (plan.strips == 4) return launch_kind<kTileM, 1, 2>(device, params, kind, plan, stream);
    if (plan.strips == 12) return launch_kind<kTileM, 3, 1>(device, params, kind, plan, stream);
  }
  return launch_kind<kTileM, 2, 1>(device, params, kind, plan, stream);
}

#define SNUG_LAUNCH_ROWS(tile_m)                                                                  \
  template cudaError_t launch_rows<tile_m>(const Device&, const LinearParams&, Kind, const Plan&, \
                                           cudaStream_t)

}  // namespace snug::gemm
