// gemm/tile_format.h - the resident form of a weight matrix: sizes, places, codes.
//
// docs/gemm.md is the specification. Everything here is shared by the CPU packer,
// the GPU packer and the kernels, so that the layout exists once.
#pragma once
#include <bit>
#include <cstdint>

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
inline constexpr std::uint32_t kEscapeWords =
    kTileEscapes / 2;  // of 32 bits, with two escapes each
inline constexpr std::uint32_t kEscapeBytes = 4 * kEscapeWords;  // of one tile
inline constexpr std::uint32_t kHalfBytes = 1536;  // 64 columns: 1024 low bytes, 512 of nibbles
inline constexpr std::uint32_t kFixedTileBytes = 2 * kHalfBytes;
inline constexpr std::uint32_t kOverflowBytes = kTileWeights;  // all upper bytes of a tile
inline constexpr std::uint32_t kRawTileBytes = 2 * kTileWeights;

SNUG_HD constexpr std::uint32_t tile_bytes_of(Kind kind) {
  return kind == Kind::kRaw ? kRawTileBytes : kFixedTileBytes;
}

inline constexpr std::uint64_t kMagic = 0x4D4D45474755'4E53ull;  // "SNUGGEMM"
inline constexpr std::uint32_t kVersion = 2;
inline constexpr std::uint64_t kMaxDim = std::uint64_t{1} << 31;

// A escape gives one lane another value for one entry of the palette, in one tile. A
// tile that needs what escapes cannot say has the mark as its first word, and as its
// second the number of the overflow that holds its upper bytes.
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
  std::uint64_t num_escaped;  // weights outside of their strip's palette
  std::uint64_t num_overflows;
  std::uint64_t checksum;  // of the fields before it
  std::uint64_t reserved[24];
};
static_assert(sizeof(Header) == kHeaderBytes);

SNUG_HD std::uint64_t header_checksum(const Header& h) {
  const std::uint64_t fields[] = {h.magic,
                                  h.version | static_cast<std::uint64_t>(h.kind) << 32,
                                  h.n,
                                  h.k,
                                  h.num_bytes,
                                  h.num_escaped,
                                  h.num_overflows};
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
    // Escapes lie apart from the tiles, which so begin on whole cache lines: copies
    // that do not are a tenth slower.
    escapes = palettes + (kind == Kind::kRaw ? 0 : align_up(strips * kPaletteSize, kAlign));
    tiles = escapes +
            (kind == Kind::kRaw ? 0 : align_up(strips * tiles_per_strip * kEscapeBytes, kAlign));
    overflows = tiles + strips * tiles_per_strip * tile_bytes;
    // One tile in eight, one bit a weight; more is no longer worth packing.
    max_overflows = kind == Kind::kRaw ? 0 : 1 + strips * tiles_per_strip / 8;
  }
};

// A weight's place in its tile: which lane holds it, and where.
struct Place {
  std::uint32_t lane, elem, reg, frag, half;

  SNUG_HD std::uint32_t bits() const {
    return lane | elem << 5 | reg << 6 | frag << 8 | half << 10;
  }
};

SNUG_HD Place place_of(std::uint32_t row, std::uint32_t col) {
  return {row % 8 * 4 + col % 8 / 2, col % 2, row / 8 + col % 16 / 8 * 2, col % 64 / 16, col / 64};
}

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

// Bits of a nibble word that belong to (reg, elem). Signs of registers 0 and 1 lie
// where a byte permute of the low four indices leaves the top bits of its bytes;
// those of 2 and 3 four bits below.
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

// The eight commonest of the 128 values, in rising order; fewer are filled up with
// the last. Ties go to the smaller value. Returns them as eight bytes.
SNUG_HD std::uint64_t best_palette(const std::uint32_t* counts) {
  std::uint64_t chosen[2] = {0, 0};
  for (std::uint32_t i = 0; i < kPaletteSize; ++i) {
    std::uint32_t best = 128, best_count = 0;
    for (std::uint32_t v = 0; v < 128; ++v)
      if (counts[v] > best_count && (chosen[v / 64] >> v % 64 & 1) == 0)
        best = v, best_count = counts[v];
    if (best < 128) chosen[best / 64] |= std::uint64_t{1} << best % 64;
  }
  std::uint64_t palette = 0;
  std::uint32_t used = 0, last = 0;
  for (std::uint32_t v = 0; v < 128; ++v)
    if (chosen[v / 64] >> v % 64 & 1) palette |= static_cast<std::uint64_t>(last = v) << 8 * used++;
  for (; used < kPaletteSize; ++used) palette |= static_cast<std::uint64_t>(last) << 8 * used;
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

// What the 64 weights of one lane in one tile need of the palette. Values that are
// not there take the place of entries that the lane does not use.
struct LaneValues {
  std::uint32_t used = 0;                           // entries, a bit each
  std::uint64_t missing_low = 0, missing_high = 0;  // values outside of the palette, a bit each

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
  // Both in rising order: the first missing value gets the first unused entry.
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
