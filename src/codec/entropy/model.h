// codec/entropy/model.h - statistics to frequency tables, and tables to bytes.
//
// Encoder decisions are integer arithmetic only: a GPU repeats them and arrives at the same bytes.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "codec/entropy/rans.h"

namespace snug::codec::entropy {

inline constexpr int kMaxPalette = 15;  // symbol 15 at most is the escape
inline constexpr std::size_t kPaletteTableBytes = 32;
inline constexpr std::size_t kMaxByteTableBytes = 2 + 16 + 16 * (2 + 16);

// 256 * log2(256 / freq), rounded up, for freq 1..256: a cost is never below the ideal one,
// which the GPU relies on when it calls a block noise from a bound alone.
constexpr std::array<std::uint16_t, 257> make_costs() {
  std::array<std::uint16_t, 257> costs{};
  for (unsigned f = 1; f <= 256; ++f) {
    // log2(f) by repeated squaring: 8 integer and 8 fraction bits.
    unsigned whole = 0;
    while (f >> (whole + 1)) ++whole;
    std::uint64_t x = (std::uint64_t{f} << 30) >> whole;  // [1, 2) with 30 bits
    unsigned fraction = 0;
    for (int bit = 0; bit < 8; ++bit) {
      x = (x * x) >> 30;
      fraction <<= 1;
      if (x >> 31) {
        x >>= 1;
        fraction |= 1;
      }
    }
    costs[f] = static_cast<std::uint16_t>(8 * 256 - (whole * 256 + fraction));
  }
  return costs;
}
inline constexpr std::array<std::uint16_t, 257> kCost = make_costs();  // in 1/256 bit

// Frequencies of `n` <= 16 symbols from their counts: proportional, at least 1
// where the count is not 0, adding up to 256. The total must not be 0.
void normalize(const std::uint32_t* counts, int n, Table& table) noexcept;

// What symbols in these counts cost under a table, in 1/256 bit.
std::uint64_t table_cost(const std::uint32_t* counts, const Table& table) noexcept;

struct Palette {
  int size = 0;  // entries; `size` itself is the escape's index
  std::uint8_t values[16] = {};
  Table table;
  std::uint64_t cost = 0;  // of the counted bytes, in 1/256 bit, escapes at 8 bits included
};

// The commonest bytes, in falling order of their counts (equal counts: smaller
// byte first), as long as each is at least 1/1024 of all.
Palette make_palette(const std::uint32_t (&histogram)[256]) noexcept;

// The nibble-swapped model of a byte histogram: first symbol = high nibble.
// Second tables that do not pay for themselves are left uniform. `cost` as above.
void make_byte_model(const std::uint32_t (&histogram)[256], Model& model,
                     std::uint64_t& cost) noexcept;

// Tables as the format stores them. Writing returns the bytes used; reading
// returns false if the bytes make no valid table.
void write_palette(const Palette& palette, std::uint8_t* dst) noexcept;  // 32 bytes
bool read_palette(const std::uint8_t* src, Palette& palette) noexcept;
std::size_t write_byte_model(const Model& model, std::uint8_t* dst) noexcept;
bool read_byte_model(const std::uint8_t* src, std::size_t num_bytes, Model& model) noexcept;

}  // namespace snug::codec::entropy
