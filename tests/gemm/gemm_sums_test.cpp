// Checksums of packed matrices on the CPU: specified, complete, and they name the strip.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "gemm/gemm_weights.h"
#include "gemm/tile_format.h"
#include "snug/gemm.h"
#include "snug/snug_gpu.h"
#include "support/guarded_buffer.h"

namespace snug::test {
namespace {

using gemm::Kind;
using Sums = std::vector<std::uint64_t>;

std::vector<std::byte> packed_of(const Weights& w, std::uint64_t n, std::uint64_t k, Kind kind) {
  std::vector<std::byte> bytes(gemm::packed_bound(n, k, kind));
  const auto used = gemm::pack_host(w.data(), k, n, k, kind, bytes);
  EXPECT_TRUE(used.ok()) << to_string(used.status());
  bytes.resize(used.ok() ? *used : 0);
  return bytes;
}

Sums sums_of(const std::vector<std::byte>& packed, std::uint64_t n) {
  Sums sums(gemm::num_strips(n));
  const GuardedBuffer guarded(packed);
  const Status s = gemm::strip_sums_host(guarded.span(), sums);
  EXPECT_TRUE(s.ok()) << to_string(s);
  EXPECT_TRUE(gemm::verify_host(guarded.span(), sums).ok());
  return sums;
}

// Three strips, with escapes, and with overflows in the second one: two if there are 300 columns.
constexpr std::uint64_t kN = 36, kK = 300;
Weights varied_weights(std::uint64_t k = kK) {
  Weights w = normal_weights(kN * k, 0.02f, 1500, 3);
  for (std::uint32_t i = 0; i < 90; ++i)
    w[(16 + i % 16) * k + k * 5 / 12 + i / 16] = static_cast<std::uint16_t>(i * 0x0153);
  return w;
}

// As docs/gemm.md has it, word by word.
std::uint64_t sum_by_the_page(const std::vector<std::byte>& packed, std::uint64_t strip) {
  gemm::Header h;
  std::memcpy(&h, packed.data(), sizeof h);
  const bool raw = h.kind == 0;
  const std::uint64_t strips = (h.n + 15) / 16, tiles = (h.k + 127) / 128;
  const std::uint64_t palettes = 256,
                      escapes = palettes + (raw ? 0 : (8 * strips + 255) / 256 * 256);
  const std::uint64_t tiles_at = escapes + (raw ? 0 : (16 * strips * tiles + 255) / 256 * 256);
  const std::uint64_t tile_bytes = raw ? 4096 : 3072;
  const std::uint64_t overflows = tiles_at + strips * tiles * tile_bytes;
  std::uint64_t sum = (strip + 1) * 0x9FB21C651E98DF25ull;
  const auto word_at = [&](std::uint64_t at) {
    std::uint32_t word;
    std::memcpy(&word, packed.data() + at, 4);
    return word;
  };
  const auto add = [&](std::uint64_t at, std::uint64_t num_words, std::uint64_t first) {
    for (std::uint64_t i = 0; i < num_words; ++i) {
      const auto idx = static_cast<std::uint32_t>(first + i);
      sum += std::uint64_t{word_at(at + 4 * i)} * ((idx * 0x9E3779B1u + 0x85EBCA77u) | 1u);
    }
  };
  const std::uint64_t w = tile_bytes / 4;
  add(tiles_at + strip * tiles * tile_bytes, tiles * w, 0);
  if (raw) return sum;
  const std::uint64_t own = escapes + strip * tiles * 16;
  add(own, 4 * tiles, w * tiles);
  add(palettes + 8 * strip, 2, (w + 4) * tiles);
  for (std::uint64_t t = 0; t < tiles; ++t)
    if (word_at(own + 16 * t) == 1u << 31)
      add(overflows + 2048 * std::uint64_t{word_at(own + 16 * t + 4)}, 512,
          (w + 4) * tiles + 4 + 512 * t);
  return sum;
}

TEST(GemmSums, AsThePageSays) {
  for (const Kind kind : {Kind::kFixed, Kind::kRaw}) {
    const auto packed = packed_of(varied_weights(), kN, kK, kind);
    const Sums sums = sums_of(packed, kN);
    ASSERT_EQ(sums.size(), 3u);
    for (std::uint64_t strip = 0; strip < sums.size(); ++strip)
      EXPECT_EQ(sums[strip], sum_by_the_page(packed, strip)) << strip;
  }
}

// Saved checksums must stay valid.
TEST(GemmSums, KnownAnswers) {
  Weights w(20 * 130);
  for (std::size_t i = 0; i < w.size(); ++i)
    w[i] = static_cast<std::uint16_t>(0x3C00 + i * 37 % 0x700);
  EXPECT_EQ(sums_of(packed_of(w, 20, 130, Kind::kFixed), 20),
            (Sums{18442935199023639629ull, 10875842307523266260ull}));
  EXPECT_EQ(sums_of(packed_of(w, 20, 130, Kind::kRaw), 20),
            (Sums{11117021439345270693ull, 1840883185924612078ull}));
}

// Which strip a byte belongs to; nothing for header and padding.
std::vector<int> owners_of(const std::vector<std::byte>& packed, std::uint64_t k, Kind kind) {
  const gemm::Layout layout(kN, k, kind);
  std::vector<int> owners(packed.size(), -1);
  const auto own = [&](std::uint64_t at, std::uint64_t n, std::uint64_t strip) {
    std::fill_n(owners.begin() + static_cast<std::ptrdiff_t>(at), n, static_cast<int>(strip));
  };
  for (std::uint64_t strip = 0; strip < layout.strips; ++strip) {
    const std::uint64_t first = strip * layout.tiles_per_strip;
    own(layout.tiles + first * layout.tile_bytes, layout.tiles_per_strip * layout.tile_bytes,
        strip);
    if (kind == Kind::kRaw) continue;
    own(layout.escapes + first * 16, layout.tiles_per_strip * 16, strip);
    own(layout.palettes + 8 * strip, 8, strip);
  }
  for (std::uint64_t tile = 0;
       kind == Kind::kFixed && tile < layout.strips * layout.tiles_per_strip; ++tile) {
    std::uint32_t words[2];
    std::memcpy(words, packed.data() + layout.escapes + 16 * tile, sizeof words);
    if (words[0] == gemm::kOverflowMark)
      own(layout.overflows + 2048 * std::uint64_t{words[1]}, 2048, tile / layout.tiles_per_strip);
  }
  return owners;
}

TEST(GemmSums, EveryFlippedBitIsFoundInItsStrip) {
  for (const Kind kind : {Kind::kFixed, Kind::kRaw}) {
    auto packed = packed_of(varied_weights(128), kN, 128, kind);  // small: a matter of seconds
    const Sums sums = sums_of(packed, kN);
    const std::vector<int> owners = owners_of(packed, 128, kind);
    EXPECT_NE(owners.back(), -1);
    for (std::size_t byte = 0; byte < packed.size(); ++byte)
      for (int bit = 0; bit < 8; ++bit) {
        packed[byte] ^= static_cast<std::byte>(1 << bit);
        const Status s = gemm::verify_host(packed, sums);
        packed[byte] ^= static_cast<std::byte>(1 << bit);
        if (owners[byte] >= 0) {
          ASSERT_EQ(s.code, Code::kCorrupt) << "byte " << byte << ", bit " << bit;
          ASSERT_EQ(s.block, static_cast<std::uint64_t>(owners[byte])) << "byte " << byte;
        } else if (byte < 64) {
          ASSERT_FALSE(s.ok()) << "byte " << byte << " of the header";
        }
      }
  }
}

TEST(GemmSums, SwapsAreFound) {
  auto packed = packed_of(varied_weights(), kN, kK, Kind::kFixed);
  Sums sums = sums_of(packed, kN);
  const gemm::Layout layout(kN, kK, Kind::kFixed);
  const auto expect_found = [&](std::uint64_t a, std::uint64_t b, std::uint64_t n,
                                std::uint64_t strip) {
    auto swapped = packed;
    const auto at = swapped.begin();
    std::swap_ranges(at + static_cast<std::ptrdiff_t>(a), at + static_cast<std::ptrdiff_t>(a + n),
                     at + static_cast<std::ptrdiff_t>(b));
    ASSERT_NE(swapped, packed);
    const Status s = gemm::verify_host(swapped, sums);
    EXPECT_EQ(s.code, Code::kCorrupt) << a << " and " << b << ": " << n;
    EXPECT_EQ(s.block, strip);
  };
  const std::uint64_t strip_bytes = layout.tiles_per_strip * layout.tile_bytes;
  expect_found(layout.tiles, layout.tiles + strip_bytes, strip_bytes, 0);
  expect_found(layout.tiles + strip_bytes, layout.tiles + 2 * strip_bytes, strip_bytes, 1);
  for (std::uint64_t n = 4; n <= layout.tile_bytes; n *= 2)
    for (std::uint64_t far = n; far + n <= layout.tile_bytes; far += n)
      expect_found(layout.tiles + strip_bytes, layout.tiles + strip_bytes + far, n, 1);
  expect_found(layout.palettes, layout.palettes + 8, 8, 0);
  ASSERT_GE(packed.size(), layout.overflows + 2 * gemm::kOverflowBytes);
  expect_found(layout.overflows, layout.overflows + gemm::kOverflowBytes, gemm::kOverflowBytes, 1);
  std::swap(sums[0], sums[2]);
  EXPECT_EQ(gemm::verify_host(packed, sums).block, 0u);
}

// Two equal strips differ in their checksums: a file that exchanges them is not the same file.
TEST(GemmSums, EqualStripsHaveDifferentSums) {
  const Weights row(32 * 128, 0x3C00);
  const Sums sums = sums_of(packed_of(row, 32, 128, Kind::kFixed), 32);
  EXPECT_NE(sums[0], sums[1]);
}

TEST(GemmSums, BadArgumentsAreRefused) {
  const auto packed = packed_of(varied_weights(), kN, kK, Kind::kFixed);
  Sums sums = sums_of(packed, kN), more(4), none;
  EXPECT_EQ(gemm::strip_sums_host(packed, more).code, Code::kUsage);
  EXPECT_EQ(gemm::verify_host(packed, none).code, Code::kUsage);
  EXPECT_EQ(gemm::verify_host(std::span(packed).first(packed.size() - 1), sums).code,
            Code::kCorrupt);
  EXPECT_EQ(gemm::verify_host(std::span(packed).first(100), sums).code, Code::kCorrupt);
  const Status s = gemm::verify_host(packed, Sums{sums[0], sums[1], 7});
  EXPECT_EQ(to_string(s),
            "corrupt: block 2: 16 rows, from row 16 x block on, do not match their checksum");
}

TEST(GemmSums, TheCAbiGivesTheSame) {
  auto packed = packed_of(varied_weights(), kN, kK, Kind::kFixed);
  Sums sums(snug_gemm_num_strips(kN));
  ASSERT_EQ(
      snug_gemm_strip_sums_host(packed.data(), packed.size(), sums.data(), sums.size(), nullptr),
      SNUG_OK);
  EXPECT_EQ(sums, sums_of(packed, kN));
  const auto verify = [&](const std::uint64_t* list, snug_status* status) {
    return snug_gemm_verify_host(packed.data(), packed.size(), list, sums.size(), status);
  };
  EXPECT_EQ(verify(sums.data(), nullptr), SNUG_OK);
  EXPECT_EQ(verify(nullptr, nullptr), SNUG_USAGE);
  EXPECT_EQ(snug_gemm_strip_sums_host(nullptr, 1000, sums.data(), sums.size(), nullptr),
            SNUG_USAGE);
  packed[gemm::Layout(kN, kK, Kind::kFixed).palettes + 8] ^= std::byte{1};
  snug_status status;
  EXPECT_EQ(verify(sums.data(), &status), SNUG_CORRUPT);
  EXPECT_EQ(status.block, 1u);
}

}  // namespace
}  // namespace snug::test
