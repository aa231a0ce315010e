// gemm/tuning.h - which plan was measured to be best, by device and shape.
#pragma once
#include <optional>
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

// The entry for this problem, if it was tuned or loaded.
std::optional<TuningEntry> find_tuning(const char* device, std::uint64_t n, std::uint64_t k,
                                       std::uint64_t m) noexcept;
void remember_tuning(const TuningEntry& entry);

// Changes whenever the table does: answers kept from before are out of date.
std::uint64_t tuning_generation() noexcept;

const char* kernel_name(Kernel kernel) noexcept;

}  // namespace snug::gemm
