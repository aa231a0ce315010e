// codec/plane_choice.h - what encoders decide from counts of a plane's bytes. GPU encoders decide
// the same: docs/format.md, "Encoders".
#pragma once
#include <cstddef>
#include <cstdint>

#include "codec/entropy/model.h"
#include "frame/frame.h"

namespace snug::codec {

// Counts all bytes of a plane, or those of its sample (codec/sample.h).
void count_bytes(const std::uint8_t* plane, std::size_t n,
                 std::uint32_t (&histogram)[256]) noexcept;
void sample_bytes(const std::uint8_t* plane, std::size_t n,
                  std::uint32_t (&histogram)[256]) noexcept;

// Whether coding the nibbles of a plane would save at least 1/32 of it.
bool worth_coding(const std::uint8_t* plane, std::size_t n) noexcept;

// How to store the top plane; `sample` and `palette` are of that plane.
frame::PlaneMode choose_top_mode(const std::uint32_t (&sample)[256], DType dtype,
                                 const entropy::Palette& palette) noexcept;

// The 7 commonest values of the upper 7 exponent bits in falling order, and 0.
void choose_fixed_palette(const std::uint8_t* high, std::size_t n,
                          std::uint8_t (&palette)[8]) noexcept;

}  // namespace snug::codec
