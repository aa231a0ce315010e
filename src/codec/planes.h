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

inline bool has_sign_bit(DType dtype) noexcept {
  switch (dtype) {
    case DType::kBF16:
    case DType::kF16:
    case DType::kF32:
    case DType::kF64:
    case DType::kF8E4M3:
    case DType::kF8E5M2: return true;
    default: return false;
  }
}

// Types whose top plane is (the upper part of) an exponent of 8 bits or more:
// few values, so a palette and one symbol a value.
inline bool top_plane_is_exponent(DType dtype) noexcept {
  return dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kF64;
}

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
