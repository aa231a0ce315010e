// A delta turns base into next, exactly, in every way there is to apply it.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "support/checks.h"
#include "support/delta_versions.h"
#include "support/guarded_buffer.h"
#include "support/sanitizer.h"

namespace snug::test {
namespace {

// Everything that must hold for one pair, with buffers that end where memory ends.
void check(const Versions& versions, const delta::Options& options) {
  const GuardedBuffer base(view(versions.base)), next(view(versions.next));
  GuardedBuffer dst(delta::encode_bound(next.size(), options));
  const auto num_bytes = delta::encode(base.span(), next.span(), dst.span(), options);
  ASSERT_TRUE(num_bytes.ok()) << to_string(num_bytes.status());
  ASSERT_TRUE(dst.front_intact());
  const GuardedBuffer delta(dst.span().first(*num_bytes));

  const auto info = delta::inspect(delta.span());
  ASSERT_TRUE(info.ok()) << to_string(info.status());
  EXPECT_EQ(info->delta_bytes, *num_bytes);
  EXPECT_EQ(info->raw_bytes, next.size());
  EXPECT_EQ(info->dtype, options.dtype);
  EXPECT_EQ(info->base_hash, delta::tensor_hash(base.span()));
  EXPECT_EQ(info->target_hash, delta::tensor_hash(next.span(), 3));

  GuardedBuffer out(next.size());
  const auto applied = delta::apply(delta.span(), base.span(), out.span());
  ASSERT_TRUE(applied.ok()) << to_string(applied.status());
  EXPECT_EQ(*applied, next.size());
  EXPECT_TRUE(out.front_intact());
  ASSERT_TRUE(std::equal(out.span().begin(), out.span().end(), next.span().begin()));

  Bytes undo(delta::encode_bound(next.size(), options));
  const auto undo_bytes = delta::invert(delta.span(), base.span(), undo);
  ASSERT_TRUE(undo_bytes.ok()) << to_string(undo_bytes.status());

  GuardedBuffer tensor(base.span());
  if (info->needs_base && next.size() > 0) {
    EXPECT_EQ(delta::apply(delta.span(), tensor.span(), tensor.span()).status().code, Code::kUsage);
  }
  const Status changed = delta::apply_in_place(delta.span(), tensor.span(), 2);
  ASSERT_TRUE(changed.ok()) << to_string(changed);
  EXPECT_TRUE(std::equal(tensor.span().begin(), tensor.span().end(), next.span().begin()));
  const Status back = delta::apply_in_place(view(undo).first(*undo_bytes), tensor.span());
  ASSERT_TRUE(back.ok()) << to_string(back);
  EXPECT_TRUE(std::equal(tensor.span().begin(), tensor.span().end(), base.span().begin()));
}

class DeltaRoundTrip : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(All, DeltaRoundTrip, testing::ValuesIn(all_dtypes()),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

TEST_P(DeltaRoundTrip, AllChangesAndBlockSizes) {
  for (const Change& change : changes())
    for (const int log2_block : {12, 14, 16})
      for (const bool allow_frame : {false, true}) {
        if (kSanitized && log2_block != (allow_frame ? 12 : 14)) continue;
        SCOPED_TRACE(std::string(change.name) + " " + std::to_string(log2_block));
        const std::size_t num_elems = (std::size_t{1} << log2_block) * (kSanitized ? 1 : 2) + 77;
        check(make_versions(change, GetParam(), num_elems, elem_bytes(GetParam()) - 1),
              {GetParam(), log2_block, allow_frame, 1});
      }
}

TEST_P(DeltaRoundTrip, AllSizesAroundGroups) {
  for (const Change& change : changes())
    for (const std::size_t num_elems :
         {0, 1, 2, 31, 63, 64, 65, 127, 513, 1000, 4095, 4096, 4097}) {
      if (kSanitized && num_elems > 1000 && num_elems % 2 == 0) continue;
      SCOPED_TRACE(std::string(change.name) + " " + std::to_string(num_elems));
      for (const std::size_t num_extra : {std::size_t{0}, elem_bytes(GetParam()) / 2})
        check(make_versions(change, GetParam(), num_elems, num_extra), {GetParam(), 12, true, 1});
    }
}

TEST_P(DeltaRoundTrip, ThreadsWriteTheSameBytes) {
  const Versions versions = make_versions(change_named("some_small"), GetParam(), 9 * 4096 + 5,
                                          elem_bytes(GetParam()) / 2);
  const Bytes one = encode_delta(versions, {GetParam(), 12, true, 1});
  for (const int num_threads : {2, 3, 8})
    EXPECT_EQ(encode_delta(versions, {GetParam(), 12, true, num_threads}), one);
  for (const int num_threads : {1, 2, 5}) {
    Bytes out(versions.next.size());
    ASSERT_TRUE(delta::apply(view(one), view(versions.base), out, num_threads).ok());
    EXPECT_EQ(out, versions.next);
  }
}

// Differences of every magnitude, and every pattern as base.
TEST(DeltaValues, AllPairsOfPatterns) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kI16}) {
    for (const std::uint32_t difference :
         {1u, 2u, 3u, 0x7FFEu, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFEu}) {
      Versions versions{Bytes(65536 * 2), Bytes(65536 * 2)};
      for (std::uint32_t i = 0; i < 65536; ++i) {
        // All patterns in some order, every other one changed.
        const auto from = static_cast<std::uint16_t>(i * 40503u);
        const auto to = static_cast<std::uint16_t>(i % 2 == 0 ? from + difference : from);
        std::memcpy(versions.base.data() + 2 * i, &from, 2);
        std::memcpy(versions.next.data() + 2 * i, &to, 2);
      }
      check(versions, {dtype, 16, false, 1});
    }
  }
}

