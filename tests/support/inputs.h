// support/inputs.h - the registry of tensors that every codec is tested with.
//
// An input registered here gets, for every dtype it applies to, every codec and
// every block size: round trip, equality of all SIMD targets, range decoding,
// threads, and a place in the corpus of the hostile tests.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "snug/tensor.h"
#include "support/prng.h"

namespace snug::test {

using Bytes = std::vector<std::byte>;

struct Input {
  const char* name;
  bool (*applies)(DType dtype);
  // About num_elems elements; inputs that enumerate patterns have their own size.
  Bytes (*make)(DType dtype, std::size_t num_elems, Prng& prng);
};

std::span<const Input> inputs();

// The named input, made from a seed that depends on name, dtype and size alone.
Bytes make_input(const Input& input, DType dtype, std::size_t num_elems);
const Input& input_named(const char* name);

std::vector<DType> all_dtypes();
std::vector<Codec> all_codecs();

}  // namespace snug::test
