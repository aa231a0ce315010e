// Every registered input, every dtype and codec: the GPU writes the CPU's frame
// and restores it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "gpu/gpu_buffers.h"
#include "support/inputs.h"

namespace snug::test {
namespace {

class GpuSameBytes : public testing::TestWithParam<int> {};

void check(const Bytes& raw, DType dtype, Codec codec, int log2_block, std::size_t misalign,
           const std::string& what) {
  SCOPED_TRACE(what + " " + dtype_name(dtype) + " " + codec_name(codec) + " log2_block " +
               std::to_string(log2_block) + " bytes " + std::to_string(raw.size()));
  const Bytes expected = encode_or_fail(view(raw), {dtype, codec, log2_block, 1});
  cuda::EncodeOptions options;
  options.dtype = dtype;
  options.codec = codec;
  options.log2_block = log2_block;
  const Bytes frame = gpu_encode(raw, options, misalign);
  ASSERT_EQ(frame.size(), expected.size());
  std::size_t differs = 0;
  while (differs < frame.size() && frame[differs] == expected[differs]) ++differs;
  EXPECT_EQ(differs, frame.size()) << "first different byte";
  cuda::DecodeOptions back;
  back.dtype = dtype;
  back.codec = codec;
  back.log2_block = log2_block;
  const auto restored = gpu_decode(expected, raw.size(), back, misalign);
  ASSERT_TRUE(restored.ok()) << to_string(restored.status());
  EXPECT_TRUE(*restored == raw);
}

TEST_P(GpuSameBytes, AllInputs) {
  const int log2_block = GetParam();
  for (const Input& input : inputs())
    for (const DType dtype : all_dtypes()) {
      if (!input.applies(dtype)) continue;
      Bytes raw = make_input(input, dtype, (std::size_t{2} << log2_block) + 1234);
      if (raw.size() > 16) raw.resize(raw.size() - elem_bytes(dtype) / 2);
      for (const Codec codec : all_codecs()) check(raw, dtype, codec, log2_block, 0, input.name);
      if (testing::Test::HasFatalFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(Blocks, GpuSameBytes, testing::Values(12, 13, 14, 15, 17));

TEST(GpuLengths, AnyLengthAndAlignment) {
  const Input& gaussian = input_named("gaussian");
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF8E4M3})
    for (const std::size_t n :
         {0, 1, 2, 3, 7, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097, 8191, 12288, 20001})
      for (const std::size_t misalign : {0, 1, 2, 4, 8}) {
        const Bytes raw = n == 0 ? Bytes() : make_input(gaussian, dtype, n);
        for (const Codec codec : {Codec::kFixed, Codec::kEntropy})
          check(raw, dtype, codec, 12, misalign, "gaussian");
        if (testing::Test::HasFatalFailure()) return;
      }
}

// Hints choose how a frame is restored, not what comes out.
TEST(GpuHints, AnyHintRestoresAnyFrame) {
  const Bytes raw = make_input(input_named("gaussian"), DType::kBF16, 150001);
  for (const Codec codec : {Codec::kRaw, Codec::kFixed, Codec::kEntropy})
    for (const int log2_block : {12, 13, 15, 17}) {
      const Bytes frame = encode_or_fail(view(raw), {DType::kBF16, codec, log2_block, 1});
      for (const Codec hint : {Codec::kRaw, Codec::kFixed, Codec::kEntropy})
        for (const int hint_log2 : {0, 12, 15, 17})
          for (const int max_sms : {0, 1}) {
            SCOPED_TRACE(std::string(codec_name(codec)) + " " + std::to_string(log2_block) +
                         " as " + codec_name(hint) + " " + std::to_string(hint_log2));
            cuda::DecodeOptions options;
            options.codec = hint;
            options.log2_block = hint_log2;
            options.max_sms = max_sms;
            const auto restored = gpu_decode(frame, raw.size(), options);
            ASSERT_TRUE(restored.ok()) << to_string(restored.status());
            ASSERT_TRUE(*restored == raw);
          }
    }
}

// Many blocks for each thread block, some of them constant or raw; then two damaged ones,
// the first of which is reported.
TEST(GpuManyBlocks, FewMultiprocessorsRestoreThem) {
  constexpr std::size_t kBlockBytes = 2 * 4096, kBlocks = 73;
  Bytes raw = make_input(input_named("gaussian"), DType::kBF16, kBlocks * 4096 + 321);
  for (const std::size_t constant : {3, 4, 40})
    std::fill_n(raw.begin() + constant * kBlockBytes, kBlockBytes, std::byte{0x11});
  for (const std::size_t noisy : {5, 39, 72})
    for (std::size_t i = 0; i < kBlockBytes; ++i)
      raw[noisy * kBlockBytes + i] = static_cast<std::byte>((i * i * 2654435761u) >> 11);
  Bytes frame = encode_or_fail(view(raw), {DType::kBF16, Codec::kFixed, 12, 1});
  cuda::DecodeOptions options;
  options.codec = Codec::kFixed;
  options.log2_block = 12;
  for (const int max_sms : {1, 2, 7, 0}) {
    options.max_sms = max_sms;
    const auto restored = gpu_decode(frame, raw.size(), options);
    ASSERT_TRUE(restored.ok()) << to_string(restored.status());
    EXPECT_TRUE(*restored == raw) << max_sms;
  }
  for (const std::size_t damaged : {70, 38}) {
    std::uint64_t offset = 0;
    std::memcpy(&offset, frame.data() + 64 + 16 * damaged, 5);
    frame[offset * 16 + 100] ^= std::byte{4};
  }
  for (const int max_sms : {1, 2, 7, 0}) {
    options.max_sms = max_sms;
    const auto restored = gpu_decode(frame, raw.size(), options);
    ASSERT_FALSE(restored.ok());
    EXPECT_EQ(restored.status().code, Code::kCorrupt);
    EXPECT_EQ(restored.status().block, 38u) << max_sms;
  }
}

}  // namespace
}  // namespace snug::test
