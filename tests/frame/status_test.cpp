// What users see of an error.
#include "snug/status.h"

#include <gtest/gtest.h>

#include <cstring>

#include "snug/tensor.h"

namespace snug {
namespace {

TEST(Status, TextNamesPlaceAndValues) {
  EXPECT_EQ(to_string({}), "ok");
  EXPECT_EQ(to_string({Code::kCorrupt, "table sums up wrong", 17, 81920, 255, 256}),
            "corrupt: block 17, byte 81920: table sums up wrong, found 255, expected 256");
  EXPECT_EQ(to_string({Code::kBadMagic, "not a Snug frame", kNowhere, 0, 5, 7}),
            "bad magic: byte 0: not a Snug frame, found 5, expected 7");
  EXPECT_EQ(to_string({Code::kUsage, "not a codec"}), "usage: not a codec");
}

TEST(Status, EveryCodeHasAName) {
  for (const int code : {0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14})
    EXPECT_STRNE(code_name(static_cast<Code>(code)), "unknown") << code;
  EXPECT_STREQ(code_name(static_cast<Code>(1)), "unknown");
  EXPECT_STREQ(code_name(static_cast<Code>(15)), "unknown");
}

TEST(DType, EveryNumberHasANameAndAWidth) {
  for (int i = 0; i < kNumDTypes; ++i) {
    EXPECT_NE(elem_bytes(static_cast<DType>(i)), 0u) << i;
    EXPECT_STRNE(dtype_name(static_cast<DType>(i)), "unknown") << i;
  }
  for (int i = kNumDTypes; i < 256; ++i) {
    EXPECT_EQ(elem_bytes(static_cast<DType>(i)), 0u) << i;
    EXPECT_STREQ(dtype_name(static_cast<DType>(i)), "unknown") << i;
  }
  for (int i = 0; i < kNumCodecs; ++i) EXPECT_STRNE(codec_name(static_cast<Codec>(i)), "unknown");
  EXPECT_STREQ(codec_name(static_cast<Codec>(kNumCodecs)), "unknown");
}

}  // namespace
}  // namespace snug
