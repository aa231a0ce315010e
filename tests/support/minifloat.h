// support/minifloat.h - doubles to the bits of narrower floats.
#pragma once
#include <bit>
#include <cstdint>

#include "snug/tensor.h"

namespace snug::test {

// Truncates towards zero; too small becomes a denormal or zero, too large the
// largest pattern below all ones. Exact rounding does not matter to a codec.
inline std::uint64_t to_minifloat(double value, int exponent_bits, int mantissa_bits) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const std::uint64_t sign = bits >> 63;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> 52 & 0x7FF) - 1023 + bias;
  std::uint64_t mantissa = bits & ((1ull << 52) - 1);
  std::uint64_t magnitude;
  if (exponent >= (1 << exponent_bits) - 1) {
    magnitude = (((1ull << exponent_bits) - 1) << mantissa_bits) - 1;
  } else if (exponent > 0) {
    magnitude =
        static_cast<std::uint64_t>(exponent) << mantissa_bits | mantissa >> (52 - mantissa_bits);
  } else {
    const int shift = 52 - mantissa_bits + 1 - exponent;
    magnitude = shift < 53 ? (mantissa | 1ull << 52) >> shift : 0;
  }
  return sign << (exponent_bits + mantissa_bits) | magnitude;
}

// The bits of `value` as an element of a float dtype; integers are rounded to
// the nearest below.
inline std::uint64_t to_bits(double value, DType dtype) {
  switch (dtype) {
    case DType::kBF16: return to_minifloat(value, 8, 7);
    case DType::kF16: return to_minifloat(value, 5, 10);
    case DType::kF32: return to_minifloat(value, 8, 23);
    case DType::kF64: return std::bit_cast<std::uint64_t>(value);
    case DType::kF8E4M3: return to_minifloat(value, 4, 3);
    case DType::kF8E5M2: return to_minifloat(value, 5, 2);
    default: return static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
  }
}

}  // namespace snug::test
