// Packing on the CPU: the reference that the GPU packer must equal byte for byte.
#include <cstring>

#include "gemm/tile_format.h"

namespace snug::gemm {
namespace {

Status usage(const char* what, std::uint64_t found = kNowhere, std::uint64_t expected = kNowhere) {
  return {Code::kUsage, what, kNowhere, kNowhere, found, expected};
}

// The last limit is that of the 32 bits in which a escape word names a overflow.
bool acceptable(std::uint64_t n, std::uint64_t k) {
  return n != 0 && k != 0 && n < kMaxDim && k < kMaxDim && n <= (std::uint64_t{1} << 44) / k &&
         Layout(n, k, Kind::kFixed).max_overflows < 0xFFFFFFFFu;
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
  std::uint16_t at(std::uint64_t row, std::uint64_t col) const {
    return has(row, col) ? data[row * ld + col] : 0;
  }
};

std::uint64_t strip_palette(const Weights& w, std::uint64_t strip) {
  std::uint32_t counts[128] = {};
  for (std::uint64_t row = strip * kStripRows; row < (strip + 1) * kStripRows && row < w.n; ++row)
    for (std::uint64_t col = 0; col < w.k; ++col) ++counts[w.at(row, col) >> 8 & 0x7F];
  return best_palette(counts);
}

// What a tile needs beyond the palette of its strip.
struct TileValues {
  LaneValues lanes[32];
  std::uint32_t num_missing = 0;  // weights

