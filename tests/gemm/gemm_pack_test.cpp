// Packing on the CPU: exact, bounded, safe with hostile bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "gemm/gemm_weights.h"
#include "gemm/tile_format.h"
#include "snug/gemm.h"
#include "support/guarded_buffer.h"

namespace snug::test {
namespace {

using gemm::Kind;

struct PackedBytes {
  std::vector<std::byte> bytes;
  Status status;
};

PackedBytes pack(const Weights& w, std::uint64_t n, std::uint64_t k, Kind kind,
                 std::uint64_t ld = 0) {
  PackedBytes out;
  GuardedBuffer room(gemm::packed_bound(n, k, kind));
  const Result<std::size_t> used =
      gemm::pack_host(w.data(), ld == 0 ? k : ld, n, k, kind, room.span());
  out.status = used.status();
  if (used.ok())
    out.bytes.assign(room.span().begin(), room.span().begin() + static_cast<std::ptrdiff_t>(*used));
  return out;
}

void expect_round_trip(const Weights& w, std::uint64_t n, std::uint64_t k, Kind kind) {
  const PackedBytes packed = pack(w, n, k, kind);
  ASSERT_TRUE(packed.status.ok()) << to_string(packed.status);
  const GuardedBuffer guarded(packed.bytes);
  Weights back(n * k, 0x1234);
  const Status status = gemm::unpack_host(guarded.span(), back, k);
  ASSERT_TRUE(status.ok()) << to_string(status);
  EXPECT_EQ(back, w) << n << " x " << k;
}

constexpr std::uint64_t kShapes[][2] = {{1, 1},    {1, 300},   {16, 128}, {17, 129},
                                        {15, 127}, {33, 1000}, {64, 256}};

TEST(GemmPack, EveryShapeComesBack) {
  for (const auto& [n, k] : kShapes)
    for (const Kind kind : {Kind::kRaw, Kind::kFixed})
      expect_round_trip(normal_weights(n * k, 0.02f, 0, n + k), n, k, kind);
}

TEST(GemmPack, SpecialValuesComeBack) {
  expect_round_trip(special_weights(100 * 500, 1), 100, 500, Kind::kFixed);
  expect_round_trip(special_weights(100 * 500, 2), 100, 500, Kind::kRaw);
}

TEST(GemmPack, EveryPatternComesBackRaw) {
  Weights w(65536);
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<std::uint16_t>(i);
  expect_round_trip(w, 256, 256, Kind::kRaw);
}

// More values in one tile than escapes can describe.
TEST(GemmPack, TilesWithManyEscapesComeBack) {
  Weights w = normal_weights(16 * 4096, 0.02f, 0, 3);
  for (std::uint32_t i = 0; i < 60; ++i)
    w[i * 61 % (16 * 128) / 128 * 4096 + i * 61 % 128] = static_cast<std::uint16_t>(i * 0x0411);
  expect_round_trip(w, 16, 4096, Kind::kFixed);
}

// A value outside of the palette takes the place of an entry that its lane does not
// use; a lane that uses all eight makes its tile overflow.
TEST(GemmPack, EscapesTakeUnusedEntries) {
  const std::uint64_t n = 16, k = 2048;
  Weights w(n * k, 0x3C10);
  for (std::uint64_t i = 0; i < 8 * 16; ++i)
    w[i / 8 * k + 1024 + i % 8] = static_cast<std::uint16_t>(0x3C10 + i % 8 * 0x100);
  w[0] = 0x0123;      // lane 0 of the first tile: every other entry is free
  w[1] = 0x0145;      // the same value: the same escape
  w[8] = 0xFF80;      // another value of that lane
  w[2 * k] = 0x7FFF;  // lane 8
  const gemm::Layout layout(n, k, Kind::kFixed);
  const PackedBytes few = pack(w, n, k, Kind::kFixed);
  ASSERT_TRUE(few.status.ok());
  EXPECT_EQ(few.bytes.size(), layout.overflows);
  std::uint16_t escapes[8];
  std::memcpy(escapes, few.bytes.data() + layout.escapes, sizeof escapes);
  const std::uint32_t want[] = {gemm::escape_of(0, 1, 0x01), gemm::escape_of(0, 2, 0x7F),
                                gemm::escape_of(8, 1, 0x7F)};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(escapes[i], i < 3 ? want[i] : 0u) << i;
  expect_round_trip(w, n, k, Kind::kFixed);

  for (std::uint32_t i = 0; i < 8; ++i)
    w[i / 2 * 16 + i % 2] = static_cast<std::uint16_t>(0x3C10 + i * 0x100);
  w[8] = 0x0123;
  const PackedBytes full = pack(w, n, k, Kind::kFixed);
  ASSERT_TRUE(full.status.ok());
  EXPECT_EQ(full.bytes.size(), layout.overflows + gemm::kOverflowBytes);
  expect_round_trip(w, n, k, Kind::kFixed);
}

TEST(GemmPack, FewEscapesStayWithinTwelvePointOneBits) {
  const Weights w = normal_weights(512 * 1024, 0.02f, 0, 4);
  const PackedBytes packed = pack(w, 512, 1024, Kind::kFixed);
  ASSERT_TRUE(packed.status.ok());
  EXPECT_LE(8.0 * static_cast<double>(packed.bytes.size()) / (512 * 1024), 12.1);
}

TEST(GemmPack, RandomBitsAreRefusedNotExpanded) {
  Prng prng(5);
  Weights w(256 * 256);
  for (auto& v : w) v = static_cast<std::uint16_t>(prng.next());
  const PackedBytes packed = pack(w, 256, 256, Kind::kFixed);
  EXPECT_EQ(packed.status.code, Code::kDstTooSmall);
  EXPECT_STREQ(packed.status.what, "too many weights outside of their palettes; pack as raw");
  expect_round_trip(w, 256, 256, Kind::kRaw);
}

TEST(GemmPack, LeadingDimensionIsHonoured) {
  const Weights wide = normal_weights(20 * 200, 0.02f, 500, 6);
  Weights narrow;
  for (int row = 0; row < 20; ++row)
    narrow.insert(narrow.end(), wide.begin() + row * 200, wide.begin() + row * 200 + 150);
  const PackedBytes a = pack(wide, 20, 150, Kind::kFixed, 200),
                    b = pack(narrow, 20, 150, Kind::kFixed);
  EXPECT_EQ(a.bytes, b.bytes);
  Weights back(20 * 200, 0xABCD);
  ASSERT_TRUE(gemm::unpack_host(a.bytes, back, 200).ok());
  for (std::size_t i = 0; i < back.size(); ++i)
    EXPECT_EQ(back[i], i % 200 < 150 ? wide[i] : 0xABCD) << i;
}

TEST(GemmPack, PalettePicksTheCommonest) {
  std::uint32_t counts[128] = {};
  for (std::uint32_t v = 20; v < 32; ++v) counts[v] = v;
  EXPECT_EQ(gemm::best_palette(counts), 0x1F1E1D1C1B1A1918ull);
  std::uint32_t one[128] = {};
  one[5] = 1;
  EXPECT_EQ(gemm::best_palette(one), 0x0505050505050505ull);
  std::uint32_t ties[128];
  std::fill(std::begin(ties), std::end(ties), 7u);
  EXPECT_EQ(gemm::best_palette(ties), 0x0706050403020100ull);
}

TEST(GemmPack, PlacesAreABijection) {
  std::vector<bool> seen(gemm::kTileWeights);
  for (std::uint32_t row = 0; row < gemm::kStripRows; ++row)
    for (std::uint32_t col = 0; col < gemm::kTileCols; ++col) {
      // As docs/gemm.md has it.
      const std::uint32_t half = col / 64, frag = col % 64 / 16, lane = row % 8 * 4 + col % 8 / 2,
                          reg = row / 8 + col % 16 / 8 * 2, elem = col % 2;
      const std::uint32_t place = lane + 32 * elem + 64 * reg + 256 * frag + 1024 * half;
      ASSERT_LT(place, gemm::kTileWeights);
      EXPECT_FALSE(seen[place]);
      seen[place] = true;
      EXPECT_EQ(gemm::row_of(gemm::place_from(place)), row);
      EXPECT_EQ(gemm::col_of(gemm::place_from(place)), col);
    }
}

TEST(GemmPack, BadArgumentsAreRefused) {
  Weights w(100);
  std::vector<std::byte> room(1 << 20);
  EXPECT_EQ(gemm::packed_bound(0, 5, Kind::kRaw), 0u);
  EXPECT_EQ(gemm::packed_bound(5, std::uint64_t{1} << 40, Kind::kRaw), 0u);
  EXPECT_EQ(gemm::packed_bound(5, 5, static_cast<Kind>(7)), 0u);
  EXPECT_EQ(gemm::packed_bound(std::uint64_t{1} << 23, std::uint64_t{1} << 23, Kind::kFixed), 0u);
  EXPECT_NE(gemm::packed_bound(std::uint64_t{1} << 18, std::uint64_t{1} << 18, Kind::kFixed), 0u);
  EXPECT_EQ(gemm::pack_host(w.data(), 10, 0, 10, Kind::kFixed, room).status().code, Code::kUsage);
  EXPECT_EQ(gemm::pack_host(w.data(), 9, 10, 10, Kind::kFixed, room).status().code, Code::kUsage);
  EXPECT_EQ(gemm::pack_host(w.data(), 10, 10, 10, static_cast<Kind>(-1), room).status().code,
            Code::kUsage);
  EXPECT_EQ(
      gemm::pack_host(w.data(), 10, 10, 10, Kind::kFixed, std::span(room).first(100)).status().code,
      Code::kDstTooSmall);
}

TEST(GemmPack, DamagedHeadersAreRefused) {
  const PackedBytes packed = pack(normal_weights(64 * 256, 0.02f, 400, 7), 64, 256, Kind::kFixed);
  ASSERT_TRUE(packed.status.ok());
  Weights back(64 * 256);
  EXPECT_FALSE(gemm::unpack_host(std::span(packed.bytes).first(200), back, 256).ok());
  EXPECT_EQ(
      gemm::unpack_host(std::span(packed.bytes).first(packed.bytes.size() - 1), back, 256).code,
      Code::kCorrupt);
  for (std::size_t byte = 0; byte < 64; ++byte)
    for (int bit = 0; bit < 8; ++bit) {
      auto damaged = packed.bytes;
      damaged[byte] ^= static_cast<std::byte>(1 << bit);
      EXPECT_FALSE(gemm::inspect(damaged, damaged.size()).ok())
          << "byte " << byte << ", bit " << bit;
    }
}

// Escape words are the only data that could lead somewhere else.
TEST(GemmPack, HostileEscapesStayInside) {
  const PackedBytes packed = pack(normal_weights(64 * 256, 0.02f, 400, 8), 64, 256, Kind::kFixed);
  ASSERT_TRUE(packed.status.ok());
  const gemm::Layout layout(64, 256, Kind::kFixed);
  Prng prng(9);
  for (int round = 0; round < 300; ++round) {
    auto damaged = packed.bytes;
    for (int i = 0; i < 8; ++i) {
      const auto word = static_cast<std::uint32_t>(prng.next());
      const std::size_t words = layout.strips * layout.tiles_per_strip * gemm::kEscapeWords;
      std::memcpy(damaged.data() + layout.escapes + 4 * prng.below(words), &word, 4);
    }
    if (prng.one_in(2)) {
      const std::uint32_t mark[] = {gemm::kOverflowMark, static_cast<std::uint32_t>(prng.below(4))};
      std::memcpy(damaged.data() + layout.escapes, mark, sizeof mark);
    }
    const GuardedBuffer guarded(damaged);
    Weights back(64 * 256);
    const Status status = gemm::unpack_host(guarded.span(), back, 256);
    EXPECT_TRUE(status.ok() || status.code == Code::kCorrupt);
  }
}

}  // namespace
}  // namespace snug::test
