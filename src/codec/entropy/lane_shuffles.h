// codec/entropy/lane_shuffles.h - byte shuffles that spread or gather the 16-bit
// words of 8 lanes under an 8-bit lane mask. They stand in for the expand and
// compress instructions that only AVX-512 has.
#pragma once
#include <array>
#include <cstdint>

namespace snug::codec::entropy {

struct alignas(16) Shuffle {
  std::uint8_t bytes[16];
};
using ShuffleTable = std::array<Shuffle, 256>;

inline constexpr std::uint8_t kZeroByte = 0x80;  // shuffles write 0 for this index

// [mask]: word i of the source goes to the i-th lane of the mask, other lanes get 0.
constexpr ShuffleTable make_expand_table() {
  ShuffleTable table{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    unsigned word = 0;
    for (unsigned lane = 0; lane < 8; ++lane) {
      const bool in = mask >> lane & 1;
      table[mask].bytes[2 * lane] = static_cast<std::uint8_t>(in ? 2 * word : kZeroByte);
      table[mask].bytes[2 * lane + 1] = static_cast<std::uint8_t>(in ? 2 * word + 1 : kZeroByte);
      word += in;
    }
  }
  return table;
}

// [mask]: the words of the mask's lanes move to the end of the vector, in order.
constexpr ShuffleTable make_compress_table() {
  ShuffleTable table{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    for (auto& byte : table[mask].bytes) byte = kZeroByte;
    unsigned word = 8;
    for (unsigned lane = 8; lane-- > 0;) {
      if ((mask >> lane & 1) == 0) continue;
      --word;
      table[mask].bytes[2 * word] = static_cast<std::uint8_t>(2 * lane);
      table[mask].bytes[2 * word + 1] = static_cast<std::uint8_t>(2 * lane + 1);
    }
  }
  return table;
}

}  // namespace snug::codec::entropy
