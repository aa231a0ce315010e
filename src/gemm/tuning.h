// gemm/tuning.h - which plan was measured to be best, by device and shape.
#pragma once
#include <optional>
#include <span>
#include <string>

#include "snug/gemm.h"

namespace snug::gemm {

struct TuningEntry {
  char device[64];
  std::uint64_t n, k, m;  // m: the largest of its bucket, a power of two
  Plan plan;
  float gain;  // speed over cuBLAS; 0: not measured
};

std::uint64_t m_bucket(std::uint64_t m) noexcept;

// The entry for this problem; one that was tuned or loaded precedes one that is shipped.
std::optional<TuningEntry> find_tuning(const char* device, std::uint64_t n, std::uint64_t k,
                                       std::uint64_t m) noexcept;
void remember_tuning(const TuningEntry& entry);

// Changes whenever the table does: answers kept from before are out of date.
std::uint64_t tuning_generation() noexcept;

// Shipped with the library: measured on an H200 (bench/results/h200_gemm.md).
std::span<const TuningEntry> shipped_tuning() noexcept;

const char* kernel_name(Kernel kernel) noexcept;

}  // namespace snug::gemm