TEST(DeltaFull, AppliesToAnyBase) {
  const Versions versions = make_versions(change_named("everything"), DType::kBF16, 5000, 1);
  Bytes delta(delta::encode_bound(versions.next.size()));
  const auto num_bytes = delta::encode_full(view(versions.next), delta);
  ASSERT_TRUE(num_bytes.ok());
  delta.resize(*num_bytes);
  EXPECT_FALSE(delta::inspect(view(delta))->needs_base);
  Bytes out(versions.next.size());
  EXPECT_TRUE(delta::apply(view(delta), {}, out).ok());
  EXPECT_EQ(out, versions.next);
  Bytes tensor = versions.base;
  EXPECT_TRUE(delta::apply_in_place(view(delta), tensor).ok());
  EXPECT_EQ(tensor, versions.next);
}

TEST(DeltaFull, IsChosenWhereItIsSmaller) {
  Versions versions = make_versions(change_named("nothing"), DType::kBF16, 50000);
  std::fill(versions.next.begin(), versions.next.end(), std::byte{7});
  const Bytes framed = encode_delta(versions, {DType::kBF16, 0, true, 1});
  const Bytes blocks = encode_delta(versions, {DType::kBF16, 0, false, 1});
  EXPECT_FALSE(delta::inspect(view(framed))->needs_base);
  EXPECT_TRUE(delta::inspect(view(blocks))->needs_base);
  EXPECT_LT(framed.size(), blocks.size() / 10);
}

// The example of docs/delta.md: these bytes never change.
TEST(DeltaFormat, Example) {
  constexpr unsigned char kExample[] = {
      0x53, 0x4e, 0x47, 0x44, 0x01, 0x01, 0x10, 0x00, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00,
      0x00, 0x00, 0x54, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x09, 0x76, 0xe9, 0x41,
      0xcb, 0x84, 0x89, 0x6c, 0x51, 0xaa, 0xb3, 0x63, 0xe3, 0x4d, 0x27, 0x63, 0x01, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
      0xfb, 0x4a, 0x57, 0xe9, 0x00, 0x00, 0x00, 0x00, 0x15, 0x00, 0x00, 0x00, 0x01, 0x7f,
      0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00};
  Versions versions{Bytes(16), Bytes(16)};
  for (std::size_t i = 0; i < 16; ++i)
    versions.base[i] = versions.next[i] = static_cast<std::byte>(i % 2 == 0 ? 0x80 : 0x3F);
  versions.next[10] = std::byte{0x7F};
  const Bytes delta = encode_delta(versions, {});
  ASSERT_EQ(delta.size(), sizeof kExample);
  EXPECT_EQ(std::memcmp(delta.data(), kExample, sizeof kExample), 0);
}

// A step of training: the exponent of the base says where changes are.
TEST(DeltaSize, TrainingStepsAreOneToTwoPercent) {
  const std::size_t num_elems = std::size_t{1} << 17;
  const Versions small = training_step(num_elems, 8e-7), large = training_step(num_elems, 2.4e-6);
  const auto size = [&](const Versions& v, int log2_block) {
    return static_cast<double>(encode_delta(v, {DType::kBF16, log2_block, true, 1}).size()) /
           static_cast<double>(v.next.size());
  };
  const auto changed = [&](const Versions& v) {
    const Bytes delta = encode_delta(v, {});
    return static_cast<double>(delta::inspect(view(delta))->num_changed) /
           static_cast<double>(num_elems);
  };
  EXPECT_NEAR(changed(small), 0.024, 0.008);
  EXPECT_NEAR(changed(large), 0.06, 0.02);
  EXPECT_LT(size(small, 16), 0.012);
  EXPECT_LT(size(small, 12), 0.015);
  EXPECT_LT(size(large, 16), 0.025);
  EXPECT_LT(size(large, 12), 0.030);
}

}  // namespace
}  // namespace snug::test
