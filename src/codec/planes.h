// codec/planes.h - elements as byte planes.
//
// Floats are rotated left by one bit first: the exponent then fills the top
// byte(s) and the sign sits below the mantissa. Plane p is byte p of that.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codec/kernels.h"
#include "snug/tensor.h"

namespace snug::codec {

template <class U>
U rotate_left(U v) noexcept {
  return static_cast<U>(v << 1 | v >> (8 * sizeof(U) - 1));
}
template <class U>
U rotate_right(U v) noexcept {
  return static_cast<U>(v >> 1 | v << (8 * sizeof(U) - 1));
}

// Calls body with a zero of the unsigned type that has `width` bytes.
template <class Body>
void with_width(std::size_t width, Body body) {
  switch (width) {
    case 1: return body(std::uint8_t{});
    case 2: return body(std::uint16_t{});
    case 4: return body(std::uint32_t{});
    case 8: return body(std::uint64_t{});
  }
}

void split_planes(const std::uint8_t* src, std::size_t n, std::size_t width, bool rotate,
                  std::uint8_t* const* planes) noexcept;
void merge_planes(const std::uint8_t* const* planes, std::size_t n, std::size_t width, bool rotate,
                  std::uint8_t* dst) noexcept;

}  // namespace snug::codec
