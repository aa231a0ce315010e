// gemm/tile_format.h - the resident form of a weight matrix: sizes, places, codes.
//
// docs/gemm.md is the specification. The CPU packer, the GPU packer and the kernels
// share this description of the layout.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <numeric>

#include "snug/gemm.h"

#if defined(__CUDACC__)
#define SNUG_HD __host__ __device__ __forceinline__
#else
#define SNUG_HD inline
#endif

namespace snug::gemm {

inline constexpr std::uint32_t kStripRows = 16;  // rows that one mma instruction takes
inline constexpr std::uint32_t kTileCols = 128;  // columns of a tile
inline constexpr std::uint32_t kTileWeights = kStripRows * kTileCols;
inline constexpr std::uint32_t kPaletteSize = 8;  // bytes, one for each 3-bit index
inline constexpr std::uint32_t kTileEscapes = 8;
inline constexpr std::uint32_t kEscapeWords = kTileEscapes / 2;  // of 32 bits, two escapes each
inline constexpr std::uint32_t kEscapeBytes = 4 * kEscapeWords;  // of one tile
inline constexpr std::uint32_t kHalfBytes = 1536;  // 64 columns: 1024 low bytes, 512 of nibbles
inline constexpr std::uint32_t kFixedTileBytes = 2 * kHalfBytes;
inline constexpr std::uint32_t kOverflowBytes = kTileWeights;  // the upper bytes of a tile
inline constexpr std::uint32_t kRawTileBytes = 2 * kTileWeights;

SNUG_HD constexpr std::uint32_t tile_bytes_of(Kind kind) {
  return kind == Kind::kRaw ? kRawTileBytes : kFixedTileBytes;
}

inline constexpr std::uint64_t kMagic = 0x4D4D45474755'4E53ull;  // "SNUGGEMM"
inline constexpr std::uint32_t kVersion = 2;
inline constexpr std::uint64_t kMaxDim = std::uint64_t{1} << 31;

// An escape gives one lane another value for one entry of the palette, in one tile. A
// tile whose escapes do not fit has the mark as its first word, and as its second the
// number of the overflow that holds its upper bytes.
inline constexpr std::uint32_t kEscapeValid = 1u << 15;
inline constexpr std::uint32_t kOverflowMark = 1u << 31;

SNUG_HD std::uint32_t escape_of(std::uint32_t lane, std::uint32_t entry, std::uint32_t value) {
  return kEscapeValid | value << 8 | entry << 5 | lane;
}

struct Header {
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t kind;
  std::uint64_t n, k;
  std::uint64_t num_bytes;
  std::uint64_t num_escaped;  // weights outside their strip's palette
  std::uint64_t num_overflows;
  std::uint64_t checksum;  // of the fields before it
  std::uint64_t reserved[24];
};
static_assert(sizeof(Header) == kHeaderBytes);

SNUG_HD std::uint64_t header_checksum(const Header& h) {
  const std::uint64_t kind = static_cast<std::uint64_t>(h.kind);
  const std::uint64_t fields[] = {h.magic,       h.version | kind << 32, h.n, h.k, h.num_bytes,
                                  h.num_escaped, h.num_overflows};
  std::uint64_t hash = 0xCBF29CE484222325ull;
  for (const std::uint64_t field : fields)
    hash = (hash ^ field) * 0x9E3779B97F4A7C15ull ^ hash >> 29;
  return hash;
}

SNUG_HD std::uint64_t align_up(std::uint64_t value, std::uint64_t to) {
  return (value + to - 1) / to * to;
}

// Offsets of the parts of a packed matrix.
struct Layout {
  std::uint64_t strips, tiles_per_strip, palettes, escapes, tiles, overflows;
  std::uint32_t tile_bytes;
  std::uint64_t max_overflows;  // that packed_bound() allows for

  SNUG_HD Layout(std::uint64_t n, std::uint64_t k, Kind kind) {
    strips = (n + kStripRows - 1) / kStripRows;
    tiles_per_strip = (k + kTileCols - 1) / kTileCols;
    palettes = kHeaderBytes;
    tile_bytes = tile_bytes_of(kind);
    // Escapes lie apart from the tiles, so that these begin on whole cache lines: copies
    // of others are a tenth slower.
    escapes = palettes + (kind == Kind::kRaw ? 0 : align_up(strips * kPaletteSize, kAlign));
    tiles = escapes +
            (kind == Kind::kRaw ? 0 : align_up(strips * tiles_per_strip * kEscapeBytes, kAlign));
    overflows = tiles + strips * tiles_per_strip * tile_bytes;
    // One tile in eight, which is one bit a weight; beyond that packing does not pay.
    max_overflows = kind == Kind::kRaw ? 0 : 1 + strips * tiles_per_strip / 8;
  }
};

// Where the parts of a strip begin in its checksum, in words of 32 bits. A tile has room for an
// overflow, whether it has one or not.
struct StripWords {
  std::uint64_t tiles = 0, escapes, palette, overflows;

