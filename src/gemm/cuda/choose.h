// gemm/cuda/choose.h - from a wish to a complete plan.
#pragma once
#include <vector>

#include "gemm/cuda/launch.h"

namespace snug::gemm {

// Fills in what the plan leaves open: by the table, else by rule.
Plan complete_plan(const Device& device, std::uint64_t n, std::uint64_t k, std::uint64_t m,
                   Kind kind, const Plan& wish) noexcept;

// Every plan worth measuring.
std::vector<Plan> candidates(const Device& device, std::uint64_t n, std::uint64_t k,
                             std::uint64_t m, Kind kind);

std::uint64_t plan_workspace_bytes(const Device& device, std::uint64_t n, std::uint64_t k,
                                   std::uint64_t m, Kind kind, const Plan& plan) noexcept;

}  // namespace snug::gemm
