#include "gemm/plan_cost.h"

#include <algorithm>
#include <cmath>

namespace snug::gemm {
namespace {

// The time of things that overlap, but not where they take about the same.
double overlapped(double a, double b, double c, double sharpness) {
  return std::pow(std::pow(a, sharpness) + std::pow(b, sharpness) + std::pow(c, sharpness),
                  1 / sharpness);
}

// A step of the batch kernel is one tile of W times tile_m rows of x, in each strip of a block.
struct StepCost {
  double least, start, per_row;
};
constexpr StepCost step_cost(const Plan& plan) {
  if (plan.strips == 4) return {0.396, 0.0203, 0.00237};
  if (plan.strips == 12) return {0.0, 0.503, 0.00564};
  return {0.376, 0.37, plan.tile_m <= kMaxNarrowRows ? 0.00285 : 0.00372};
}

struct BatchCost {
  static constexpr double kStart = 2.5, kStepSharpness = 3.4, kSharpness = 5.12;
  static constexpr double kMemoryShare = 0.815, kL2Speed = 1.66;  // of the memory's bandwidth
  // Per strip and row of x of a tile: to write it; to add its parts through the workspace, and
  // one more for every further part; to add them in a cluster.
  static constexpr double kWrite = 0.000523;
  static constexpr double kPartStart = 1.25, kPart = 0.00396, kMoreParts = 0.000705;
  static constexpr double kClusterStart = 0.909, kCluster = 0.00117, kClusterOf4 = 0.335;
};

// A round of the few-rows kernel is one tile of W for each warp.
struct FewRowsCost {
  static constexpr double kMemoryShare = 0.898, kSmBytesPerUs = 154700, kReadSharpness = 2.236;
  static constexpr double kSharpness = 2.63, kXByte = 6.47e-6, kSplit = 0.534, kMoreSplits = 0.167;
  double start, round;
};
constexpr FewRowsCost few_rows_cost(std::uint64_t m, std::uint32_t warps) {
  if (few_rows_token_tiles(m) == 1) return {2.56, 0.56};
  return {2.9, warps == 8 ? 0.643 : 0.83};
}

// Teams for stream-K: a few less than fit on the GPU where no tile is divided then, or all of
// them evenly.
std::uint32_t even_teams(std::uint64_t tiles, std::uint32_t most) {
  for (std::uint32_t teams = most; teams > most - most / 12; --teams)
    if (tiles % teams == 0 || teams % tiles == 0) return teams;
  return most;
}

}  // namespace

TeamShare share_tiles(int num_sms, std::uint64_t tiles, std::uint64_t steps,
                      bool stream_k) noexcept {
  const auto most = std::max(static_cast<std::uint32_t>(num_sms) / kTeam, 1u);
  if (!stream_k) {
    const auto teams = static_cast<std::uint32_t>(ceil_div(tiles, ceil_div(tiles, most)));
    return {teams, static_cast<std::uint32_t>(tiles / teams)};
  }
  const std::uint32_t teams =
      even_teams(tiles, static_cast<std::uint32_t>(std::min<std::uint64_t>(most, tiles * steps)));
  auto waves = static_cast<std::uint32_t>(tiles / teams);
  // Dividing a tile among more than two or three teams costs more than it gains.
  const std::uint64_t rest = tiles % teams;
  if (waves > 0 && rest != 0 && rest < teams / 2) --waves;
  return {teams, waves};
}

std::uint64_t num_tiles(const Problem& p, const Plan& plan) noexcept {
  return ceil_div(p.n, kStripRows * kTeam * static_cast<std::uint64_t>(plan.strips)) *
         ceil_div(p.m, static_cast<std::uint64_t>(plan.tile_m));
}

std::uint64_t max_clusters(const Device& device, int size) noexcept {
  // The SMs of a GPC are no multiple of the size.
  return static_cast<std::uint64_t>(device.num_sms * (size == 4 ? 0.92 : 0.86) / size);
}

double batch_us(const Device& device, const Problem& p, const Plan& plan) noexcept {
  using Cost = BatchCost;
  const std::uint64_t tiles = num_tiles(p, plan), steps = ceil_div(p.k, kTileCols);
  const double strips = plan.strips, tile_m = plan.tile_m, area = strips * tile_m;
  double teams, work, sums = 0;  // work: steps of the team that has most
  if (plan.split_k > 1) {
    // A table may ask a small GPU for clusters that it cannot run.
    const auto split_k = static_cast<std::uint64_t>(plan.split_k);
    const std::uint64_t at_once =
        std::max<std::uint64_t>(max_clusters(device, static_cast<int>(kTeam) * plan.split_k), 1);
    teams = static_cast<double>(tiles * split_k);
    work = static_cast<double>(ceil_div(steps, split_k) * ceil_div(tiles, at_once));
    sums = Cost::kClusterStart + Cost::kCluster * area + (split_k == 4 ? Cost::kClusterOf4 : 0);
  } else {
    const bool stream_k = plan.split_k == kStreamK;
    const TeamShare share = share_tiles(device.num_sms, tiles, steps, stream_k);
    teams = share.teams;
    work = stream_k ? static_cast<double>(tiles * steps) / teams
                    : static_cast<double>(ceil_div(tiles, share.teams) * steps);
    if (stream_k && tiles % share.teams != 0) {
      const double more = std::max(teams / static_cast<double>(tiles) - 1, 0.0);
      sums = Cost::kPartStart + (Cost::kPart + Cost::kMoreParts * more) * area;
    }
  }
  const StepCost cost = step_cost(plan);
  const double step =
      overlapped(cost.least, cost.start + cost.per_row * tile_m, 0, Cost::kStepSharpness);
  const double blocks = std::min<double>(teams * kTeam, device.num_sms);
  const double bytes_per_us = device.memory_gb_s * 1e3;
  const double w_bytes = work * strips * tile_bytes_of(Kind::kFixed) * blocks;
  const double l2_bytes = w_bytes + work * tile_m * kTileCols * blocks;
  const double memory_bytes =
      std::min(w_bytes, static_cast<double>(p.n) * static_cast<double>(p.k) * 1.5);
  return Cost::kStart +
         overlapped(work * step, memory_bytes / (bytes_per_us * Cost::kMemoryShare),
                    l2_bytes / (bytes_per_us * Cost::kL2Speed), Cost::kSharpness) +
         Cost::kWrite * area * work / static_cast<double>(steps) + sums;
}

// The SMs take strips in turns; in a strip, each warp takes its tiles in rounds.
double few_rows_us(const Device& device, const Problem& p, const FewRowsFit& fit) noexcept {
  const FewRowsCost cost = few_rows_cost(p.m, fit.warps);
  const std::uint64_t strips = ceil_div(p.n, kStripRows);
  const std::uint64_t at_once = static_cast<std::uint32_t>(device.num_sms) / fit.split_k;
  const double tiles = fit.max_split_tiles;
  // SMs share the bandwidth. In the last turn some have no strip, and others get more of it.
  const auto turn_us = [&](std::uint64_t num_strips) {
    if (num_strips == 0) return 0.0;
    const double bandwidth = device.memory_gb_s * 1e3 * FewRowsCost::kMemoryShare;
    return tiles * tile_bytes_of(Kind::kFixed) *
           overlapped(static_cast<double>(num_strips * fit.split_k) / bandwidth,
                      1 / FewRowsCost::kSmBytesPerUs, 0, FewRowsCost::kReadSharpness);
  };
  const double read =
      static_cast<double>(strips / at_once) * turn_us(at_once) + turn_us(strips % at_once);
  const auto rounds =
      static_cast<double>(ceil_div(strips, at_once) * ceil_div(fit.max_split_tiles, fit.warps));
  const double x_bytes = static_cast<double>(p.m) * tiles * kTileCols * 2;
  return cost.start + overlapped(read, rounds * cost.round, 0, FewRowsCost::kSharpness) +
         x_bytes * FewRowsCost::kXByte +
         (fit.split_k > 1 ? FewRowsCost::kSplit + FewRowsCost::kMoreSplits * fit.split_k : 0.0);
}

double unpack_us(const Device& device, const Problem& p) noexcept {
  // Reads 12 bits and writes 16.
  return static_cast<double>(p.n) * static_cast<double>(p.k) * 3.5 / (device.memory_gb_s * 850);
}

double dense_us(const Device& device, const Problem& p) noexcept {
  const double weights = static_cast<double>(p.n) * static_cast<double>(p.k);
  const double flops = 2 * weights * static_cast<double>(std::max<std::uint64_t>(p.m, 16));
  return 4.0 + overlapped(flops / (5.9e6 * device.num_sms),
                          2 * weights / (device.memory_gb_s * 883), 0, 3.0);
}

}  // namespace snug::gemm
