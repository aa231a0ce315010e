// gemm/cuda/tuning.h - which plan was measured to be best, by device and shape.
#pragma once
#include <cstddef>
#include <span>
#include <string>

#include "snug/gemm.h"

namespace snug::gemm {

struct TuningEntry {
  char device[64];
  std::uint64_t n, k, m;  // m: the bucket's largest, a power of two
  Plan plan;
  float gain;  // speed over cuBLAS; 0: not measured
};

std::uint64_t m_bucket(std::uint64_t m) noexcept;

// The entry for these numbers; what was tuned or loaded goes before what is shipped.
bool find_tuning(const char* device, std::uint64_t n, std::uint64_t k, std::uint64_t m,
                 TuningEntry* entry) noexcept;
void remember_tuning(const TuningEntry& entry);

// Shipped with the library: measured on an H200 (bench/results/h200_gemm.md).
std::span<const TuningEntry> shipped_tuning() noexcept;

const char* kernel_name(Kernel kernel) noexcept;

}  // namespace snug::gemm