  SNUG_HD StripWords(std::uint64_t tiles_per_strip, Kind kind) {
    escapes = tiles_per_strip * (tile_bytes_of(kind) / 4);
    palette = escapes + tiles_per_strip * kEscapeWords;
    overflows = palette + 4;
  }
};

// A weight's place in its tile: the lane that holds it, and where.
struct Place {
  std::uint32_t lane, elem, reg, frag, half;
};

SNUG_HD Place place_from(std::uint32_t bits) {
  return {bits & 31, bits >> 5 & 1, bits >> 6 & 3, bits >> 8 & 3, bits >> 10 & 1};
}

SNUG_HD std::uint32_t row_of(const Place& p) { return p.lane / 4 + p.reg % 2 * 8; }
SNUG_HD std::uint32_t col_of(const Place& p) {
  return p.half * 64 + p.frag * 16 + p.reg / 2 * 8 + p.lane % 4 * 2 + p.elem;
}

// Byte offsets in a tile.
SNUG_HD std::uint32_t low_byte_at(const Place& p) {
  return p.half * kHalfBytes + p.frag / 2 * 512 + p.lane * 16 + p.frag % 2 * 8 + p.reg * 2 + p.elem;
}
SNUG_HD std::uint32_t nibble_word_at(const Place& p) {
  return p.half * kHalfBytes + 1024 + p.lane * 16 + p.frag * 4;
}
SNUG_HD std::uint32_t raw_at(const Place& p) {
  return p.half * 2048 + p.frag * 512 + p.lane * 16 + p.reg * 4 + p.elem * 2;
}

SNUG_HD std::uint32_t overflow_byte_at(const Place& p) {
  return p.half * 1024 + p.frag / 2 * 512 + p.lane * 16 + p.frag % 2 * 8 + p.reg * 2 + p.elem;
}

// Bits of a nibble word that belong to (reg, elem). The signs of registers 0 and 1 are
// at the top bits of the bytes that a byte permute by the low four indices produces;
// those of 2 and 3 are four bits below.
SNUG_HD std::uint32_t nibble_bits(const Place& p, std::uint32_t index, std::uint32_t sign) {
  const std::uint32_t j = p.reg % 2 * 2 + p.elem;
  return index << (p.reg / 2 * 16 + 4 * j) | sign << (8 * j + (p.reg < 2 ? 7 : 3));
}
SNUG_HD std::uint32_t index_in(std::uint32_t word, const Place& p) {
  return word >> (p.reg / 2 * 16 + 4 * (p.reg % 2 * 2 + p.elem)) & 7;
}
SNUG_HD std::uint32_t sign_in(std::uint32_t word, const Place& p) {
  return word >> (8 * (p.reg % 2 * 2 + p.elem) + (p.reg < 2 ? 7 : 3)) & 1;
}

// The eight commonest of the 128 values as bytes in rising order; fewer are padded with
// the last. Of equally common ones the smaller is taken.
inline std::uint64_t best_palette(const std::uint32_t* counts) {
  std::array<std::uint8_t, 128> values;
  std::iota(values.begin(), values.end(), std::uint8_t{0});
  std::ranges::stable_sort(values, std::greater(), [&](std::uint8_t v) { return counts[v]; });
  std::size_t used = 0;
  while (used < kPaletteSize && counts[values[used]] != 0) ++used;
  std::sort(values.begin(), values.begin() + used);
  std::uint64_t palette = 0;
  for (std::size_t i = 0; i < kPaletteSize && used != 0; ++i)
    palette |= std::uint64_t{values[std::min(i, used - 1)]} << 8 * i;
  return palette;
}

// Index of `value` in the palette, or kPaletteSize.
SNUG_HD std::uint32_t palette_index(std::uint64_t palette, std::uint32_t value) {
  for (std::uint32_t i = 0; i < kPaletteSize; ++i)
    if ((palette >> 8 * i & 0xFF) == value) return i;
  return kPaletteSize;
}

SNUG_HD std::uint32_t count_bits(std::uint64_t v) {
#if defined(__CUDA_ARCH__)
  return static_cast<std::uint32_t>(__popcll(v));
#else
  return static_cast<std::uint32_t>(std::popcount(v));
#endif
}

// Which palette entries the 64 weights of one lane in one tile use, and which values they
// miss. Missing values replace entries that the lane does not use.
struct LaneValues {
  std::uint32_t used = 0;                           // entries, a bit each
  std::uint64_t missing_low = 0, missing_high = 0;  // values outside the palette, a bit each

  SNUG_HD void add(std::uint32_t index, std::uint32_t value) {
    if (index < kPaletteSize)
      used |= 1u << index;
    else if (value < 64)
      missing_low |= std::uint64_t{1} << value;
    else
      missing_high |= std::uint64_t{1} << (value - 64);
  }
  SNUG_HD std::uint32_t num_missing() const {
    return count_bits(missing_low) + count_bits(missing_high);
  }
  SNUG_HD bool fits() const { return count_bits(used) + num_missing() <= kPaletteSize; }
  // Both in rising order: the first missing value replaces the first unused entry.
  SNUG_HD std::uint32_t entry_for(std::uint32_t value) const {
    const std::uint64_t below = (std::uint64_t{1} << value % 64) - 1;
    std::uint32_t rank = value < 64 ? count_bits(missing_low & below)
                                    : count_bits(missing_low) + count_bits(missing_high & below);
    std::uint32_t entry = 0;
    for (; entry + 1 < kPaletteSize; ++entry)
      if ((used >> entry & 1) == 0 && rank-- == 0) break;
    return entry;
  }
};

}  // namespace snug::gemm
