// gemm/tile_format.h - the resident form of a weight matrix: sizes, places, codes.
//
// docs/gemm.md is the specification. Everything here is shared by the CPU packer,
// the GPU packer and the kernels, so that the layout exists once.
#pragma once
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
inline constexpr std::uint32_t kInlinePatches = 4;
inline constexpr std::uint32_t kHalfBytes = 1536;                 // 64 columns: 1024 low bytes, 512 of nibbles
inline constexpr std::uint32_t kPatchBytes = 4 * kInlinePatches;  // of one tile
inline constexpr std::uint32_t kNibbleTileBytes = 2 * kHalfBytes;
inline constexpr std::uint32_t kRawTileBytes = 2 * kTileWeights;

inline constexpr std::uint64_t kMagic = 0x4D4D45474755'4E53ull;  // "SNUGGEMM"
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::uint64_t kMaxDim = std::uint64_t{1} << 31;

// A patch word: where in the tile, and the seven bits that belong there.
inline constexpr std::uint32_t kPatchValid = 1u << 31;
inline constexpr std::uint32_t kPatchMore = 1u << 30;  // the low 30 bits are a place in the overflow
inline constexpr std::uint32_t kPatchIndexMask = kPatchMore - 1;

struct Header {
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t kind;
  std::uint64_t n, k;
  std::uint64_t num_bytes;
  std::uint64_t num_patches;
  std::uint64_t overflow_words;
  std::uint64_t checksum;  // of the fields before it
  std::uint64_t reserved[24];
};
static_assert(sizeof(Header) == kHeaderBytes);

SNUG_HD std::uint64_t header_checksum(const Header& h) {
  const std::uint64_t fields[] = {
      h.magic,         h.version | static_cast<std::uint64_t>(h.kind) << 32, h.n, h.k, h.num_bytes, h.num_patches,
      h.overflow_words};
  std::uint64_t hash = 0xCBF29CE484222325ull;
  for (const std::uint64_t field : fields) hash = (hash ^ field) * 0x9E3779B97F4A7C15ull ^ hash >> 29;
  return hash;
}

SNUG_HD std::uint64_t align_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

// Offsets of the parts of a packed matrix.
struct Layout {
  std::uint64_t strips, tiles_per_strip, palettes, patches, tiles, overflow;
  std::uint32_t tile_bytes;
  std::uint64_t overflow_capacity;  // words that packed_bound() allows for

  SNUG_HD Layout(std::uint64_t n, std::uint64_t k, Kind kind) {
    strips = (n + kStripRows - 1) / kStripRows;
    tiles_per_strip = (k + kTileCols - 1) / kTileCols;
    palettes = kHeaderBytes;
    tile_bytes = kind == Kind::kRaw ? kRawTileBytes : kNibbleTileBytes;
    // Patches lie apart from the tiles, which so begin on whole cache lines: copies
    // that do not are a tenth slower.
    patches = palettes + (kind == Kind::kRaw ? 0 : align_up(strips * kPaletteSize, kAlign));
    tiles = patches + (kind == Kind::kRaw ? 0 : align_up(strips * tiles_per_strip * kPatchBytes, kAlign));
    overflow = tiles + strips * tiles_per_strip * tile_bytes;
    // One weight in 256; more is no longer worth packing.
    overflow_capacity = kind == Kind::kRaw ? 0 : 16 + strips * tiles_per_strip * (kTileWeights / 256);
  }
};

// A weight's place in its tile: which lane holds it, and where.
struct Place {
  std::uint32_t lane, elem, reg, frag, half;

  SNUG_HD std::uint32_t bits() const { return lane | elem << 5 | reg << 6 | frag << 8 | half << 10; }
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
SNUG_HD std::uint32_t nibble_word_at(const Place& p) { return p.half * kHalfBytes + 1024 + p.lane * 16 + p.frag * 4; }
SNUG_HD std::uint32_t raw_at(const Place& p) {
  return p.half * 2048 + p.frag * 512 + p.lane * 16 + p.reg * 4 + p.elem * 2;
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
      if (counts[v] > best_count && (chosen[v / 64] >> v % 64 & 1) == 0) best = v, best_count = counts[v];
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

}  // namespace snug::gemm
