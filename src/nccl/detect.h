// nccl/detect.h - which element type a buffer of unknown content holds.
#pragma once
#include <cstddef>
#include <span>

#include "snug/tensor.h"

namespace snug::nccl {

struct Guess {
  DType dtype = DType::kBytes;
  double ratio = 1;  // compressed size over size, as far as a sample can tell
};

// Looks at a few thousand bytes: about 2 us. The answer decides speed and size
// only; any answer is lossless.
Guess guess_dtype(std::span<const std::byte> data) noexcept;

}  // namespace snug::nccl
