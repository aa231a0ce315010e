// Divides the work of experts with few rows, and launches their kernel.
#include <algorithm>

#include "gemm/cuda/experts_host.h"
#include "gemm/cuda/sm90_experts_few_rows.cuh"

namespace snug::gemm {
namespace {

constexpr std::uint32_t kSmallChunk = 16, kLargeChunk = 64;

// Enough warps for two strips that all warps of all SMs have something to do.
std::uint32_t split_for(double items_per_sm, std::uint64_t tiles) {
  std::uint32_t split = 1;
  while (split < FewExpertRowsSmem::kWarps && items_per_sm * split < 12 && tiles >= 4 * split)
    split *= 2;
  return split;
}

template <Kind kKind, bool kGateUp>
cudaError_t launch(const Device& device, const FewExpertRowsParams& p, const ExpertsFit& fit,
                   cudaStream_t stream) {
  const FewExpertRowsSmem smem(kKind, p.experts, p.split != 1);
  const cuda::Launch launch{static_cast<std::uint64_t>(device.num_sms),
                            FewExpertRowsSmem::kWarps * 32, smem.bytes(p.stages), stream,
                            cuda::Start::kEarly};
  return fit.chunk_rows == kSmallChunk
             ? launch_sm90(device, experts_few_rows<kKind, kGateUp, kSmallChunk / 8>, launch, p)
             : launch_sm90(device, experts_few_rows<kKind, kGateUp, kLargeChunk / 8>, launch, p);
}

}  // namespace

ExpertsFit fit_experts(const Device& device, const BankShape& gate_up, const BankShape& down,
                       std::uint64_t m, std::uint32_t top_k, const ExpertsPlan& wish) noexcept {
  const SlotLayout slots[2] = {SlotLayout(gate_up), SlotLayout(down)};
  const std::uint64_t items[2] = {slots[0].part_strips, (slots[1].matrix.strips + 1) / 2};
  const auto pairs = static_cast<double>(m * top_k), experts = static_cast<double>(down.experts);
  ExpertsFit fit{};
  fit.many_rows = wish.kernel == 0 ? pairs / experts >= 24 : wish.kernel == kManyExpertRows;
  if (fit.many_rows) {
    // Rows of an expert that has a few more than its share.
    const double rows = pairs / experts * 1.25;
    fit.chunk_rows = wish.rows != 0 ? static_cast<std::uint32_t>(wish.rows)
                     : rows <= 64   ? 64
                     : rows <= 96   ? 96
                                    : 128;
    return fit;
  }
  fit.chunk_rows = m <= kSmallChunk ? kSmallChunk : kLargeChunk;
  for (int i = 0; i < 2; ++i) {
    fit.split[i] = 1;
    if (fit.chunk_rows != kSmallChunk) continue;
    fit.split[i] =
        wish.split != 0
            ? static_cast<std::uint32_t>(wish.split)
            : split_for(std::min(pairs, experts) * static_cast<double>(items[i]) / device.num_sms,
                        slots[i].matrix.tiles_per_strip);
  }
  // The rest of the memory is the cache that holds x.
  fit.stages = gate_up.kind == Kind::kRaw ? 2 : 3;
  return fit;
}

cudaError_t launch_few_expert_rows(const Device& device, const FewExpertRowsParams& params,
                                   Kind kind, bool gate_up, const ExpertsFit& fit,
                                   cudaStream_t stream) noexcept {
  if (kind == Kind::kRaw)
    return gate_up ? launch<Kind::kRaw, true>(device, params, fit, stream)
                   : launch<Kind::kRaw, false>(device, params, fit, stream);
  return gate_up ? launch<Kind::kFixed, true>(device, params, fit, stream)
                 : launch<Kind::kFixed, false>(device, params, fit, stream);
}

}  // namespace snug::gemm
