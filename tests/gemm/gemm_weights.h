// gemm/gemm_weights.h - weight matrices for the tests of packing and multiplying.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "support/prng.h"

namespace snug::test {

using Weights = std::vector<std::uint16_t>;

inline std::uint16_t to_bf16(float f) {
  std::uint32_t u;
  std::memcpy(&u, &f, 4);
  return static_cast<std::uint16_t>((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

inline float from_bf16(std::uint16_t h) {
  const std::uint32_t u = std::uint32_t{h} << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

// Normal with deviation `sigma`; one in `rare` weights is a random power of two
// smaller, far outside of what a palette covers (0: none).
inline Weights normal_weights(std::size_t count, float sigma, std::size_t rare,
                              std::uint64_t seed) {
  Prng prng(seed);
  Weights w(count);
  for (auto& v : w) {
    float f = sigma * static_cast<float>(prng.normal());
    if (rare != 0 && prng.one_in(rare)) f = std::ldexp(f, -static_cast<int>(prng.below(100)));
    v = to_bf16(f);
  }
  return w;
}

// Every kind of special value among normal ones: NaN with payloads, infinities,
// denormals, zeros of both signs.
inline Weights special_weights(std::size_t count, std::uint64_t seed) {
  constexpr std::uint16_t kSpecial[] = {0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0,
                                        0xFFC1, 0x7F81, 0xFFFF, 0x0001, 0x8001,
                                        0x007F, 0x807F, 0x0080, 0x7F7F, 0xFF7F};
  Weights w = normal_weights(count, 0.02f, 0, seed);
  Prng prng(seed + 1);
  for (auto& v : w)
    if (prng.one_in(300)) v = kSpecial[prng.below(std::size(kSpecial))];
  return w;
}

}  // namespace snug::test
