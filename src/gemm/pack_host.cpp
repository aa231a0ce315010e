// Packing on the CPU: the reference that the GPU packer must equal byte for byte.
#include <algorithm>
#include <cstring>

#include "gemm/tile_format.h"

namespace snug::gemm {
namespace {

Status error(Code code, const char* what, std::uint64_t found = kNowhere,
             std::uint64_t expected = kNowhere) {
  return {code, what, kNowhere, kNowhere, found, expected};
}

// An escape word names an overflow in 32 bits.
bool acceptable(std::uint64_t n, std::uint64_t k, Kind kind) {
  return (kind == Kind::kRaw || kind == Kind::kFixed) && n != 0 && k != 0 && n < kMaxDim &&
         k < kMaxDim && n <= (std::uint64_t{1} << 44) / k &&
         Layout(n, k, Kind::kFixed).max_overflows < 0xFFFFFFFFu;
}

void put32(std::byte* at, std::uint32_t value) { std::memcpy(at, &value, 4); }
std::uint32_t get32(const std::byte* at) {
  std::uint32_t value;
  std::memcpy(&value, at, 4);
  return value;
}

// Calls f with each place of a tile, and the row and column of its weight in the matrix.
template <class F>
void for_each_place(std::uint64_t row0, std::uint64_t col0, const F& f) {
  for (std::uint32_t bits = 0; bits < kTileWeights; ++bits) {
    const Place p = place_from(bits);
    f(p, row0 + row_of(p), col0 + col_of(p));
  }
}

struct Weights {
  const std::uint16_t* data;
  std::uint64_t ld, n, k;

  bool has(std::uint64_t row, std::uint64_t col) const { return row < n && col < k; }
  // Padding is zero, which decodes to a finite number with any palette.
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
  std::uint32_t num_escaped = 0;  // weights

  TileValues(const Weights& w, std::uint64_t row0, std::uint64_t col0, std::uint64_t palette) {
    for_each_place(row0, col0, [&](const Place& p, std::uint64_t row, std::uint64_t col) {
      if (!w.has(row, col)) return;
      const std::uint32_t value = w.at(row, col) >> 8 & 0x7F, index = palette_index(palette, value);
      lanes[p.lane].add(index, value);
      num_escaped += index == kPaletteSize;
    });
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
  const bool overflows = values.overflows();
  for_each_place(row0, col0, [&](const Place& p, std::uint64_t row, std::uint64_t col) {
    if (!w.has(row, col)) return;
    const std::uint32_t value = w.at(row, col), high = value >> 8 & 0x7F;
    std::uint32_t index = palette_index(palette, high);
    if (index == kPaletteSize) index = overflows ? 0 : values.lanes[p.lane].entry_for(high);
    tile[low_byte_at(p)] = static_cast<std::byte>(value);
    std::byte* word = tile + nibble_word_at(p);
    put32(word, get32(word) | nibble_bits(p, index, value >> 15));
  });
}

// In rising order of lanes, then of values.
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

void pack_raw(const Weights& w, const Layout& layout, std::byte* tile) {
  for (std::uint64_t strip = 0; strip < layout.strips; ++strip)
    for (std::uint64_t t = 0; t < layout.tiles_per_strip; ++t, tile += kRawTileBytes)
      for_each_place(strip * kStripRows, t * kTileCols,
                     [&](const Place& p, std::uint64_t row, std::uint64_t col) {
                       const std::uint16_t value = w.at(row, col);
                       std::memcpy(tile + raw_at(p), &value, 2);
                     });
}

// The upper bytes of one packed tile.
struct UpperBytes {
  std::uint8_t palettes[32][kPaletteSize];
  const std::byte* overflow = nullptr;

