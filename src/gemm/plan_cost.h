// gemm/plan_cost.h - how work is shared by the SMs, and how long that is expected to take.
//
// The constants were fitted on an H200 to shapes that are not in the published grid.
#pragma once
#include "gemm/plan.h"

namespace snug::gemm {

constexpr std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

// How teams of the batch kernel share the tiles of y where k is not divided in clusters: whole
// tiles in waves, then equal parts of the rest.
struct TeamShare {
  std::uint32_t teams, waves;
};
TeamShare share_tiles(int num_sms, std::uint64_t tiles, std::uint64_t steps,
                      bool stream_k) noexcept;

// The tiles of y of a batch plan, and how many clusters of `size` thread blocks run at once.
std::uint64_t num_tiles(const Problem& problem, const Plan& plan) noexcept;
std::uint64_t max_clusters(const Device& device, int size) noexcept;

// Microseconds.
double batch_us(const Device& device, const Problem& problem, const Plan& plan) noexcept;
double few_rows_us(const Device& device, const Problem& problem, const FewRowsFit& fit) noexcept;
double dense_us(const Device& device, const Problem& problem) noexcept;
double unpack_us(const Device& device, const Problem& problem) noexcept;

}  // namespace snug::gemm
