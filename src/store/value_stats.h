// store/value_stats.h - counts that say how far a tensor can be compressed.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "snug/store.h"

namespace snug::store {

// Counts exponents and bytes of one tensor; pieces may come in any order.
class ValueCounter {
 public:
  explicit ValueCounter(DType dtype);

  // Whole elements, except for a tail that is ignored.
  void add(std::span<const std::byte> raw) noexcept;
  void merge(const ValueCounter& other) noexcept;
  std::uint64_t num_bytes() const noexcept { return num_bytes_; }
  TensorStats stats() const;

 private:
  DType dtype_;
  std::uint64_t num_bytes_ = 0;
  std::vector<std::uint64_t> exponents_;  // empty for dtypes without
  // Byte planes, lowest first: those that hold nothing but mantissa, or all
  // where there is no exponent.
  std::vector<std::array<std::uint64_t, 256>> planes_;
};

// Bits per symbol; 0 for an empty histogram.
double entropy_bits(std::span<const std::uint64_t> counts) noexcept;

}  // namespace snug::store
