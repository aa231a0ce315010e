// Every registered input, as every dtype, through every codec and block size.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "support/checks.h"
#include "support/inputs.h"
#include "support/sanitizer.h"

namespace snug::test {
namespace {

struct Case {
  const Input* input;
  DType dtype;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Input& input : inputs())
    for (const DType dtype : all_dtypes())
      if (input.applies(dtype)) cases.push_back({&input, dtype});
  return cases;
}

class RoundTrip : public testing::TestWithParam<Case> {};

TEST_P(RoundTrip, EveryCodecAndBlockSize) {
  const auto [input, dtype] = GetParam();
  for (int log2_block = 12; log2_block <= 17; ++log2_block) {
    // Sanitizers take the smallest block, the largest, and one in between.
    if (kSanitized && log2_block != 12 && log2_block != 15) continue;
    // Two whole blocks and a part of one; of large blocks, one and a part.
    const std::size_t block = std::size_t{1} << log2_block;
    const Bytes raw = make_input(*input, dtype, log2_block < 15 ? 2 * block + 37 : block + 37);
    for (const Codec codec : all_codecs()) {
      SCOPED_TRACE(std::string(codec_name(codec)) + ", log2_block " + std::to_string(log2_block));
      check_round_trip(view(raw), {dtype, codec, log2_block, 1});
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RoundTrip, testing::ValuesIn(all_cases()), [](const auto& info) {
  return std::string(dtype_name(info.param.dtype)) + "_" + info.param.input->name;
});

class Sizes : public testing::TestWithParam<std::tuple<DType, Codec>> {};

// Sizes in bytes: tails that are no whole element are part of it.
TEST_P(Sizes, SmallOnes) {
  const auto [dtype, codec] = GetParam();
  for (const char* name : {"gaussian", "two_valued", "random_bits"}) {
    const Bytes raw = make_input(input_named(name), dtype, 300);
    for (std::size_t size = 0; size <= raw.size(); size += size < 40 || !kSanitized ? 1 : 13) {
      SCOPED_TRACE(std::string(name) + ", " + std::to_string(size) + " bytes");
      check_round_trip(view(raw).first(size), {dtype, codec, 12, 1});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Sizes, AroundBorders) {
  const auto [dtype, codec] = GetParam();
  const Bytes raw = make_input(input_named("outliers"), dtype, 2 * 8192 + 3);
  const std::size_t width = elem_bytes(dtype);
  for (const std::size_t border : {512, 1024, 4096, 8192, 12288, 16384})
    for (const int delta : {-9, -8, -2, -1, 0, 1, 2})
      for (const std::size_t tail : {std::size_t{0}, width - 1}) {
        const std::size_t size = (border + static_cast<std::size_t>(delta)) * width + tail;
        SCOPED_TRACE(std::to_string(size) + " bytes");
        check_round_trip(view(raw).first(size), {dtype, codec, 12, 1});
        if (HasFatalFailure()) return;
        if (width == 1) break;
      }
}

INSTANTIATE_TEST_SUITE_P(All, Sizes,
                         testing::Combine(testing::ValuesIn(all_dtypes()),
                                          testing::Values(Codec::kRaw, Codec::kFixed,
                                                          Codec::kEntropy)),
                         [](const auto& info) {
                           return std::string(dtype_name(std::get<0>(info.param))) + "_" +
                                  codec_name(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace snug::test
