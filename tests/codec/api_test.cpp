// Promises of snug/codec.h about sizes, arguments and what is chosen.
#include <gtest/gtest.h>

#include <cstring>

#include "support/checks.h"
#include "support/guarded_buffer.h"
#include "support/inputs.h"

namespace snug::test {
namespace {

TEST(EncodeBound, StaysWithinItsPromise) {
  for (const DType dtype : all_dtypes())
    for (const int log2_block : {0, 12, 13, 17})
      for (const std::size_t size :
           {0ul, 1ul, 100ul, 8192ul, 1000001ul, (1ul << 30) + 5, 1ul << 40}) {
        const EncodeOptions options{dtype, Codec::kEntropy, log2_block, 1};
        const std::size_t bound = encode_bound(size, options);
        EXPECT_GE(bound, size + 64);
        EXPECT_LE(bound, size + size / 500 + 128) << dtype_name(dtype) << " " << size;
        if (log2_block == 0) {
          EXPECT_LE(bound, size + size / 8000 + 128) << dtype_name(dtype) << " " << size;
        }
      }
}

TEST(EncodeBound, IsReachedByNoise) {
  const Bytes raw = make_input(input_named("random_bits"), DType::kBF16, 50000);
  const EncodeOptions options{DType::kBF16, Codec::kEntropy, 12, 1};
  EXPECT_EQ(encode_or_fail(view(raw), options).size(), encode_bound(raw.size(), options));
}

TEST(Encode, RefusesADestinationThatIsTooSmall) {
  for (const DType dtype : all_dtypes())
    for (const Codec codec : all_codecs())
      for (const char* name : {"gaussian", "random_bits", "zeros"}) {
        const Bytes raw = make_input(input_named(name), dtype, 9000);
        EncodeOptions options{dtype, codec, 12, 1};
        const std::size_t needed = encode_or_fail(view(raw), options).size();
        for (options.num_threads = 1; options.num_threads <= 2; ++options.num_threads)
          for (const std::size_t room :
               {std::size_t{0}, std::size_t{63}, std::size_t{64}, needed / 2, needed - 1}) {
            GuardedBuffer dst(room);
            const auto size = encode(view(raw), dst.span(), options);
            ASSERT_EQ(size.status().code, Code::kDstTooSmall)
                << dtype_name(dtype) << " " << name << " " << room;
            EXPECT_EQ(size.status().found, room);
            EXPECT_EQ(size.status().expected, encode_bound(raw.size(), options));
          }
      }
}

TEST(Encode, BetweenNeededAndBoundEitherWorksOrSaysSo) {
  const Bytes raw = make_input(input_named("gaussian"), DType::kBF16, 9000);
  const EncodeOptions options{DType::kBF16, Codec::kEntropy, 12, 1};
  const Bytes expected = encode_or_fail(view(raw), options);
  for (std::size_t room = expected.size(); room < encode_bound(raw.size(), options); room += 16) {
    GuardedBuffer dst(room);
    const auto size = encode(view(raw), dst.span(), options);
    if (!size.ok()) {
      EXPECT_EQ(size.status().code, Code::kDstTooSmall);
    } else {
      ASSERT_EQ(*size, expected.size());
      EXPECT_EQ(std::memcmp(dst.data(), expected.data(), *size), 0);
    }
  }
}

TEST(Encode, RefusesOptionsThatMeanNothing) {
  const Bytes raw(100);
  Bytes dst(1000);
  const auto code_of = [&](const EncodeOptions& options) {
    return encode(view(raw), dst, options).status().code;
  };
  EXPECT_EQ(code_of({static_cast<DType>(13), Codec::kEntropy, 0, 1}), Code::kUsage);
  EXPECT_EQ(code_of({static_cast<DType>(255), Codec::kEntropy, 0, 1}), Code::kUsage);
  EXPECT_EQ(code_of({DType::kBF16, static_cast<Codec>(4), 0, 1}), Code::kUsage);
  for (const int log2_block : {-1, 1, 11, 18, 1000})
    EXPECT_EQ(code_of({DType::kBF16, Codec::kEntropy, log2_block, 1}), Code::kUsage) << log2_block;
  EXPECT_EQ(encode_bound(100, {static_cast<DType>(13), Codec::kEntropy, 0, 1}), 0u);
  EXPECT_EQ(encode_bound(100, {DType::kBF16, Codec::kEntropy, 18, 1}), 0u);
}

TEST(Workspace, TooSmallIsSaid) {
  const Bytes raw = make_input(input_named("gaussian"), DType::kBF16, 1000);
  const EncodeOptions options{DType::kBF16, Codec::kEntropy, 12, 1};
  Bytes dst(encode_bound(raw.size(), options)), small(100);
  EXPECT_EQ(encode(view(raw), dst, options, small).status().code, Code::kUsage);
  const Bytes frame = encode_or_fail(view(raw), options);
  Bytes restored(raw.size());
  EXPECT_EQ(decode(view(frame), restored, small).status().code, Code::kUsage);
}

TEST(Workspace, AnyAlignmentAndContentGivesTheSameBytes) {
  const Bytes raw = make_input(input_named("outliers"), DType::kF32, 10000);
  const EncodeOptions options{DType::kF32, Codec::kEntropy, 12, 1};
  const Bytes expected = encode_or_fail(view(raw), options);
  for (const int fill : {0x00, 0xFF, 0x5A})
    for (const std::size_t shift : {0, 1, 63}) {
      Bytes workspace(workspace_bytes() + shift, static_cast<std::byte>(fill));
      const auto space = std::span(workspace).subspan(shift);
      Bytes frame(encode_bound(raw.size(), options), static_cast<std::byte>(fill));
      const auto size = encode(view(raw), frame, options, space);
      ASSERT_TRUE(size.ok());
      frame.resize(*size);
      EXPECT_EQ(frame, expected);
      Bytes restored(raw.size());
      ASSERT_TRUE(decode(view(frame), restored, space).ok());
      EXPECT_EQ(restored, raw);
    }
}

TEST(Decode, RefusesADestinationThatIsTooSmall) {
  for (const DType dtype : all_dtypes()) {
    Bytes raw = make_input(input_named("gaussian"), dtype, 5000);
    raw.resize(raw.size() - elem_bytes(dtype) / 2);
    const Bytes frame = encode_or_fail(view(raw), {dtype, Codec::kEntropy, 12, 1});
    for (const std::size_t room : {std::size_t{0}, raw.size() / 2, raw.size() - 1}) {
      GuardedBuffer dst(room);
      const auto size = decode(view(frame), dst.span());
      ASSERT_EQ(size.status().code, Code::kDstTooSmall);
      EXPECT_EQ(size.status().expected, raw.size());
    }
    GuardedBuffer roomy(raw.size() + 100);
    const auto size = decode(view(frame), roomy.span());
    ASSERT_TRUE(size.ok());
    EXPECT_EQ(*size, raw.size());
  }
}

TEST(DecodeRange, RefusesWhatIsOutside) {
  const Bytes raw = make_input(input_named("gaussian"), DType::kBF16, 5000);
  const Bytes frame = encode_or_fail(view(raw), {DType::kBF16, Codec::kEntropy, 12, 1});
  Bytes dst(raw.size());
  const auto code_of = [&](std::uint64_t first, std::uint64_t count, std::size_t room) {
    return decode_range(view(frame), first, count, std::span(dst).first(room)).status().code;
  };
  EXPECT_EQ(code_of(0, 5001, dst.size()), Code::kUsage);
  EXPECT_EQ(code_of(5001, 0, dst.size()), Code::kUsage);
  EXPECT_EQ(code_of(4999, 2, dst.size()), Code::kUsage);
  EXPECT_EQ(code_of(1, ~0ull, dst.size()), Code::kUsage);
  EXPECT_EQ(code_of(~0ull, 1, dst.size()), Code::kUsage);
  EXPECT_EQ(code_of(~0ull, ~0ull, dst.size()), Code::kUsage);
  EXPECT_EQ(code_of(0, 10, 19), Code::kDstTooSmall);
  EXPECT_EQ(code_of(0, 10, 20), Code::kOk);
}

TEST(DecodeRange, ReadsOnlyTheBlocksItNeeds) {
  const Bytes raw = make_input(input_named("gaussian"), DType::kBF16, 3 * 4096);
  Bytes frame = encode_or_fail(view(raw), {DType::kBF16, Codec::kEntropy, 12, 1});
  frame.back() ^= std::byte{1};  // the last block is damaged
  Bytes dst(2 * 8192);
  ASSERT_TRUE(decode_range(view(frame), 0, 8192, dst).ok());
  EXPECT_EQ(std::memcmp(dst.data(), raw.data(), dst.size()), 0);
  EXPECT_EQ(decode_range(view(frame), 8192, 1, dst).status().code, Code::kCorrupt);
  EXPECT_EQ(decode_range(view(frame), 8192, 1, dst).status().block, 2u);
}

// Damage behind the frame is not the frame's business.
TEST(Decode, IgnoresWhatFollowsTheFrame) {
  const Bytes raw = make_input(input_named("gaussian"), DType::kBF16, 5000);
  Bytes frame = encode_or_fail(view(raw), {DType::kBF16, Codec::kEntropy, 12, 1});
  frame.resize(frame.size() + 100, std::byte{0xEE});
  Bytes restored(raw.size());
  ASSERT_TRUE(decode(view(frame), restored).ok());
  EXPECT_EQ(restored, raw);
}

TEST(Simd, TargetsEndWithScalarAndContainTheOneInUse) {
  const auto targets = simd_targets();
  ASSERT_FALSE(targets.empty());
  EXPECT_STREQ(targets.back(), "scalar");
  bool found = false;
  for (const char* target : targets) found |= std::strcmp(target, simd_target()) == 0;
  EXPECT_TRUE(found) << simd_target();
}

}  // namespace
}  // namespace snug::test
