// codec/sections.h - byte layout inside coded payloads, shared by encoder and
// decoder; docs/format.md draws it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codec/entropy/rans.h"
#include "frame/frame.h"

namespace snug::codec {

// An entropy-coded plane: header | 32 states | table | words | escapes.
inline constexpr std::size_t kStatesOffset = 16;
inline constexpr std::size_t kTableOffset = kStatesOffset + 4 * entropy::kLanes;

struct SectionHeader {
  std::uint32_t num_words = 0;
  std::uint32_t num_escapes = 0;
  std::uint16_t table_bytes = 0;
  std::uint8_t palette_size = 0;  // 0 for byte streams

  std::size_t words_offset() const noexcept { return kTableOffset + frame::align_up(table_bytes); }
  std::size_t escapes_offset() const noexcept {
    return words_offset() + std::size_t{num_words} * 2;
  }
  std::size_t section_bytes() const noexcept {
    return frame::align_up(escapes_offset() + num_escapes);
  }

  void write(std::uint8_t* dst) const noexcept {
    std::memset(dst, 0, kStatesOffset);
    std::memcpy(dst, &num_words, 4);
    std::memcpy(dst + 4, &num_escapes, 4);
    std::memcpy(dst + 8, &table_bytes, 2);
    dst[10] = palette_size;
  }
  // False if a reserved byte is set.
  bool read(const std::uint8_t* src) noexcept {
    std::memcpy(&num_words, src, 4);
    std::memcpy(&num_escapes, src + 4, 4);
    std::memcpy(&table_bytes, src + 8, 2);
    palette_size = src[10];
    return (src[11] | src[12] | src[13] | src[14] | src[15]) == 0;
  }
};

inline constexpr std::size_t padded_symbols(std::size_t num_symbols) noexcept {
  return (num_symbols + entropy::kGroupBytes - 1) / entropy::kGroupBytes * entropy::kGroupBytes;
}

inline constexpr std::uint8_t swap_nibbles(std::uint8_t byte) noexcept {
  return static_cast<std::uint8_t>(byte << 4 | byte >> 4);
}

// A fixed block: low planes | nibble plane | header | escapes.
struct FixedHeader {
  static constexpr std::size_t kBytes = 16;
  std::uint32_t num_escapes = 0;
  std::uint8_t palette[8] = {};  // upper 7 exponent bits; the last is 0

  void write(std::uint8_t* dst) const noexcept {
    std::memset(dst, 0, kBytes);
    std::memcpy(dst, &num_escapes, 4);
    std::memcpy(dst + 4, palette, 8);
  }
  bool read(const std::uint8_t* src) noexcept {
    std::memcpy(&num_escapes, src, 4);
    std::memcpy(palette, src + 4, 8);
    std::uint8_t bad = src[11] | src[12] | src[13] | src[14] | src[15];
    for (const auto value : palette) bad |= value & 0x80;
    return bad == 0;
  }
};

inline constexpr std::size_t fixed_nibble_bytes(std::size_t n) noexcept { return (n + 7) / 8 * 4; }

inline bool is_constant(const std::uint8_t* plane, std::size_t n) noexcept {
  return std::memcmp(plane, plane + 1, n - 1) == 0;
}

}  // namespace snug::codec
