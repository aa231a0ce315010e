// Launches the kernel of experts with many rows.
#include "gemm/cuda/experts_host.h"
#include "gemm/cuda/sm90_experts_many_rows.cuh"

namespace snug::gemm {
namespace {

template <Kind kKind, bool kGateUp, int kMaxRows>
cudaError_t launch(const Device& device, const ExpertsProduct& p, cudaStream_t stream) {
  using Shape = ManyExpertRows<kKind, kGateUp, kMaxRows>;
  return launch_sm90(device, experts_many_rows<kKind, kGateUp, kMaxRows>,
                     {static_cast<std::uint64_t>(device.num_sms), Shape::kThreads,
                      Shape::smem_bytes(p.shape.experts), stream, cuda::Start::kEarly},
                     p);
}

template <int kMaxRows>
cudaError_t launch_chunks(const Device& device, const ExpertsProduct& params, Kind kind,
                          bool gate_up, cudaStream_t stream) {
  if (kind == Kind::kRaw)
    return gate_up ? launch<Kind::kRaw, true, kMaxRows>(device, params, stream)
                   : launch<Kind::kRaw, false, kMaxRows>(device, params, stream);
  return gate_up ? launch<Kind::kFixed, true, kMaxRows>(device, params, stream)
                 : launch<Kind::kFixed, false, kMaxRows>(device, params, stream);
}

}  // namespace

cudaError_t launch_many_expert_rows(const Device& device, const ExpertsProduct& params, Kind kind,
                                    bool gate_up, std::uint32_t chunk_rows,
                                    cudaStream_t stream) noexcept {
  const auto launch = chunk_rows == 16   ? launch_chunks<16>
                      : chunk_rows == 32 ? launch_chunks<32>
                      : chunk_rows == 64 ? launch_chunks<64>
                      : chunk_rows == 96 ? launch_chunks<96>
                                         : launch_chunks<128>;
  return launch(device, params, kind, gate_up, stream);
}

}  // namespace snug::gemm
