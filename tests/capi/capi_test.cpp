// The C ABI: errors, texts, and that it says the same as the C++ API.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "snug/codec.h"
#include "snug/snug.h"
#include "snug/snug_gpu.h"
#include "support/checks.h"
#include "support/inputs.h"

namespace snug::test {
namespace {

std::string text_of(const snug_status& status) {
  std::string text(snug_status_text(&status, nullptr, 0), '\0');
  EXPECT_EQ(snug_status_text(&status, text.data(), text.size() + 1), text.size());
  return text;
}

TEST(CApi, LayoutIsFixed) {
  static_assert(sizeof(snug_status) == 512 && offsetof(snug_status, what) == 8 &&
                offsetof(snug_status, line) == 48);
  static_assert(sizeof(snug_encode_options) == 16);
  static_assert(sizeof(snug_frame_info) == 40 && offsetof(snug_frame_info, raw_bytes) == 8);
  static_assert(sizeof(snug_frame_stats) == 64);
}

TEST(CApi, SizesOfStructsAreKnownByName) {
  EXPECT_EQ(snug_struct_bytes("snug_status"), sizeof(snug_status));
  EXPECT_EQ(snug_struct_bytes("snug_gemm_plan"), sizeof(snug_gemm_plan));
  EXPECT_EQ(snug_struct_bytes("snug_gemm"), 0u);
  EXPECT_EQ(snug_struct_bytes(nullptr), 0u);
}

TEST(CApi, WritesTheSameFramesAsTheCppApi) {
  for (const DType dtype : all_dtypes())
    for (const Codec codec : all_codecs()) {
      const Bytes raw = make_input(input_named("outliers"), dtype, 9001);
      const Bytes expected = encode_or_fail(view(raw), {dtype, codec, 13, 1});
      const snug_encode_options options{static_cast<int32_t>(dtype), static_cast<int32_t>(codec),
                                        13, 2};
      Bytes frame(snug_encode_bound_bytes(raw.size(), &options));
      size_t size = 0;
      ASSERT_EQ(
          snug_encode(raw.data(), raw.size(), frame.data(), frame.size(), &options, &size, nullptr),
          SNUG_OK);
      frame.resize(size);
      EXPECT_EQ(frame, expected);
    }
}

TEST(CApi, NamesAndWidthsAreThoseOfTheCppApi) {
  for (int i = -2; i < 300; ++i) {
    const bool known = i >= 0 && i < kNumDTypes;
    EXPECT_STREQ(snug_dtype_name(i), known ? dtype_name(static_cast<DType>(i)) : "unknown");
    EXPECT_EQ(snug_elem_bytes(i), known ? elem_bytes(static_cast<DType>(i)) : 0);
    EXPECT_STREQ(snug_codec_name(i),
                 i >= 0 && i < kNumCodecs ? codec_name(static_cast<Codec>(i)) : "unknown");
    EXPECT_STREQ(snug_code_name(i), code_name(static_cast<Code>(i)));
  }
}

TEST(CApi, ErrorsCarryPlaceAndText) {
  const Bytes raw = make_input(input_named("gaussian"), DType::kBF16, 9000);
  Bytes frame = encode_or_fail(view(raw), {DType::kBF16, Codec::kEntropy, 12, 1});
  Bytes dst(raw.size());
  snug_status status;

  frame.back() ^= std::byte{1};
  EXPECT_EQ(snug_verify(frame.data(), frame.size(), &status), SNUG_CORRUPT);
  EXPECT_EQ(status.code, SNUG_CORRUPT);
  EXPECT_EQ(status.block, 2u);
  EXPECT_EQ(text_of(status), to_string(verify(view(frame))));
  EXPECT_EQ(snug_decode(frame.data(), frame.size(), dst.data(), dst.size(), 1, nullptr, &status),
            SNUG_CORRUPT);
  EXPECT_EQ(snug_decode(frame.data(), frame.size(), dst.data(), 10, 1, nullptr, &status),
            SNUG_DST_TOO_SMALL);
  EXPECT_EQ(status.found, 10u);
  EXPECT_EQ(status.block, SNUG_NOWHERE);
  frame[4] = std::byte{9};
  EXPECT_EQ(snug_inspect(frame.data(), frame.size(), nullptr, &status), SNUG_UNSUPPORTED_VERSION);
  frame[0] = std::byte{0};
  EXPECT_EQ(snug_inspect(frame.data(), frame.size(), nullptr, &status), SNUG_BAD_MAGIC);
}

TEST(CApi, ResultsAreWrittenOnlyOnSuccess) {
  const std::uint8_t junk[64] = {};
  std::uint8_t dst[64];
  size_t size = 4711;
  snug_frame_info info{};
  info.num_elems = 4711;
  EXPECT_NE(snug_decode(junk, sizeof junk, dst, sizeof dst, 1, &size, nullptr), SNUG_OK);
  EXPECT_NE(snug_inspect(junk, sizeof junk, &info, nullptr), SNUG_OK);
  EXPECT_NE(snug_encode(junk, sizeof junk, dst, 10, nullptr, &size, nullptr), SNUG_OK);
  EXPECT_EQ(size, 4711u);
  EXPECT_EQ(info.num_elems, 4711u);
}

TEST(CApi, ArgumentsThatMeanNothingAreRefused) {
  std::uint8_t dst[4096] = {};
  snug_status status;
  EXPECT_EQ(snug_encode(nullptr, 10, dst, sizeof dst, nullptr, nullptr, &status), SNUG_USAGE);
  EXPECT_EQ(snug_encode(dst, 10, nullptr, 100, nullptr, nullptr, &status), SNUG_USAGE);
  EXPECT_EQ(snug_decode(nullptr, 100, dst, sizeof dst, 1, nullptr, &status), SNUG_USAGE);
  EXPECT_EQ(snug_decode_range(nullptr, 100, 0, 1, dst, sizeof dst, nullptr, &status), SNUG_USAGE);
  EXPECT_EQ(snug_verify(nullptr, 100, &status), SNUG_USAGE);
  EXPECT_EQ(snug_inspect(nullptr, 100, nullptr, &status), SNUG_USAGE);
  EXPECT_EQ(snug_frame_stats_of(nullptr, 100, nullptr, &status), SNUG_USAGE);
  EXPECT_EQ(snug_encode_in(dst, 10, dst, 100, nullptr, nullptr, 100, nullptr, &status), SNUG_USAGE);
  // Numbers that would be valid after cutting them to a byte.
  for (const snug_encode_options options :
       {snug_encode_options{256 + 1, SNUG_ENTROPY, 0, 1},
        snug_encode_options{-255, SNUG_ENTROPY, 0, 1}, snug_encode_options{SNUG_BF16, 256, 0, 1},
        snug_encode_options{SNUG_BF16, SNUG_ENTROPY, 99, 1}}) {
    const std::uint8_t raw[100] = {};
    EXPECT_EQ(snug_encode(raw, sizeof raw, dst, sizeof dst, &options, nullptr, &status),
              SNUG_USAGE);
  }
}

// Sizes that no buffer has. UBSan sees pointers that are formed before they are refused.
TEST(CApi, ImpossibleSizesAreRefused) {
  std::uint8_t raw[16] = {}, dst[4096];
  for (const size_t size : {size_t{1} << 44, SIZE_MAX / 2, SIZE_MAX / 2 + 1, SIZE_MAX - 7}) {
    EXPECT_EQ(snug_encode(raw, size, dst, sizeof dst, nullptr, nullptr, nullptr), SNUG_USAGE);
    EXPECT_EQ(snug_delta_encode(raw, raw, size, dst, sizeof dst, nullptr, nullptr, nullptr),
              SNUG_USAGE);
  }
}

TEST(CApi, EmptyTensorsNeedNoBuffers) {
  std::uint8_t frame[64];
  size_t size = 0;
  ASSERT_EQ(snug_encode(nullptr, 0, frame, sizeof frame, nullptr, &size, nullptr), SNUG_OK);
  EXPECT_EQ(size, 64u);
  ASSERT_EQ(snug_decode(frame, size, nullptr, 0, 1, &size, nullptr), SNUG_OK);
  EXPECT_EQ(size, 0u);
}

TEST(CApi, StatusTextNeverOverflows) {
  const snug_status status{SNUG_CORRUPT, 0, "something is wrong", 1, 2, 3, 4, {}};
  const std::string whole = text_of(status);
  EXPECT_EQ(whole, "corrupt: block 1, byte 2: something is wrong, found 3, expected 4");
  for (size_t room = 0; room < whole.size() + 2; ++room) {
    std::vector<char> buffer(room + 1, 'x');
    EXPECT_EQ(snug_status_text(&status, buffer.data(), room), whole.size());
    EXPECT_EQ(buffer[room], 'x');
    if (room > 0) {
      EXPECT_EQ(std::string(buffer.data()), whole.substr(0, room - 1));
    }
  }
  snug_status named{SNUG_IO, 0, "cannot read", 0, 0, 0, 0, {}};
  std::strcpy(named.line, "io: x.safetensors: cannot read");
  EXPECT_EQ(text_of(named), "io: x.safetensors: cannot read");
  const snug_status ok{SNUG_OK, 0, nullptr, 0, 0, 0, 0, {}};
  EXPECT_EQ(text_of(ok), "ok");
}

TEST(CApi, SimdTargets) {
  std::vector<std::string> targets;
  for (size_t i = 0; snug_simd_target_at(i) != nullptr; ++i)
    targets.push_back(snug_simd_target_at(i));
  ASSERT_FALSE(targets.empty());
  EXPECT_EQ(targets.back(), "scalar");
  EXPECT_STREQ(snug_simd_target(), simd_target());
}

TEST(CApi, VersionTextMatchesItsNumbers) {
  EXPECT_EQ(std::string(snug_version()), std::to_string(SNUG_VERSION_MAJOR) + "." +
                                             std::to_string(SNUG_VERSION_MINOR) + "." +
                                             std::to_string(SNUG_VERSION_PATCH));
}

}  // namespace
}  // namespace snug::test
