// nccl/detect.h - which element type a buffer of unknown content holds.
#pragma once
#include <cstddef>
#include <span>

#include "nccl/settings.h"
#include "snug/tensor.h"

namespace snug::nccl {

struct Guess {
  DType dtype = DType::kBytes;
  double ratio = 1;  // compressed size over size, estimated
};

// Samples 2 KiB in about 2 us. The answer decides speed and size only: every
// answer is lossless.
Guess guess_dtype(std::span<const std::byte> data) noexcept;

// The codec for such data where `wanted` was chosen for the connection: kRaw if it
// hardly shrinks, and something else than kFixed for types other than BF16.
Codec codec_for(const Guess& guess, Codec wanted, CodecChoice choice) noexcept;

}  // namespace snug::nccl
