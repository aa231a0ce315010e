// support/delta_versions.h - pairs of versions of one tensor.
#pragma once
#include <cstddef>
#include <span>

#include "snug/delta.h"
#include "support/inputs.h"

namespace snug::test {

struct Versions {
  Bytes base, next;
};

// A way to change a tensor.
struct Change {
  const char* name;
  void (*apply)(DType dtype, Bytes& tensor, Prng& prng);
};
std::span<const Change> changes();
const Change& change_named(const char* name);

// Gaussian elements and `num_extra` bytes that make no whole element, changed.
Versions make_versions(const Change& change, DType dtype, std::size_t num_elems,
                       std::size_t num_extra = 0);

// BF16 weights before and after a step of an optimizer that moves FP32 masters by `step`.
Versions training_step(std::size_t num_elems, double step, std::uint64_t seed = 1);

Bytes encode_delta(const Versions& versions, const delta::Options& options);

}  // namespace snug::test
