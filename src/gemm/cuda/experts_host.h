// gemm/cuda/experts_host.h - what the host side of a mixture of experts shares.
#pragma once
#include "gemm/cuda/experts_params.h"
#include "gemm/cuda/linear_host.h"

namespace snug::gemm {

// ExpertsPlan::kernel.
inline constexpr std::int32_t kFewExpertRows = 1, kManyExpertRows = 2;

// How the kernels divide the two products.
struct ExpertsFit {
  bool many_rows;
  std::uint32_t chunk_rows;  // rows that read the weights of an expert together
  // Few rows: whether thread blocks route for themselves; warps that share two strips, in gate_up
  // and in down; stages of a ring.
  bool local;
  std::uint32_t split[2], stages;
};

// Rows of x, and of h, which has top_k for each of them, are found by 32-bit numbers of 16-byte
// pieces.
std::uint64_t max_expert_rows(std::uint64_t n, std::uint64_t k, std::uint32_t top_k) noexcept;
Status check_experts_plan(const ExpertsPlan& plan) noexcept;
BankParts parts_of(const Bank& bank) noexcept;

ExpertsFit fit_experts(const Device& device, const BankShape& gate_up, const BankShape& down,
                       std::uint64_t m, std::uint32_t top_k, const ExpertsPlan& wish) noexcept;
cudaError_t launch_route_experts(const Device& device, const RouteParams& params, bool many_rows,
                                 cudaStream_t stream) noexcept;
cudaError_t launch_ids_of_counts(const std::int32_t* counts, std::uint32_t each, std::uint32_t m,
                                 std::int32_t* ids, cudaStream_t stream) noexcept;
cudaError_t launch_sum_experts(const Device& device, const SumParams& params,
                               cudaStream_t stream) noexcept;
cudaError_t launch_few_expert_rows(const Device& device, const ExpertsProduct& product, Kind kind,
                                   bool gate_up, bool local, cudaStream_t stream) noexcept;

cudaError_t launch_many_expert_rows(const Device& device, const ExpertsProduct& params, Kind kind,
                                    bool gate_up, std::uint32_t chunk_rows,
                                    cudaStream_t stream) noexcept;

}  // namespace snug::gemm
