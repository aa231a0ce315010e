#include "gemm/plan.h"

#include <algorithm>

#include "gemm/tuning.h"

namespace snug::gemm {
namespace {

// From here on, restoring the weights costs less than decoding them for every tile of x.
constexpr std::uint64_t kUnpackFrom = 8192;
constexpr int kTeam = 2;  // thread blocks of the batch kernel that share x

int smallest_tile_m(std::uint64_t m) {
  int tile_m = 16;
  while (static_cast<std::uint64_t>(tile_m) < m && tile_m < 256) tile_m *= 2;
  return tile_m;
}

CompletePlan filled_in(const Device& device, const Problem& p, const Plan& wish, float gain = 0) {
  CompletePlan out{wish, {}, gain};
  Plan& plan = out.plan;
  if (plan.kernel == Kernel::kFewRows) {
    out.fit = fit_few_rows(device, p, plan);
    if (out.fit.split_k != 0) {
      plan.split_k = static_cast<std::int32_t>(out.fit.split_k);
      plan.warps = static_cast<std::int32_t>(out.fit.warps);
    }
  } else if (plan.kernel == Kernel::kBatch) {
    if (plan.tile_m == 0) plan.tile_m = smallest_tile_m(p.m);
    if (plan.strips == 0) plan.strips = plan.tile_m == 256 || p.n * p.k < 1 << 26 ? 8 : 12;
  }
  return out;
}

bool can_run(const Device& device, const Problem& p, const CompletePlan& complete) {
  switch (complete.plan.kernel) {
    case Kernel::kFewRows: return complete.fit.split_k != 0;
    case Kernel::kBatch: return device.hopper() && batch_fits(complete.plan, p.k);
    case Kernel::kUnpack: return device.has_blas();
    default: return true;
  }
}

// Split-K in clusters is for few tiles of y: all thread blocks should run at once.
bool clusters_fit(const Device& device, const Problem& p, const Plan& plan) {
  const auto rows = kStripRows * static_cast<std::uint64_t>(kTeam * plan.strips);
  const auto tokens = static_cast<std::uint64_t>(plan.tile_m);
  const std::uint64_t tiles = (p.n + rows - 1) / rows * ((p.m + tokens - 1) / tokens);
  return tiles * static_cast<std::uint64_t>(kTeam * plan.split_k) <=
         static_cast<std::uint64_t>(device.num_sms);
}

}  // namespace

FewRowsFit fit_few_rows(const Device& device, const Problem& p, const Plan& plan) noexcept {
  FewRowsFit best;
  if (!device.hopper() || p.m == 0 || p.m > kMaxFewRows) return best;
  const Layout layout(p.n, p.k, p.kind);
  const auto tiles = static_cast<std::uint32_t>(layout.tiles_per_strip);
  const auto num_sms = static_cast<std::uint32_t>(device.num_sms);
  const bool asked = plan.split_k != 0;
  const std::uint32_t first = asked ? static_cast<std::uint32_t>(plan.split_k) : 1;
  const std::uint32_t last = std::min({asked ? first : tiles, tiles, num_sms / 2});
  // All m of one bucket of the tuning table share a fit, so that rows of y do not depend on m.
  const auto m = static_cast<std::uint32_t>(p.m);
  const auto rows = asked ? m : static_cast<std::uint32_t>(m_bucket(m));
  const double even = static_cast<double>(layout.strips) * tiles / num_sms;
  double least_cost = 0;
  for (const std::uint32_t warps : {16u, 8u}) {
    if (plan.warps != 0 && warps != static_cast<std::uint32_t>(plan.warps)) continue;
    const FewRowsSmem smem(few_rows_token_tiles(m), warps, p.kind);
    for (std::uint32_t split_k = first; split_k <= last; ++split_k) {
      if (split_k > 1 && layout.strips * 4 > kCounterBytes) break;
      const std::uint32_t split_tiles = (tiles + split_k - 1) / split_k;
      const std::uint32_t stages = smem.stages(device.max_smem, rows, split_tiles);
      const std::uint32_t in_flight = stages * warps * layout.tile_bytes;
      // Fewer bytes in flight do not keep the memory busy.
      if (stages < 2 || (!asked && in_flight < (48u << 10))) continue;
      const std::uint64_t members = num_sms / split_k;
      // Time over that of an even distribution. Split-K costs a round trip through memory;
      // fewer warps and shallow rings are slower (H200).
      const double cost =
          static_cast<double>((layout.strips + members - 1) / members * split_tiles) / even +
          0.03 * (split_k > 1) + 0.01 * split_k + 0.04 * (warps == 8) +
          0.1 * (1 - std::min(1.0, in_flight / 96e3));
      if (best.split_k != 0 && cost >= least_cost) continue;
      least_cost = cost;
      best = {split_k, warps, smem.stages(device.max_smem, m, split_tiles), split_tiles};
    }
  }
  return best;
}

bool batch_fits(const Plan& plan, std::uint64_t k) noexcept {
  if (plan.split_k != 0 && plan.split_k != 1 && plan.split_k != 2 && plan.split_k != 4)
    return false;
  if (static_cast<std::uint64_t>(plan.split_k) > (k + kTileCols - 1) / kTileCols) return false;
  if (plan.tile_m == 256) return plan.strips == 8;
  return (plan.tile_m == 16 || plan.tile_m == 32 || plan.tile_m == 64 || plan.tile_m == 128) &&
         (plan.strips == 8 || plan.strips == 12 || plan.strips == 16);
}

CompletePlan complete_plan(const Device& device, const Problem& p, const Plan& wish) noexcept {
  if (wish.kernel != Kernel::kAuto) return filled_in(device, p, wish);
  // A table may come from elsewhere: it counts only where its plan can run.
  if (const auto entry = find_tuning(device.name, p.n, p.k, p.m))
    if (const auto tuned = filled_in(device, p, entry->plan, entry->gain);
        can_run(device, p, tuned))
      return tuned;
  if (const auto few = filled_in(device, p, {.kernel = Kernel::kFewRows}); can_run(device, p, few))
    return few;
  const bool unpack = p.m >= (device.hopper() ? kUnpackFrom : 65) && device.has_blas();
  return filled_in(device, p,
                   {.kernel = unpack            ? Kernel::kUnpack
                              : device.hopper() ? Kernel::kBatch
                                                : Kernel::kGeneric});
}

const CompletePlan& auto_plan(const Device& device, const Problem& p) noexcept {
  struct Known {
    const Device* device = nullptr;
    Problem problem{};
    std::uint64_t generation = 0;
    CompletePlan plan;
  };
  static thread_local Known known[64];
  const std::uint64_t generation = tuning_generation();
  const std::uint64_t mixed = ((p.n * 31 + p.k) * 31 + p.m) * 0x9E3779B97F4A7C15ull;
  Known& slot = known[mixed >> 58];
  if (slot.device != &device || slot.problem != p || slot.generation != generation)
    slot = {&device, p, generation, complete_plan(device, p, {})};
  return slot.plan;
}

std::vector<Plan> candidates(const Device& device, const Problem& p) {
  std::vector<Plan> plans;
  for (const int warps : {8, 16})
    for (const int split_k : {1, 2, 3, 4, 6, 11}) {
      const Plan plan{.kernel = Kernel::kFewRows, .split_k = split_k, .warps = warps};
      if (fit_few_rows(device, p, plan).split_k != 0) plans.push_back(plan);
    }
  const int widest = smallest_tile_m(p.m);
  if (device.hopper() && p.m > kMaxFewRows / 2)
    for (const int tile_m : {widest / 2, widest})
      for (const int strips : {8, 12, 16})
        for (const int split_k : {1, 2, 4})
          if (const Plan plan{
                  .kernel = Kernel::kBatch, .split_k = split_k, .strips = strips, .tile_m = tile_m};
              (tile_m == widest || widest == 256) && batch_fits(plan, p.k) &&
              (split_k == 1 || clusters_fit(device, p, plan)))
            plans.push_back(plan);
  if (p.m > 64 && device.has_blas()) plans.push_back({.kernel = Kernel::kUnpack});
  if (!device.hopper()) plans.push_back({.kernel = Kernel::kGeneric});
  return plans;
}

}  // namespace snug::gemm
