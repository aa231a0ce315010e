#include "gemm/plan.h"

#include <algorithm>
#include <iterator>

#include "gemm/plan_cost.h"
#include "gemm/tuning.h"

namespace snug::gemm {
namespace {

// From here on, restoring the weights costs less than decoding them for every tile of x.
constexpr std::uint64_t kUnpackFrom = 8192;
// What a measured plan is trusted for over one that the model prefers.
constexpr double kTunedBonus = 0.9;

int smallest_tile_m(std::uint64_t m) {
  for (const int tile_m : kTileMs)
    if (static_cast<std::uint64_t>(tile_m) >= m) return tile_m;
  return kTileMs[std::size(kTileMs) - 1];
}

CompletePlan filled_in(const Device& device, const Problem& p, const Plan& wish) {
  CompletePlan out{wish, {}};
  Plan& plan = out.plan;
  if (plan.kernel == Kernel::kFewRows) {
    out.fit = fit_few_rows(device, p, plan);
    if (out.fit.split_k != 0) {
      plan.split_k = static_cast<std::int32_t>(out.fit.split_k);
      plan.warps = static_cast<std::int32_t>(out.fit.warps);
    }
  } else if (plan.kernel == Kernel::kBatch) {
    if (plan.tile_m == 0) plan.tile_m = smallest_tile_m(p.m);
    if (plan.strips == 0) plan.strips = kWideStrips;
    if (plan.split_k == 0) plan.split_k = kStreamK;
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

double predicted_us(const Device& device, const Problem& p, const CompletePlan& complete) {
  return complete.plan.kernel == Kernel::kBatch ? batch_us(device, p, complete.plan)
                                                : few_rows_us(device, p, complete.fit);
}

float expected_gain(const Device& device, const Problem& p, const CompletePlan& complete) {
  if (complete.plan.kernel == Kernel::kGeneric) return 0;
  const double dense = dense_us(device, p);
  return static_cast<float>(dense / (complete.plan.kernel == Kernel::kUnpack
                                         ? dense + unpack_us(device, p)
                                         : predicted_us(device, p, complete)));
}

// Calls f with the batch kernel's plans: for each number of tiles that m may be divided into, the
// smallest; and only tiles that the cost model was fitted to. A plan is looked up where nothing may
// throw, so nothing is allocated.
template <class F>
void for_each_batch_plan(const Device& device, const Problem& p, const F& f) {
  const auto is_offered = [&](const Plan& plan) {
    if (!batch_fits(plan, p.k) || p.m > (plan.strips == 12 ? 256 : plan.strips == 4 ? 512 : ~0ull))
      return false;
    // Split-K in clusters is for few tiles of y: all thread blocks should run at once.
    return plan.split_k <= 1 ||
           num_tiles(p, plan) <= max_clusters(device, static_cast<int>(kTeam) * plan.split_k);
  };
  int last = 0;
  for (std::uint64_t parts = ceil_div(p.m, 256); parts <= ceil_div(p.m, 32); ++parts) {
    const int tile_m = smallest_tile_m(ceil_div(p.m, parts));
    if ((tile_m < 96 && parts > 4) || (tile_m <= kMaxNarrowRows && p.m > 512)) break;
    if (tile_m == last) continue;
    last = tile_m;
    for (const int strips : kTileStrips)
      for (const int split_k : {1, static_cast<int>(kStreamK), 2, 4})
        if (const Plan plan{
                .kernel = Kernel::kBatch, .split_k = split_k, .strips = strips, .tile_m = tile_m};
            is_offered(plan))
          f(plan);
  }
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
  const auto m = static_cast<std::uint32_t>(p.m);
  // All m of one bucket of the tuning table share a fit, so that rows of y do not depend on m.
  const Problem largest{p.n, p.k, asked ? p.m : m_bucket(p.m), p.kind};
  double least_cost = 0;
  for (const std::uint32_t warps : {16u, 8u}) {
    if (plan.warps != 0 && warps != static_cast<std::uint32_t>(plan.warps)) continue;
    const FewRowsSmem smem(few_rows_token_tiles(m), warps, p.kind);
    for (std::uint32_t split_k = first; split_k <= last; ++split_k) {
      if (split_k > 1 && layout.strips * 4 > kCounterBytes) break;
      const std::uint32_t split_tiles = (tiles + split_k - 1) / split_k;
      FewRowsFit fit{split_k, warps, 0, split_tiles};
      fit.stages = smem.stages(device.max_smem, static_cast<std::uint32_t>(largest.m), split_tiles);
      if (fit.stages < 2) continue;
      const double cost = few_rows_us(device, largest, fit);
      if (best.split_k != 0 && cost >= least_cost) continue;
      least_cost = cost;
      best = fit;
      best.stages = smem.stages(device.max_smem, m, split_tiles);
    }
  }
  return best;
}

bool batch_fits(const Plan& plan, std::uint64_t k) noexcept {
  if (plan.split_k != kStreamK && plan.split_k != 1 && plan.split_k != 2 && plan.split_k != 4)
    return false;
  if (plan.split_k > 1 && static_cast<std::uint64_t>(plan.split_k) > ceil_div(k, kTileCols))
    return false;
  if (std::ranges::find(kTileMs, plan.tile_m) == std::end(kTileMs)) return false;
  if (plan.tile_m > kMaxNarrowRows) return plan.strips == kWideStrips;
  return std::ranges::find(kTileStrips, plan.strips) != std::end(kTileStrips);
}

CompletePlan complete_plan(const Device& device, const Problem& p, const Plan& wish) noexcept {
  if (wish.kernel != Kernel::kAuto) return filled_in(device, p, wish);
  // Nothing to divide among SMs, or more than linear() takes. choose() is asked for any numbers.
  if (std::min({p.n, p.k, p.m}) == 0 || std::max({p.n, p.k, p.m}) >= kMaxDim)
    return filled_in(device, p, {.kernel = Kernel::kGeneric});
  const auto entry = find_tuning(device.name, p.n, p.k, p.m);
  CompletePlan tuned;
  if (entry) {
    tuned = filled_in(device, p, entry->plan);
    tuned.gain = entry->gain;
    tuned.measured = entry->gain != 0;
  }
  // A table may come from elsewhere: it counts only where its plan can run.
  const bool has_tuned = tuned.plan.kernel != Kernel::kAuto && can_run(device, p, tuned);
  const bool modelled =
      tuned.plan.kernel == Kernel::kFewRows || tuned.plan.kernel == Kernel::kBatch;
  // An entry was measured for the largest m of its bucket, and serves all few rows.
  if (has_tuned && (!modelled || p.m <= kMaxFewRows || p.m == m_bucket(p.m))) {
    // Where it was measured, there may have been no cuBLAS or no room for the dense weights.
    if (!tuned.measured) tuned.gain = expected_gain(device, p, tuned);
    return tuned;
  }
  if (!device.hopper() || (p.m >= kUnpackFrom && device.has_blas())) {
    const bool unpack = p.m >= (device.hopper() ? kUnpackFrom : 65) && device.has_blas();
    CompletePlan plan =
        filled_in(device, p, {.kernel = unpack ? Kernel::kUnpack : Kernel::kGeneric});
    plan.gain = expected_gain(device, p, plan);
    return plan;
  }
  // For other m of its bucket the gain is not known, and another plan may be better, if the model
  // is sure of it.
  tuned.measured = false;
  CompletePlan best = has_tuned ? tuned : CompletePlan{};
  double best_us = has_tuned ? kTunedBonus * predicted_us(device, p, tuned) : 0;
  const auto offer = [&](const Plan& plan) {
    const CompletePlan complete = filled_in(device, p, plan);
    if (!can_run(device, p, complete)) return;
    const double us = predicted_us(device, p, complete);
    if (best_us == 0 || us < best_us) best = complete, best_us = us;
  };
  offer({.kernel = Kernel::kFewRows});
  // With very long rows even eight of x do not fit into shared memory.
  if (p.m > kMaxFewRows / 2 || best_us == 0) for_each_batch_plan(device, p, offer);
  if (!best.measured) best.gain = expected_gain(device, p, best);
  return best;
}

const CompletePlan& auto_plan(const Device& device, const Problem& p) noexcept {
  struct Known {
    const Device* device = nullptr;
    Problem problem{};
    std::uint64_t generation = 0;
    CompletePlan plan;
  };
  // Sets of four, in which the oldest is replaced: a model's shapes hardly ever evict each other.
  static thread_local Known known[32][4];
  static thread_local unsigned oldest = 0;
  const std::uint64_t generation = tuning_generation();
  const std::uint64_t mixed = ((p.n * 31 + p.k) * 31 + p.m) * 0x9E3779B97F4A7C15ull;
  Known* const set = known[mixed >> 59];
  for (int i = 0; i < 4; ++i)
    if (set[i].device == &device && set[i].problem == p && set[i].generation == generation)
      return set[i].plan;
  Known& slot = set[oldest++ % 4];
  slot = {&device, p, generation, complete_plan(device, p, {})};
  return slot.plan;
}

std::vector<Plan> candidates(const Device& device, const Problem& p) {
  std::vector<Plan> plans;
  // What is taken without a measurement, so that tuning never ends with something slower.
  const Plan expected = filled_in(device, p, {.kernel = Kernel::kFewRows}).plan;
  if (expected.split_k != 0) plans.push_back(expected);
  for (const int warps : {8, 16})
    for (const int split_k : {1, 2, 3, 4, 6, 11}) {
      const Plan plan{.kernel = Kernel::kFewRows, .split_k = split_k, .warps = warps};
      const bool is_known = split_k == expected.split_k && warps == expected.warps;
      if (!is_known && fit_few_rows(device, p, plan).split_k != 0) plans.push_back(plan);
    }
  if (device.hopper() && (p.m > kMaxFewRows / 2 || plans.empty()))
    for_each_batch_plan(device, p, [&](const Plan& plan) { plans.push_back(plan); });
  if (p.m > 64 && device.has_blas()) plans.push_back({.kernel = Kernel::kUnpack});
  if (!device.hopper()) plans.push_back({.kernel = Kernel::kGeneric});
  return plans;
}

}  // namespace snug::gemm
