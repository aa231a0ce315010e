// support/raw_checksum.h - the checksum of raw bytes on a GPU link, as docs/wire.md has it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace snug::test {

inline std::uint64_t raw_checksum(const std::byte* data, std::size_t num_bytes) {
  std::uint64_t sum = num_bytes * 0x9FB21C651E98DF25ull;
  for (std::size_t i = 0; i < num_bytes; ++i) {
    const std::uint32_t factor =
        (static_cast<std::uint32_t>(i / 4) * 0x9E3779B1u + 0x85EBCA77u) | 1u;
    sum += (std::uint64_t{std::to_integer<std::uint8_t>(data[i])} << 8 * (i % 4)) * factor;
  }
  return sum;
}

}  // namespace snug::test
