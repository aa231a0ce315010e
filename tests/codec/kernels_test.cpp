// Every kernel table against the scalar one, function by function, with buffers
// that end where memory ends. rans_encode and rans_decode: rans_kernels_test.cpp.
#include "codec/kernels.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "codec/sections.h"
#include "support/guarded_buffer.h"
#include "support/prng.h"

namespace snug::test {
namespace {

using codec::Kernels;
using codec::kScalarKernels;
using codec::kSlackBytes;

class KernelTable : public testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& table() const { return *GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(All, KernelTable,
                         testing::ValuesIn(codec::all_kernels().begin(),
                                           codec::all_kernels().end()),
                         [](const auto& info) { return std::string(info.param->name); });

// Every small size, and the neighbours of all borders a kernel may care for.
std::vector<std::size_t> sizes() {
  std::vector<std::size_t> sizes;
  for (std::size_t n = 0; n <= 300; ++n) sizes.push_back(n);
  for (const std::size_t border : {512, 1024, 4096, 8192, 131072})
    for (const int delta : {-65, -33, -1, 0, 1, 31, 63})
      if (border + static_cast<std::size_t>(delta) <= 131072)
        sizes.push_back(border + static_cast<std::size_t>(delta));
  return sizes;
}

void fill_random(GuardedBuffer& buffer, Prng& prng) {
  for (std::size_t i = 0; i < buffer.size(); ++i) buffer.data()[i] = prng.byte();
}

// Bytes as exponents are: mostly a few neighbours, one in `rare` anything.
void fill_skewed(GuardedBuffer& buffer, std::size_t rare, Prng& prng) {
  for (std::size_t i = 0; i < buffer.size(); ++i)
    buffer.data()[i] =
        prng.one_in(rare) ? prng.byte() : static_cast<std::uint8_t>(118 + prng.below(6));
}

testing::AssertionResult same(const GuardedBuffer& a, const GuardedBuffer& b, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i)
    if (a.data()[i] != b.data()[i])
      return testing::AssertionFailure() << "byte " << i << " of " << n << ": " << int{a.data()[i]}
                                         << " and " << int{b.data()[i]};
  return testing::AssertionSuccess();
}

TEST_P(KernelTable, ChecksumTerms) {
  Prng prng(1);
  for (const std::size_t n : sizes()) {
    GuardedBuffer bytes(n / 16 * 16);
    fill_random(bytes, prng);
    EXPECT_EQ(table().checksum_terms(bytes.data(), bytes.size()),
              kScalarKernels.checksum_terms(bytes.data(), bytes.size()))
        << n;
  }
  GuardedBuffer ones(1 << 20);  // the largest words, so that sums carry
  std::memset(ones.data(), 0xFF, ones.size());
  EXPECT_EQ(table().checksum_terms(ones.data(), ones.size()),
            kScalarKernels.checksum_terms(ones.data(), ones.size()));
}

TEST_P(KernelTable, CopyOut) {
  Prng prng(7);
  for (const std::size_t n : sizes()) {
    GuardedBuffer src(n / 16 * 16), dst(n / 16 * 16);
    fill_random(src, prng);
    ASSERT_EQ(table().copy_out(src.data(), src.size(), dst.data(), {}),
              kScalarKernels.checksum_terms(src.data(), src.size()));
    ASSERT_TRUE(same(dst, src, src.size())) << n;
    EXPECT_TRUE(dst.front_intact());
  }
}

TEST_P(KernelTable, SplitAndMerge) {
  Prng prng(2);
  for (const std::size_t n : sizes())
    for (const bool rotate : {false, true}) {
      GuardedBuffer src(2 * n), lo(n), hi(n), lo_ref(n), hi_ref(n), merged(2 * n);
      fill_random(src, prng);
      kScalarKernels.split2(src.data(), n, rotate, lo_ref.data(), hi_ref.data());
      table().split2(src.data(), n, rotate, lo.data(), hi.data());
      ASSERT_TRUE(same(lo, lo_ref, n)) << n;
      ASSERT_TRUE(same(hi, hi_ref, n)) << n;
      table().merge2(lo.data(), hi.data(), n, rotate, merged.data());
      ASSERT_TRUE(same(merged, src, 2 * n)) << n;
      EXPECT_TRUE(lo.front_intact() && hi.front_intact() && merged.front_intact());
    }
}

struct PaletteCase {
  std::uint8_t lut[256];
  std::uint8_t values[16] = {};
  std::uint8_t escape;
};

PaletteCase make_palette_case(std::uint8_t size, Prng& prng) {
  PaletteCase c;
  c.escape = size;
  std::memset(c.lut, size, sizeof c.lut);
  for (std::uint8_t i = 0; i < size; ++i) {
    c.values[i] = static_cast<std::uint8_t>(prng.one_in(4) ? prng.byte() : 116 + i);
    c.lut[c.values[i]] = i;
  }
  return c;
}

TEST_P(KernelTable, MapAndUnmapPalette) {
  Prng prng(3);
  for (const std::size_t n : sizes())
    for (const std::size_t rare : {std::size_t{1}, std::size_t{20}, std::size_t{1000000}}) {
      const PaletteCase c = make_palette_case(static_cast<std::uint8_t>(1 + prng.below(15)), prng);
      GuardedBuffer plane(n), nibbles((n + 1) / 2), nibbles_ref((n + 1) / 2);
      GuardedBuffer escapes(n + kSlackBytes), escapes_ref(n + kSlackBytes);
      fill_skewed(plane, rare, prng);
      const std::size_t count = kScalarKernels.map_palette(plane.data(), n, c.lut, c.escape,
                                                           nibbles_ref.data(), escapes_ref.data());
      ASSERT_EQ(
          table().map_palette(plane.data(), n, c.lut, c.escape, nibbles.data(), escapes.data()),
          count);
      ASSERT_TRUE(same(nibbles, nibbles_ref, nibbles.size())) << n;
      ASSERT_TRUE(same(escapes, escapes_ref, count)) << n;

      GuardedBuffer exact_escapes(std::span<const std::byte>(escapes.span()).first(count));
      GuardedBuffer restored(n);
      ASSERT_EQ(table().unmap_palette(nibbles.data(), n, c.values, c.escape, exact_escapes.data(),
                                      count, restored.data()),
                count);
      ASSERT_TRUE(same(restored, plane, n)) << n;
      EXPECT_TRUE(nibbles.front_intact() && escapes.front_intact() && restored.front_intact());
    }
}

// A corrupt block may have fewer escapes than its nibbles ask for.
TEST_P(KernelTable, UnmapPaletteWithWrongEscapeCounts) {
  Prng prng(4);
  for (const std::size_t n : sizes()) {
    const PaletteCase c = make_palette_case(static_cast<std::uint8_t>(prng.below(16)), prng);
    GuardedBuffer nibbles((n + 1) / 2), plane(n), plane_ref(n);
    fill_random(nibbles, prng);
    GuardedBuffer escapes(prng.below(n / 4 + 1));
    fill_random(escapes, prng);
    const std::size_t asked = kScalarKernels.unmap_palette(
        nibbles.data(), n, c.values, c.escape, escapes.data(), escapes.size(), plane_ref.data());
    const std::size_t asked_here = table().unmap_palette(
        nibbles.data(), n, c.values, c.escape, escapes.data(), escapes.size(), plane.data());
    ASSERT_EQ(asked_here == escapes.size(), asked == escapes.size()) << n;
    // Where the counts match or there are too many escapes, values count.
    if (asked <= escapes.size()) {
      EXPECT_EQ(asked_here, asked);
      ASSERT_TRUE(same(plane, plane_ref, n)) << n;
    } else {
      EXPECT_GT(asked_here, escapes.size());
    }
  }
}

TEST_P(KernelTable, FixedPackAndUnpack) {
  Prng prng(5);
  for (const std::size_t n : sizes())
    for (const std::size_t rare : {std::size_t{1}, std::size_t{50}, std::size_t{1000000}}) {
      std::uint8_t palette[8] = {}, lut[128];
      std::memset(lut, 7, sizeof lut);
      for (std::uint8_t i = 0; i < 7; ++i) {
        palette[i] = static_cast<std::uint8_t>(57 + i);
        lut[palette[i]] = i;
      }
      const std::size_t nibble_bytes = codec::fixed_nibble_bytes(n);
      GuardedBuffer high(n), nibbles(nibble_bytes), nibbles_ref(nibble_bytes);
      for (std::size_t i = 0; i < n; ++i)
        high.data()[i] = prng.one_in(rare)
                             ? prng.byte()
                             : static_cast<std::uint8_t>(57 + prng.below(7) + 128 * prng.below(2));
      // No room, just enough, some, plenty.
      for (const std::size_t room : {std::size_t{0}, std::size_t{1}, n / 7, n}) {
        GuardedBuffer escapes(4 * room), escapes_ref(4 * room);
        const std::size_t count = kScalarKernels.fixed_pack(high.data(), n, lut, nibbles_ref.data(),
                                                            escapes_ref.data(), room);
        ASSERT_EQ(table().fixed_pack(high.data(), n, lut, nibbles.data(), escapes.data(), room),
                  count);
        ASSERT_TRUE(same(nibbles, nibbles_ref, nibble_bytes)) << n;
        ASSERT_TRUE(same(escapes, escapes_ref, 4 * (count < room ? count : room))) << n;
        EXPECT_TRUE(nibbles.front_intact() && escapes.front_intact());
      }
      GuardedBuffer unpacked(n), unpacked_ref(n);
      kScalarKernels.fixed_unpack(nibbles.data(), n, palette, unpacked_ref.data());
      table().fixed_unpack(nibbles.data(), n, palette, unpacked.data());
      ASSERT_TRUE(same(unpacked, unpacked_ref, n)) << n;
      EXPECT_TRUE(unpacked.front_intact());
    }
}

TEST_P(KernelTable, FixedUnpackOfAnyNibbles) {
  Prng prng(6);
  for (const std::size_t n : sizes()) {
    std::uint8_t palette[8];
    for (auto& value : palette) value = prng.byte() & 127;
    GuardedBuffer nibbles(codec::fixed_nibble_bytes(n)), high(n), high_ref(n);
    fill_random(nibbles, prng);
    kScalarKernels.fixed_unpack(nibbles.data(), n, palette, high_ref.data());
    table().fixed_unpack(nibbles.data(), n, palette, high.data());
    ASSERT_TRUE(same(high, high_ref, n)) << n;
  }
}

}  // namespace
}  // namespace snug::test
