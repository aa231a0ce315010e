// golden/golden_cases.h - how the files in tests/golden are made.
//
// The files are what counts: they stay as they are while code changes. New ones
// are written by `make_golden`, only when the format gains something.
#pragma once
#include <string>
#include <vector>

#include "snug/status.h"
#include "snug/tensor.h"
#include "support/inputs.h"

namespace snug::test {

// valid/<dtype>.<codec>.<log2_block>.<input>.<num_elems>.snug, next to .raw
struct GoldenValid {
  DType dtype;
  Codec codec;
  int log2_block;
  const char* input;
  std::size_t num_elems;
  std::size_t num_tail_bytes = 0;

  std::string name() const;
  Bytes raw() const;
};
std::vector<GoldenValid> golden_valid();

// invalid/<code>.<what is wrong>.snug
struct GoldenInvalid {
  Code code;
  std::string what;
  Bytes frame;

  std::string name() const { return std::to_string(static_cast<int>(code)) + "." + what; }
};
std::vector<GoldenInvalid> golden_invalid();

}  // namespace snug::test
