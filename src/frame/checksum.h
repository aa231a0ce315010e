// frame/checksum.h - the 32-bit checksum of headers and block payloads, and the 64-bit one of
// packed matrices and of raw pieces between GPUs.
//
// A sum of products, so that lanes, warps and atomics may add the terms in any order and still
// agree: sum of word[i] * multiplier(i) modulo 2^64, then one mix. Every changed word changes the
// sum, because multipliers are odd and below 2^32. Not cryptographic.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace snug::frame {

inline constexpr std::uint32_t kChecksumStep = 0x9E3779B1u;
inline constexpr std::uint32_t kChecksumStart = 0x85EBCA77u;
inline constexpr std::uint64_t kChecksumMix = 0x9FB21C651E98DF25ull;

inline std::uint32_t checksum_multiplier(std::uint64_t word_idx) noexcept {
  return (static_cast<std::uint32_t>(word_idx) * kChecksumStep + kChecksumStart) | 1u;
}

// The terms of `num_bytes` (a multiple of 4) that start at word `first_word`.
inline std::uint64_t checksum_terms(const std::uint8_t* bytes, std::size_t num_bytes,
                                    std::uint64_t first_word) noexcept {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < num_bytes / 4; ++i) {
    std::uint32_t word;
    std::memcpy(&word, bytes + 4 * i, 4);
    sum += std::uint64_t{word} * checksum_multiplier(first_word + i);
  }
  return sum;
}

inline std::uint32_t checksum_finish(std::uint64_t sum, std::uint64_t num_bytes) noexcept {
  sum += num_bytes;
  sum ^= sum >> 32;
  return static_cast<std::uint32_t>((sum * kChecksumMix) >> 32);
}

// All 64 bits of the sum. They find every change within one word, and every exchange of two words
// that differ, for certain; 32 bits would miss one in 2^32. The tag, which is not 0, tells apart
// what must not be exchanged as a whole, and keeps the checksum of zeros from being 0.
constexpr std::uint64_t wide_checksum(std::uint64_t sum, std::uint64_t tag) noexcept {
  return sum + tag * kChecksumMix;
}

}  // namespace snug::frame
