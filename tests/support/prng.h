// support/prng.h - random numbers that are the same on every machine.
#pragma once
#include <cstddef>
#include <cstdint>

namespace snug::test {

// SplitMix64. The standard distributions differ between libraries, so golden
// files and test names that stand for data cannot use them.
class Prng {
 public:
  explicit Prng(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  std::uint8_t byte() { return static_cast<std::uint8_t>(next() >> 32); }
  // A number below `limit`, which is not 0.
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(next() % limit); }
  bool one_in(std::size_t n) { return below(n) == 0; }
  // In [0, 1).
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  // Mean 0, deviation 1: a sum of uniforms needs nothing from libm, which may
  // round differently elsewhere.
  double normal() {
    double sum = -6;
    for (int i = 0; i < 6; ++i) {
      const std::uint64_t bits = next();
      sum += static_cast<double>(bits >> 32) * 0x1p-32 +
             static_cast<double>(bits & 0xFFFFFFFF) * 0x1p-32;
    }
    return sum;
  }

 private:
  std::uint64_t state_;
};

}  // namespace snug::test
