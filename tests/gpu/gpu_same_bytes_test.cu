// Every registered input, every dtype and codec: the GPU writes the CPU's frame
// and restores it.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace snug::test
