// Launches the few-rows kernel as gemm/plan.cpp fitted it.
#include <algorithm>

#include "gemm/cuda/linear_host.h"
#include "gemm/cuda/sm90_few_rows_gemm.cuh"

namespace snug::gemm {
namespace {

template <int kTokenTiles, int kWarps, Kind kKind>
cudaError_t launch(const Device& device, const LinearParams& p, std::uint32_t blocks,
                   cudaStream_t stream) {
  constexpr FewRowsSmem smem(kTokenTiles, kWarps, kKind);
  return launch_sm90(
      device, few_rows_gemm<kTokenTiles, kWarps, kKind>,
      {blocks, smem.threads, smem.bytes(p.stages, p.m, p.max_split_tiles), stream, Start::kEarly},
      p);
}

using RunVariant = cudaError_t (*)(const Device&, const LinearParams&, std::uint32_t, cudaStream_t);

template <int kTokenTiles, int kWarps>
RunVariant variant_of(Kind kind) {
  return kind == Kind::kRaw ? launch<kTokenTiles, kWarps, Kind::kRaw>
                            : launch<kTokenTiles, kWarps, Kind::kFixed>;
}

}  // namespace

cudaError_t launch_few_rows(const Device& device, LinearParams params, Kind kind,
                            const FewRowsFit& fit, cudaStream_t stream) noexcept {
  params.split_k = fit.split_k;
  params.stages = fit.stages;
  params.max_split_tiles = fit.max_split_tiles;
  const std::uint32_t members = std::min<std::uint32_t>(
      params.strips, static_cast<std::uint32_t>(device.num_sms) / fit.split_k);
  const bool one_tile = few_rows_token_tiles(params.m) == 1;
  const RunVariant run = fit.warps == 16
                             ? (one_tile ? variant_of<1, 16>(kind) : variant_of<2, 16>(kind))
                             : (one_tile ? variant_of<1, 8>(kind) : variant_of<2, 8>(kind));
  return run(device, params, members * fit.split_k, stream);
}

}  // namespace snug::gemm
