// codec/entropy/reciprocal.h - exact division of 32-bit numbers by frequencies.
//
// x / f = ((x + increment) * multiplier) >> (32 + shift) for every x < 2^32 - 1.
// With 2^shift <= f < 2^(shift + 1) and t = 2^(32 + shift): t / f rounded up is
// exact without increment if it is off by at most 2^shift / f, otherwise t / f
// rounded down is exact with it. f = 256 is left out: there 256 - f is 0 and the
// quotient does not matter.
#pragma once
#include <array>
#include <cstdint>

namespace snug::codec::entropy {

struct Reciprocal {
  static constexpr std::uint32_t kShiftMask = 7;
  static constexpr int kIncrementBit = 3;

  std::uint32_t multiplier = 0;
  std::uint8_t shift = 0;  // | increment << kIncrementBit
};

constexpr std::array<Reciprocal, 257> make_reciprocals() {
  std::array<Reciprocal, 257> table{};
  for (std::uint32_t f = 1; f < 256; ++f) {
    unsigned shift = 0;
    while (f >> (shift + 1)) ++shift;
    const std::uint64_t t = std::uint64_t{1} << (32 + shift);
    const std::uint64_t missing = f - t % f;  // what rounding up adds to t
    const bool power_of_two = t % f == 0;     // t / f itself would need 33 bits
    if (!power_of_two && missing <= std::uint64_t{1} << shift)
      table[f] = {static_cast<std::uint32_t>(t / f + 1), static_cast<std::uint8_t>(shift)};
    else
      table[f] = {static_cast<std::uint32_t>(power_of_two ? t / f - 1 : t / f),
                  static_cast<std::uint8_t>(shift | 1u << Reciprocal::kIncrementBit)};
  }
  return table;
}
inline constexpr std::array<Reciprocal, 257> kReciprocals = make_reciprocals();

}  // namespace snug::codec::entropy
