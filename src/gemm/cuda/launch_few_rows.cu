// Chooses a fit for the decode kernel and launches it.
#include <algorithm>

#include "gemm/cuda/launch.h"
#include "gemm/cuda/sm90_few_rows_gemm.cuh"
#include "gemm/cuda/tuning.h"

namespace snug::gemm {
namespace {

std::uint32_t token_tiles(std::uint64_t m) { return m <= 8 ? 1 : 2; }

template <int kTokenTiles, int kWarps, Kind kKind>
struct Variant {
  using Smem = DecodeSmem<kTokenTiles, kWarps, kKind>;

  // Most stages that fit beside x.
  static std::uint32_t stages(std::uint32_t max_smem, std::uint32_t m, std::uint32_t tiles) {
    std::uint32_t stages = Smem::kMaxStages;
    while (stages > 0 && Smem::bytes(stages, m, tiles) > max_smem) --stages;
    return stages;
  }
  static cudaError_t launch(const Device& device, const LinearParams& p, std::uint32_t blocks,
                            cudaStream_t stream) {
    return launch_overlapped(device, decode_gemm<kTokenTiles, kWarps, kKind>, blocks,
                             Smem::kThreads, Smem::bytes(p.stages, p.m, p.max_split_tiles), p,
                             stream);
  }
};

// Calls f with the variant for these numbers.
template <class F>
auto with_variant(std::uint32_t tokens, std::uint32_t warps, Kind kind, const F& f) {
  const auto by_kind = [&]<int kTokenTiles, int kWarps>() {
    return kind == Kind::kRaw ? f(Variant<kTokenTiles, kWarps, Kind::kRaw>{})
                              : f(Variant<kTokenTiles, kWarps, Kind::kNibble>{});
  };
  const auto by_warps = [&]<int kTokenTiles>() {
    return warps == 16 ? by_kind.template operator()<kTokenTiles, 16>()
                       : by_kind.template operator()<kTokenTiles, 8>();
  };
  return tokens == 1 ? by_warps.template operator()<1>() : by_warps.template operator()<2>();
}

}  // namespace

DecodeFit fit_decode(const Device& device, std::uint64_t n, std::uint64_t k, std::uint64_t m,
                     Kind kind, const Plan& plan) noexcept {
  DecodeFit best;
  if (!device.hopper() || m == 0 || m > kMaxDecodeTokens) return best;
  const Layout layout(n, k, kind);
  const std::uint32_t tokens = token_tiles(m);
  if (plan.warps != 0 && plan.warps != 8 && plan.warps != 16) return best;
  const auto tiles = static_cast<std::uint32_t>(layout.tiles_per_strip);
  // All m of one bucket of the tuning table share a fit, so that rows of y do not depend on m.
  const bool asked = plan.splits != 0;
  const std::uint32_t rows =
      asked ? static_cast<std::uint32_t>(m) : static_cast<std::uint32_t>(m_bucket(m));
  for (const std::uint32_t warps : {16u, 8u}) {
    if (plan.warps != 0 && warps != static_cast<std::uint32_t>(plan.warps)) continue;
    for (std::uint32_t splits = 1; splits <= std::min<std::uint32_t>(tiles, device.num_sms / 2);
         ++splits) {
      if (asked && splits != static_cast<std::uint32_t>(plan.splits)) continue;
      if (splits > 1 && layout.strips * 4 > kCounterBytes) break;
      const std::uint32_t split_tiles = (tiles + splits - 1) / splits;
      const auto stages_for = [&](std::uint32_t tokens_held) {
        return with_variant(tokens, warps, kind, [&](auto v) {
          return v.stages(device.max_smem, tokens_held, split_tiles);
        });
      };
      const std::uint32_t stages = stages_for(rows);
      // Less than this in flight does not keep the memory busy.
      if (stages < 2 || (!asked && stages * warps * layout.tile_bytes < (48u << 10))) continue;
      const std::uint64_t members = device.num_sms / splits;
      const double even = static_cast<double>(layout.strips) * tiles / device.num_sms;
      // A cut costs a round through memory; fewer warps and shallow rings are slower (H200).
      const double in_flight = std::min(1.0, stages * warps * layout.tile_bytes / 96e3);
      const double waste =
          static_cast<double>((layout.strips + members - 1) / members * split_tiles) / even +
          0.03 * (splits > 1) + 0.01 * splits + 0.04 * (warps == 8) + 0.1 * (1 - in_flight);
      if (best.splits == 0 || waste < best.waste)
        best = {splits, warps, stages_for(static_cast<std::uint32_t>(m)), split_tiles, waste};
    }
  }
  return best;
}

std::uint64_t decode_partial_bytes(std::uint64_t n, std::uint32_t m,
                                   std::uint32_t splits) noexcept {
  return splits == 1 ? 0 : (n + kStripRows - 1) / kStripRows * token_tiles(m) * splits * 512;
}

cudaError_t launch_decode(const Device& device, LinearParams params, Kind kind,
                          const DecodeFit& fit, cudaStream_t stream) noexcept {
  params.splits = fit.splits;
  params.stages = fit.stages;
  params.max_split_tiles = fit.max_split_tiles;
  const std::uint32_t members = std::min<std::uint32_t>(
      params.strips, static_cast<std::uint32_t>(device.num_sms) / fit.splits);
  return with_variant(token_tiles(params.m), fit.warps, kind, [&](auto v) {
    return v.launch(device, params, members * fit.splits, stream);
  });
}

}  // namespace snug::gemm
