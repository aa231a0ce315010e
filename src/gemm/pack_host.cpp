// Packing on the CPU: the reference that the GPU packer must equal byte for byte.
#include <cstring>

#include "gemm/tile_format.h"

namespace snug::gemm {
namespace {

Status usage(const char* what, std::uint64_t found = kNowhere, std::uint64_t expected = kNowhere) {
  return {Code::kUsage, what, kNowhere, kNowhere, found, expected};
}

// The last limit is that of the 30 bits in which a patch word names a place in the overflow.
bool acceptable(std::uint64_t n, std::uint64_t k) {
  return n != 0 && k != 0 && n < kMaxDim && k < kMaxDim && n <= (std::uint64_t{1} << 44) / k &&
         Layout(n, k, Kind::kNibble).overflow_capacity <= kPatchIndexMask;
}

void put32(std::byte* at, std::uint32_t value) { std::memcpy(at, &value, 4); }
std::uint32_t get32(const std::byte* at) {
  std::uint32_t value;
  std::memcpy(&value, at, 4);
  return value;
}

struct Weights {
  const std::uint16_t* data;
  std::uint64_t ld, n, k;

  bool has(std::uint64_t row, std::uint64_t col) const { return row < n && col < k; }
  // Beyond the edge, what decodes to a finite number with any palette.
  std::uint16_t at(std::uint64_t row, std::uint64_t col) const { return has(row, col) ? data[row * ld + col] : 0; }
};

std::uint64_t strip_palette(const Weights& w, std::uint64_t strip) {
  std::uint32_t counts[128] = {};
  for (std::uint64_t row = strip * kStripRows; row < (strip + 1) * kStripRows && row < w.n; ++row)
    for (std::uint64_t col = 0; col < w.k; ++col) ++counts[w.at(row, col) >> 8 & 0x7F];
  return best_palette(counts);
}

// The patches of one tile in rising order of place.
struct TilePatches {
  std::uint32_t words[kTileWeights];
  std::uint32_t count = 0;
};

void pack_tile(const Weights& w, std::uint64_t row0, std::uint64_t col0, std::uint64_t palette, std::byte* tile,
               TilePatches& patches) {
  std::memset(tile, 0, kNibbleTileBytes);
  patches.count = 0;
  for (std::uint32_t bits = 0; bits < kTileWeights; ++bits) {
    const Place p = place_from(bits);
    const std::uint64_t row = row0 + row_of(p), col = col0 + col_of(p);
    if (!w.has(row, col)) continue;
    const std::uint32_t value = w.at(row, col), high = value >> 8 & 0x7F;
    std::uint32_t index = palette_index(palette, high);
    if (index == kPaletteSize) {
      index = 0;
      patches.words[patches.count++] = kPatchValid | high << 11 | bits;
    }
    tile[low_byte_at(p)] = static_cast<std::byte>(value);
    std::byte* word = tile + nibble_word_at(p);
    put32(word, get32(word) | nibble_bits(p, index, value >> 15));
  }
}

// Writes the patches of a tile, those that do not fit in its words to the overflow.
// Returns the overflow words used.
std::uint64_t place_patches(const TilePatches& patches, std::byte* words, std::byte* overflow, std::uint64_t used,
                            std::uint64_t capacity) {
  std::memset(words, 0, kPatchBytes);
  if (patches.count <= kInlinePatches) {
    std::memcpy(words, patches.words, 4 * patches.count);
    return 0;
  }
  const std::uint32_t kept = kInlinePatches - 1, rest = patches.count - kept;
  if (used + 1 + rest <= capacity) {
    std::memcpy(words, patches.words, 4 * kept);
    put32(words + 4 * kept, kPatchValid | kPatchMore | static_cast<std::uint32_t>(used));
    put32(overflow + 4 * used, rest);
    std::memcpy(overflow + 4 * (used + 1), patches.words + kept, 4 * rest);
  }
  return 1 + rest;
}

void pack_raw(const Weights& w, const Layout& layout, std::byte* dst) {
  std::byte* tile = dst + layout.tiles;
  for (std::uint64_t strip = 0; strip < layout.strips; ++strip)
    for (std::uint64_t t = 0; t < layout.tiles_per_strip; ++t, tile += kRawTileBytes)
      for (std::uint32_t bits = 0; bits < kTileWeights; ++bits) {
        const Place p = place_from(bits);
        const std::uint16_t value = w.at(strip * kStripRows + row_of(p), t * kTileCols + col_of(p));
        std::memcpy(tile + raw_at(p), &value, 2);
      }
}

std::size_t finish(std::byte* dst, std::uint64_t n, std::uint64_t k, Kind kind, const Layout& layout,
                   std::uint64_t num_patches, std::uint64_t overflow_words) {
  Header h{};
  h.magic = kMagic;
  h.version = kVersion;
  h.kind = static_cast<std::int32_t>(kind);
  h.n = n;
  h.k = k;
  h.num_bytes = layout.overflow + 4 * overflow_words;
  h.num_patches = num_patches;
  h.overflow_words = overflow_words;
  h.checksum = header_checksum(h);
  std::memcpy(dst, &h, sizeof h);
  return h.num_bytes;
}

// The patch words of a tile in host memory, wherever they are.
Result<std::uint32_t> patch_count(const std::byte* words, const std::byte* overflow, std::uint64_t overflow_words,
                                  const std::byte** more) {
  std::uint32_t count = 0;
  while (count < kInlinePatches && (get32(words + 4 * count) & kPatchValid) != 0 &&
         (get32(words + 4 * count) & kPatchMore) == 0)
    ++count;
  *more = nullptr;
  if (count != kInlinePatches - 1 || (get32(words + 4 * count) & kPatchMore) == 0) return count;
  const std::uint64_t at = get32(words + 4 * count) & kPatchIndexMask;
  if (at >= overflow_words) return Status{Code::kCorrupt, "patch list lies outside of the matrix"};
  const std::uint32_t rest = get32(overflow + 4 * at);
  if (rest > overflow_words - at - 1) return Status{Code::kCorrupt, "patch list lies outside of the matrix"};
  *more = overflow + 4 * (at + 1);
  return count + rest;
}

}  // namespace

std::size_t packed_bound(std::uint64_t n, std::uint64_t k, Kind kind) noexcept {
  if (!acceptable(n, k) || (kind != Kind::kRaw && kind != Kind::kNibble)) return 0;
  const Layout layout(n, k, kind);
  return layout.overflow + 4 * layout.overflow_capacity;
}

Result<std::size_t> pack_host(const std::uint16_t* w, std::uint64_t ld, std::uint64_t n, std::uint64_t k, Kind kind,
                              std::span<std::byte> dst) noexcept {
  if (!acceptable(n, k)) return usage("matrix shape out of range");
  if (kind != Kind::kRaw && kind != Kind::kNibble) return usage("not a kind of packed matrix");
  if (ld < k) return usage("rows overlap: leading dimension", ld, k);
  const Layout layout(n, k, kind);
  if (dst.size() < layout.overflow)
    return Status{Code::kDstTooSmall, "packed matrix does not fit", kNowhere, kNowhere, dst.size(), layout.overflow};
  const Weights weights{w, ld, n, k};
  if (kind == Kind::kRaw) {
    pack_raw(weights, layout, dst.data());
    return finish(dst.data(), n, k, kind, layout, 0, 0);
  }
  std::memset(dst.data(), 0, layout.tiles);
  std::byte* words = dst.data() + layout.patches;
  std::uint64_t num_patches = 0, overflow_words = 0;
  const std::uint64_t room = (dst.size() - layout.overflow) / 4;
  const std::uint64_t capacity = room < layout.overflow_capacity ? room : layout.overflow_capacity;
  TilePatches patches;
  std::byte* tile = dst.data() + layout.tiles;
  for (std::uint64_t strip = 0; strip < layout.strips; ++strip) {
    const std::uint64_t palette = strip_palette(weights, strip);
    std::memcpy(dst.data() + layout.palettes + strip * kPaletteSize, &palette, sizeof palette);
    for (std::uint64_t t = 0; t < layout.tiles_per_strip; ++t, tile += kNibbleTileBytes, words += kPatchBytes) {
      pack_tile(weights, strip * kStripRows, t * kTileCols, palette, tile, patches);
      num_patches += patches.count;
      overflow_words += place_patches(patches, words, dst.data() + layout.overflow, overflow_words, capacity);
    }
  }
  if (overflow_words > capacity)
    return Status{Code::kDstTooSmall, "too many weights outside of their palettes; pack as raw",
                  kNowhere,           kNowhere,
                  overflow_words,     capacity};
  return finish(dst.data(), n, k, kind, layout, num_patches, overflow_words);
}

Result<Matrix> inspect(std::span<const std::byte> header, std::uint64_t num_bytes) noexcept {
  if (header.size() < kHeaderBytes || num_bytes < kHeaderBytes)
    return Status{Code::kCorrupt, "shorter than the header of a packed matrix", kNowhere, kNowhere, header.size(),
                  kHeaderBytes};
  Header h;
  std::memcpy(&h, header.data(), sizeof h);
  if (h.magic != kMagic) return Status{Code::kBadMagic, "not a packed matrix"};
  if (h.version != kVersion)
    return Status{Code::kUnsupportedVersion, "packed by a newer Snug", kNowhere, kNowhere, h.version, kVersion};
  if (h.checksum != header_checksum(h)) return Status{Code::kCorrupt, "header checksum does not match"};
  const Kind kind = static_cast<Kind>(h.kind);
  if (!acceptable(h.n, h.k) || (kind != Kind::kRaw && kind != Kind::kNibble))
    return Status{Code::kCorrupt, "header field out of range"};
  const Layout layout(h.n, h.k, kind);
  if (h.overflow_words > layout.overflow_capacity || h.num_bytes != layout.overflow + 4 * h.overflow_words)
    return Status{Code::kCorrupt, "sizes in the header do not agree"};
  if (h.num_bytes > num_bytes)
    return Status{Code::kCorrupt, "packed matrix is cut short", kNowhere, kNowhere, num_bytes, h.num_bytes};
  return Matrix{nullptr, h.num_bytes, h.n, h.k, kind, h.num_patches};
}

Status unpack_host(std::span<const std::byte> packed, std::uint16_t* w, std::uint64_t ld) noexcept {
  const Result<Matrix> info = inspect(packed, packed.size());
  if (!info.ok()) return info.status();
  const std::uint64_t n = info->n, k = info->k;
  if (ld < k) return usage("rows overlap: leading dimension", ld, k);
  const Layout layout(n, k, info->kind);
  const std::byte* overflow = packed.data() + layout.overflow;
  const std::uint64_t overflow_words = (info->num_bytes - layout.overflow) / 4;
  const std::byte* tile = packed.data() + layout.tiles;
  const std::byte* words = packed.data() + layout.patches;
  for (std::uint64_t strip = 0; strip < layout.strips; ++strip)
    for (std::uint64_t t = 0; t < layout.tiles_per_strip; ++t, tile += layout.tile_bytes, words += kPatchBytes) {
      const std::byte* palette = packed.data() + layout.palettes + strip * kPaletteSize;
      const auto target = [&](const Place& p) -> std::uint16_t* {
        const std::uint64_t row = strip * kStripRows + row_of(p), col = t * kTileCols + col_of(p);
        return row < n && col < k ? w + row * ld + col : nullptr;
      };
      for (std::uint32_t bits = 0; bits < kTileWeights; ++bits) {
        const Place p = place_from(bits);
        std::uint16_t* const out = target(p);
        if (out == nullptr) continue;
        if (info->kind == Kind::kRaw) {
          std::memcpy(out, tile + raw_at(p), 2);
          continue;
        }
        const std::uint32_t word = get32(tile + nibble_word_at(p));
        const auto high = static_cast<std::uint32_t>(palette[index_in(word, p)]) & 0x7F;
        *out = static_cast<std::uint16_t>(sign_in(word, p) << 15 | high << 8 |
                                          static_cast<std::uint32_t>(tile[low_byte_at(p)]));
      }
      if (info->kind == Kind::kRaw) continue;
      const std::byte* more;
      const Result<std::uint32_t> count = patch_count(words, overflow, overflow_words, &more);
      if (!count.ok()) return count.status();
      for (std::uint32_t i = 0; i < *count; ++i) {
        const std::uint32_t patch = more != nullptr && i >= kInlinePatches - 1
                                        ? get32(more + 4 * (i - (kInlinePatches - 1)))
                                        : get32(words + 4 * i);
        if (std::uint16_t* const out = target(place_from(patch)); out != nullptr)
          *out = static_cast<std::uint16_t>((*out & 0x80FF) | (patch >> 11 & 0x7F) << 8);
      }
    }
  return {};
}

}  // namespace snug::gemm
