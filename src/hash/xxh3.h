// hash/xxh3.h - XXH3, compiled for the baseline of the CPU and, on x86-64, once more for AVX2.
//
// The library of the system has SSE2 alone. Whole files go through one hash, one byte after the
// other, and messages at the rate of the network: AVX2 takes a third of the time, or less.
#pragma once
#include <cstddef>
#include <cstdint>

namespace snug::hash {

inline constexpr std::size_t kHashBytes = 16;

// One build of XXH3-64 of bytes in memory, and of XXH3-128 of a stream.
struct Xxh3 {
  std::uint64_t (*hash64)(const void* bytes, std::size_t num_bytes);
  void* (*create)();  // nullptr if out of memory
  void (*update)(void* state, const void* bytes, std::size_t num_bytes);
  void (*digest)(const void* state, unsigned char (&out)[kHashBytes]);
  void (*destroy)(void* state);
};
extern const Xxh3 kPortableXxh3;
const Xxh3* avx2_xxh3() noexcept;  // nullptr where the CPU or the build lacks it

// The fastest.
const Xxh3& xxh3() noexcept;

}  // namespace snug::hash
