// codec/planes.h - elements as byte planes.
//
// Floats are rotated left by one bit first: the exponent then fills the top
// byte(s) and the sign sits below the mantissa. Plane p is byte p of that.
#pragma once
#include <cstddef>
#include <cstdint>

#include "codec/kernels.h"
#include "snug/tensor.h"

namespace snug::codec {

void split_planes(const std::uint8_t* src, std::size_t n, std::size_t width, bool rotate,
                  std::uint8_t* const* planes) noexcept;
void merge_planes(const std::uint8_t* const* planes, std::size_t n, std::size_t width, bool rotate,
                  std::uint8_t* dst) noexcept;

}  // namespace snug::codec