  // False: the tile names an overflow that does not exist.
  bool read(const std::byte* palette, const std::byte* words, const std::byte* overflows,
            std::uint64_t num_overflows) {
    for (auto& lane : palettes) std::memcpy(lane, palette, kPaletteSize);
    overflow = nullptr;
    for (std::uint32_t i = 0; i < kEscapeWords; ++i) {
      const std::uint32_t word = get32(words + 4 * i);
      if (word == 0) return true;
      if (word == kOverflowMark) {
        const std::uint32_t number = get32(words + 4);
        overflow = overflows + std::uint64_t{number} * kOverflowBytes;
        return number < num_overflows;
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
  if (!acceptable(n, k, kind)) return 0;
  const Layout layout(n, k, kind);
  return layout.overflows + kOverflowBytes * layout.max_overflows;
}

Result<std::size_t> pack_host(const std::uint16_t* w, std::uint64_t ld, std::uint64_t n,
                              std::uint64_t k, Kind kind, std::span<std::byte> dst) noexcept {
  if (!acceptable(n, k, kind)) return error(Code::kUsage, "matrix shape or kind out of range");
  if (ld < k) return error(Code::kUsage, "rows overlap: leading dimension", ld, k);
  const Layout layout(n, k, kind);
  if (dst.size() < layout.overflows)
    return error(Code::kDstTooSmall, "packed matrix does not fit", dst.size(), layout.overflows);
  const Weights weights{w, ld, n, k};
  std::uint64_t num_escaped = 0, num_overflows = 0;
  const std::uint64_t max_overflows =
      std::min((dst.size() - layout.overflows) / kOverflowBytes, layout.max_overflows);
  std::byte* words = dst.data() + layout.escapes;
  std::byte* tile = dst.data() + layout.tiles;
  if (kind == Kind::kRaw)
    pack_raw(weights, layout, tile);
  else
    std::memset(dst.data(), 0, layout.tiles);
  for (std::uint64_t strip = 0; kind == Kind::kFixed && strip < layout.strips; ++strip) {
    const std::uint64_t palette = strip_palette(weights, strip), row0 = strip * kStripRows;
    std::memcpy(dst.data() + layout.palettes + strip * kPaletteSize, &palette, sizeof palette);
    for (std::uint64_t col0 = 0; col0 < k; col0 += kTileCols) {
      const TileValues values(weights, row0, col0, palette);
      pack_codes(weights, row0, col0, palette, values, tile);
      num_escaped += values.num_escaped;
      if (!values.overflows()) {
        pack_escapes(values, words);
      } else if (num_overflows++ < max_overflows) {
        put32(words, kOverflowMark);
        put32(words + 4, static_cast<std::uint32_t>(num_overflows - 1));
        std::byte* upper = dst.data() + layout.overflows + (num_overflows - 1) * kOverflowBytes;
        for_each_place(row0, col0, [&](const Place& p, std::uint64_t row, std::uint64_t col) {
          upper[overflow_byte_at(p)] = static_cast<std::byte>(weights.at(row, col) >> 8);
        });
      }
      tile += kFixedTileBytes;
      words += kEscapeBytes;
    }
  }
  if (num_overflows > max_overflows)
    return error(Code::kDstTooSmall, "too many weights outside of their palettes; pack as raw",
                 num_overflows, max_overflows);
  Header h{};
  h.magic = kMagic;
  h.version = kVersion;
  h.kind = static_cast<std::int32_t>(kind);
  h.n = n, h.k = k;
  h.num_bytes = layout.overflows + kOverflowBytes * num_overflows;
  h.num_escaped = num_escaped;
  h.num_overflows = num_overflows;
  h.checksum = header_checksum(h);
  std::memcpy(dst.data(), &h, sizeof h);
  return h.num_bytes;
}

Result<Matrix> inspect(std::span<const std::byte> header, std::uint64_t num_bytes) noexcept {
  if (header.size() < kHeaderBytes || num_bytes < kHeaderBytes)
    return error(Code::kCorrupt, "shorter than the header of a packed matrix", header.size(),
                 kHeaderBytes);
  Header h;
  std::memcpy(&h, header.data(), sizeof h);
  if (h.magic != kMagic) return error(Code::kBadMagic, "not a packed matrix");
  if (h.version != kVersion)
    return error(Code::kUnsupportedVersion, "packed by another version of Snug", h.version,
                 kVersion);
  if (h.checksum != header_checksum(h))
    return error(Code::kCorrupt, "header checksum does not match");
  const Kind kind = static_cast<Kind>(h.kind);
  if (!acceptable(h.n, h.k, kind)) return error(Code::kCorrupt, "header field out of range");
  const Layout layout(h.n, h.k, kind);
  if (h.num_overflows > layout.max_overflows ||
      h.num_bytes != layout.overflows + kOverflowBytes * h.num_overflows)
    return error(Code::kCorrupt, "sizes in the header do not agree");
  if (h.num_bytes > num_bytes)
    return error(Code::kCorrupt, "packed matrix is cut short", num_bytes, h.num_bytes);
  return Matrix{nullptr, h.num_bytes, h.n, h.k, kind, h.num_escaped};
}

Status unpack_host(std::span<const std::byte> packed, std::span<std::uint16_t> w,
                   std::uint64_t ld) noexcept {
  const Result<Matrix> info = inspect(packed, packed.size());
  if (!info.ok()) return info.status();
  const std::uint64_t n = info->n, k = info->k;
  const bool raw = info->kind == Kind::kRaw;
  if (ld < k) return error(Code::kUsage, "rows overlap: leading dimension", ld, k);
  if (w.size() < k || (w.size() - k) / ld < n - 1)  // the last row may end before ld
    return error(Code::kDstTooSmall, "the buffer cannot hold all rows", w.size(), n * k);
  const Layout layout(n, k, info->kind);
  const std::uint64_t num_overflows = (info->num_bytes - layout.overflows) / kOverflowBytes;
  const std::byte* tile = packed.data() + layout.tiles;
  const std::byte* words = packed.data() + layout.escapes;
  UpperBytes upper;
  for (std::uint64_t strip = 0; strip < layout.strips; ++strip)
    for (std::uint64_t col0 = 0; col0 < k; col0 += kTileCols) {
      if (!raw && !upper.read(packed.data() + layout.palettes + strip * kPaletteSize, words,
                              packed.data() + layout.overflows, num_overflows))
        return error(Code::kCorrupt, "upper bytes of a tile lie outside of the matrix");
      for_each_place(
          strip * kStripRows, col0, [&](const Place& p, std::uint64_t row, std::uint64_t col) {
            if (row >= n || col >= k) return;
            std::uint16_t value;
            if (raw)
              std::memcpy(&value, tile + raw_at(p), 2);
            else
              value = static_cast<std::uint16_t>(upper.at(p, get32(tile + nibble_word_at(p))) << 8 |
                                                 static_cast<std::uint32_t>(tile[low_byte_at(p)]));
            w[row * ld + col] = value;
          });
      tile += layout.tile_bytes;
      words += kEscapeBytes;
    }
  return {};
}

}  // namespace snug::gemm
