// Divides the work of experts with few rows, and launches their kernel.
#include <algorithm>

#include "gemm/cuda/experts_host.h"
#include "gemm/cuda/sm90_experts_few_rows.cuh"

namespace snug::gemm {
namespace {

// Warps that share two strips: enough that half a dozen of an SM have something to do, which is
// what reading at full speed takes.
std::uint32_t split_for(double items_per_sm, std::uint64_t tiles) {
  std::uint32_t split = 1;
  while (split < 8 && items_per_sm * split < 5.5 && tiles >= 2 * split) split *= 2;
  return split;
}

template <Kind kKind, bool kGateUp, bool kLocal>
cudaError_t launch(const Device& device, const ExpertsProduct& p, cudaStream_t stream) {
  const FewExpertRowsSmem smem(kKind, p.shape.experts, kLocal, p.split != 1);
  return launch_sm90(device, experts_few_rows<kKind, kGateUp, kLocal>,
                     {static_cast<std::uint64_t>(device.num_sms), smem.warps * 32,
                      smem.bytes(p.stages), stream, cuda::Start::kEarly},
                     p);
}

template <bool kGateUp, bool kLocal>
cudaError_t launch_kind(const Device& device, const ExpertsProduct& p, Kind kind,
                        cudaStream_t stream) {
  return kind == Kind::kRaw ? launch<Kind::kRaw, kGateUp, kLocal>(device, p, stream)
                            : launch<Kind::kFixed, kGateUp, kLocal>(device, p, stream);
}

}  // namespace

ExpertsFit fit_experts(const Device& device, const BankShape& gate_up, const BankShape& down,
                       std::uint64_t m, std::uint32_t top_k, const ExpertsPlan& wish) noexcept {
  const SlotLayout slots[2] = {SlotLayout(gate_up), SlotLayout(down)};
  const std::uint64_t items[2] = {slots[0].part_strips, (slots[1].matrix.strips + 1) / 2};
  const auto pairs = static_cast<double>(m * top_k), experts = static_cast<double>(down.experts);
  ExpertsFit fit{};
  fit.many_rows = wish.kernel == 0 ? pairs / experts >= 4 : wish.kernel == kManyExpertRows;
  if (fit.many_rows) {
    // More than the share of an expert: some have more, and each chunk of rows decodes again.
    const double rows = pairs / experts;
    fit.chunk_rows = wish.rows != 0 ? static_cast<std::uint32_t>(wish.rows)
                     : rows <= 20   ? 32
                     : rows <= 40   ? 64
                                    : 128;
    return fit;
  }
  fit.local = m * top_k <= kMaxLocalPairs;
  const FewExpertRowsSmem smem(gate_up.kind, 1, false, false);
  for (int i = 0; i < 2; ++i)
    fit.split[i] =
        wish.split != 0
            ? static_cast<std::uint32_t>(wish.split)
            : split_for(std::min(pairs, experts) * static_cast<double>(items[i]) / device.num_sms,
                        slots[i].matrix.tiles_per_strip);
  fit.chunk_rows = fit.split[0] == 1 && fit.split[1] == 1 ? kFewRows : kSplitRows;
  fit.stages = smem.max_stages;
  return fit;
}

cudaError_t launch_few_expert_rows(const Device& device, const ExpertsProduct& p, Kind kind,
                                   bool gate_up, bool local, cudaStream_t stream) noexcept {
  const auto launch = gate_up ? (local ? launch_kind<true, true> : launch_kind<true, false>)
                              : (local ? launch_kind<false, true> : launch_kind<false, false>);
  return launch(device, p, kind, stream);
}

}  // namespace snug::gemm