  TileValues(const Weights& w, std::uint64_t row0, std::uint64_t col0, std::uint64_t palette) {
    for (std::uint32_t bits = 0; bits < kTileWeights; ++bits) {
      const Place p = place_from(bits);
      const std::uint64_t row = row0 + row_of(p), col = col0 + col_of(p);
      if (!w.has(row, col)) continue;
      const std::uint32_t value = w.at(row, col) >> 8 & 0x7F, index = palette_index(palette, value);
      lanes[p.lane].add(index, value);
      num_missing += index == kPaletteSize;
    }
  }
  bool overflows() const {
    std::uint32_t escapes = 0;
    for (const LaneValues& lane : lanes) {
      if (!lane.fits()) return true;
      escapes += lane.num_missing();
    }
    return escapes > kTileEscapes;
  }
};

void pack_codes(const Weights& w, std::uint64_t row0, std::uint64_t col0, std::uint64_t palette,
                const TileValues& values, std::byte* tile) {
  std::memset(tile, 0, kFixedTileBytes);
  const bool overflow = values.overflows();
  for (std::uint32_t bits = 0; bits < kTileWeights; ++bits) {
    const Place p = place_from(bits);
    const std::uint64_t row = row0 + row_of(p), col = col0 + col_of(p);
    if (!w.has(row, col)) continue;
    const std::uint32_t value = w.at(row, col), high = value >> 8 & 0x7F;
    std::uint32_t index = palette_index(palette, high);
    if (index == kPaletteSize) index = overflow ? 0 : values.lanes[p.lane].entry_for(high);
    tile[low_byte_at(p)] = static_cast<std::byte>(value);
    std::byte* word = tile + nibble_word_at(p);
    put32(word, get32(word) | nibble_bits(p, index, value >> 15));
  }
}

// By lanes and then by values, both rising.
void pack_escapes(const TileValues& values, std::byte* words) {
  for (std::uint32_t lane = 0; lane < 32; ++lane)
    for (std::uint32_t value = 0; value < 128; ++value) {
      const LaneValues& v = values.lanes[lane];
      if (((value < 64 ? v.missing_low : v.missing_high) >> value % 64 & 1) == 0) continue;
      const auto escape = static_cast<std::uint16_t>(escape_of(lane, v.entry_for(value), value));
      std::memcpy(words, &escape, 2);
      words += 2;
    }
}

void pack_overflow(const Weights& w, std::uint64_t row0, std::uint64_t col0, std::byte* overflow) {
  for (std::uint32_t bits = 0; bits < kTileWeights; ++bits) {
    const Place p = place_from(bits);
    overflow[overflow_byte_at(p)] =
        static_cast<std::byte>(w.at(row0 + row_of(p), col0 + col_of(p)) >> 8);
  }
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

std::size_t finish(std::byte* dst, std::uint64_t n, std::uint64_t k, Kind kind,
                   const Layout& layout, std::uint64_t num_escaped, std::uint64_t num_overflows) {
  Header h{};
  h.magic = kMagic;
  h.version = kVersion;
  h.kind = static_cast<std::int32_t>(kind);
  h.n = n;
  h.k = k;
  h.num_bytes = layout.overflows + kOverflowBytes * num_overflows;
  h.num_escaped = num_escaped;
  h.num_overflows = num_overflows;
  h.checksum = header_checksum(h);
  std::memcpy(dst, &h, sizeof h);
  return h.num_bytes;
}

// The upper bytes of one packed tile.
struct UpperBytes {
  std::uint8_t palettes[32][kPaletteSize];
  const std::byte* overflow = nullptr;

  // False: the tile names a overflow that does not exist.
  bool read(const std::byte* palette, const std::byte* words, const std::byte* overflows,
            std::uint64_t num_overflows) {
    for (auto& lane : palettes) std::memcpy(lane, palette, kPaletteSize);
    overflow = nullptr;
    for (std::uint32_t i = 0; i < kEscapeWords; ++i) {
      const std::uint32_t word = get32(words + 4 * i);
      if (word == 0) return true;
      if (word == kOverflowMark) {
        const std::uint32_t index = get32(words + 4);
        overflow = overflows + std::uint64_t{index} * kOverflowBytes;
        return index < num_overflows;
      }
      for (const std::uint32_t escape : {word & 0xFFFF, word >> 16})
        if ((escape & kEscapeValid) != 0)
          palettes[escape & 31][escape >> 5 & 7] = static_cast<std::uint8_t>(escape >> 8 & 0x7F);
    }
    return true;
  }
  std::uint32_t at(const Place& p, std::uint32_t word) const {
    if (overflow != nullptr) return static_cast<std::uint32_t>(overflow[overflow_byte_at(p)]);
    return sign_in(word, p) << 7 | (palettes[p.lane][index_in(word, p)] & 0x7Fu);
  }
};

}  // namespace

std::size_t packed_bound(std::uint64_t n, std::uint64_t k, Kind kind) noexcept {
  if (!acceptable(n, k) || (kind != Kind::kRaw && kind != Kind::kFixed)) return 0;
  const Layout layout(n, k, kind);
  return layout.overflows + kOverflowBytes * layout.max_overflows;
}

Result<std::size_t> pack_host(const std::uint16_t* w, std::uint64_t ld, std::uint64_t n,
                              std::uint64_t k, Kind kind, std::span<std::byte> dst) noexcept {
  if (!acceptable(n, k)) return usage("matrix shape out of range");
  if (kind != Kind::kRaw && kind != Kind::kFixed) return usage("not a kind of packed matrix");
  if (ld < k) return usage("rows overlap: leading dimension", ld, k);
  const Layout layout(n, k, kind);
  if (dst.size() < layout.overflows)
    return Status{Code::kDstTooSmall, "packed matrix does not fit", kNowhere, kNowhere, dst.size(),
                  layout.overflows};
  const Weights weights{w, ld, n, k};
  if (kind == Kind::kRaw) {
    pack_raw(weights, layout, dst.data());
    return finish(dst.data(), n, k, kind, layout, 0, 0);
  }
  std::memset(dst.data(), 0, layout.tiles);
  std::uint64_t num_escaped = 0, num_overflows = 0;
  const std::uint64_t room = (dst.size() - layout.overflows) / kOverflowBytes;
  const std::uint64_t max_overflows = room < layout.max_overflows ? room : layout.max_overflows;
  std::byte* words = dst.data() + layout.escapes;
  std::byte* tile = dst.data() + layout.tiles;
  for (std::uint64_t strip = 0; strip < layout.strips; ++strip) {
    const std::uint64_t palette = strip_palette(weights, strip), row0 = strip * kStripRows;
    std::memcpy(dst.data() + layout.palettes + strip * kPaletteSize, &palette, sizeof palette);
    for (std::uint64_t t = 0; t < layout.tiles_per_strip; ++t) {
      const TileValues values(weights, row0, t * kTileCols, palette);
      pack_codes(weights, row0, t * kTileCols, palette, values, tile);
      if (!values.overflows()) {
        pack_escapes(values, words);
      } else {
        if (num_overflows < max_overflows) {
          put32(words, kOverflowMark);
          put32(words + 4, static_cast<std::uint32_t>(num_overflows));
          pack_overflow(weights, row0, t * kTileCols,
                        dst.data() + layout.overflows + num_overflows * kOverflowBytes);
        }
        ++num_overflows;
      }
      num_escaped += values.num_missing;
      tile += kFixedTileBytes;
      words += kEscapeBytes;
    }
  }
  if (num_overflows > max_overflows)
    return Status{Code::kDstTooSmall, "too many weights outside of their palettes; pack as raw",
                  kNowhere,           kNowhere,
                  num_overflows,      max_overflows};
  return finish(dst.data(), n, k, kind, layout, num_escaped, num_overflows);
}

Result<Matrix> inspect(std::span<const std::byte> header, std::uint64_t num_bytes) noexcept {
  if (header.size() < kHeaderBytes || num_bytes < kHeaderBytes)
    return Status{Code::kCorrupt, "shorter than the header of a packed matrix",
                  kNowhere,       kNowhere,
                  header.size(),  kHeaderBytes};
  Header h;
  std::memcpy(&h, header.data(), sizeof h);
  if (h.magic != kMagic) return Status{Code::kBadMagic, "not a packed matrix"};
  if (h.version != kVersion)
    return Status{Code::kUnsupportedVersion,
                  "packed by another version of Snug",
                  kNowhere,
                  kNowhere,
                  h.version,
                  kVersion};
  if (h.checksum != header_checksum(h))
    return Status{Code::kCorrupt, "header checksum does not match"};
  const Kind kind = static_cast<Kind>(h.kind);
  if (!acceptable(h.n, h.k) || (kind != Kind::kRaw && kind != Kind::kFixed))
    return Status{Code::kCorrupt, "header field out of range"};
  const Layout layout(h.n, h.k, kind);
  if (h.num_overflows > layout.max_overflows ||
      h.num_bytes != layout.overflows + kOverflowBytes * h.num_overflows)
    return Status{Code::kCorrupt, "sizes in the header do not agree"};
  if (h.num_bytes > num_bytes)
    return Status{Code::kCorrupt, "packed matrix is cut short", kNowhere, kNowhere, num_bytes,
                  h.num_bytes};
  return Matrix{nullptr, h.num_bytes, h.n, h.k, kind, h.num_escaped};
}

Status unpack_host(std::span<const std::byte> packed, std::uint16_t* w, std::uint64_t ld) noexcept {
  const Result<Matrix> info = inspect(packed, packed.size());
  if (!info.ok()) return info.status();
  const std::uint64_t n = info->n, k = info->k;
  if (ld < k) return usage("rows overlap: leading dimension", ld, k);
  const Layout layout(n, k, info->kind);
  const std::uint64_t num_overflows = (info->num_bytes - layout.overflows) / kOverflowBytes;
  const std::byte* tile = packed.data() + layout.tiles;
  const std::byte* words = packed.data() + layout.escapes;
  UpperBytes upper;
  for (std::uint64_t strip = 0; strip < layout.strips; ++strip)
    for (std::uint64_t t = 0; t < layout.tiles_per_strip; ++t) {
      if (info->kind == Kind::kFixed &&
          !upper.read(packed.data() + layout.palettes + strip * kPaletteSize, words,
                      packed.data() + layout.overflows, num_overflows))
        return Status{Code::kCorrupt, "upper bytes of a tile lie outside of the matrix"};
      for (std::uint32_t bits = 0; bits < kTileWeights; ++bits) {
        const Place p = place_from(bits);
        const std::uint64_t row = strip * kStripRows + row_of(p), col = t * kTileCols + col_of(p);
        if (row >= n || col >= k) continue;
        std::uint16_t* const out = w + row * ld + col;
        if (info->kind == Kind::kRaw)
          std::memcpy(out, tile + raw_at(p), 2);
        else
          *out = static_cast<std::uint16_t>(upper.at(p, get32(tile + nibble_word_at(p))) << 8 |
                                            static_cast<std::uint32_t>(tile[low_byte_at(p)]));
      }
      tile += layout.tile_bytes;
      words += kEscapeBytes;
    }
  return {};
}

}  // namespace snug::gemm
