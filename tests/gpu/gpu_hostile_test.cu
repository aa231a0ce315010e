// Damaged and hostile frames on the GPU: an error or the right data, and no
// access outside the buffers (run under compute-sanitizer to see the latter).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gpu/gpu_buffers.h"
#include "support/inputs.h"
#include "support/prng.h"
#include "support/reseal.h"

namespace snug::test {
namespace {

struct Sample {
  const char* input;
  DType dtype;
  Codec codec;
  std::size_t num_elems;
};
constexpr Sample kSamples[] = {
    {"gaussian", DType::kBF16, Codec::kEntropy, 4700},
    {"outliers", DType::kBF16, Codec::kEntropy, 501},
    {"outliers", DType::kBF16, Codec::kFixed, 4301},
    {"gaussian", DType::kBF16, Codec::kRaw, 100},
    {"constant", DType::kBF16, Codec::kEntropy, 5000},
    {"gaussian", DType::kF16, Codec::kEntropy, 700},
    {"f32_holding_bf16", DType::kF32, Codec::kEntropy, 300},
    {"outliers", DType::kF32, Codec::kFixed, 150},
    {"f64_holding_f32", DType::kF64, Codec::kEntropy, 250},
    {"gaussian", DType::kF8E4M3, Codec::kEntropy, 1200},
    {"small_integers", DType::kI32, Codec::kEntropy, 300},
    {"half_and_half", DType::kBytes, Codec::kEntropy, 900},
};

// Whatever the frame is, CPU and GPU must agree on whether it decodes, and to what.
void check_agreement(const Bytes& frame, std::size_t raw_bytes, DType dtype, Codec codec) {
  cuda::DecodeOptions options;
  options.dtype = dtype;
  for (const Codec hint : {Codec::kEntropy, Codec::kFixed}) {
    options.codec = hint;
    Bytes expected(raw_bytes);
    const auto cpu = decode(view(frame), expected);
    const auto gpu = gpu_decode(frame, raw_bytes, options);
    ASSERT_EQ(gpu.ok(), cpu.ok()) << to_string(cpu.status()) << " / " << to_string(gpu.status());
    if (!cpu.ok()) continue;
    expected.resize(*cpu);
    ASSERT_TRUE(*gpu == expected);
  }
  (void)codec;
}

TEST(GpuHostile, FlippedBitsWithAndWithoutGoodChecksums) {
  for (const Sample& sample : kSamples) {
    const Bytes raw = make_input(input_named(sample.input), sample.dtype, sample.num_elems);
    const Bytes frame = encode_or_fail(view(raw), {sample.dtype, sample.codec, 12, 1});
    Prng prng(sample.num_elems);
    for (int i = 0; i < 60; ++i) {
      Bytes bad = frame;
      const std::size_t flips = 1 + prng.below(3);
      // Headers and sections are where the trouble is: half of the flips go there.
      for (std::size_t k = 0; k < flips; ++k) {
        const std::size_t at = prng.one_in(2) ? prng.below(bad.size())
                                              : prng.below(std::min<std::size_t>(bad.size(), 512));
        bad[at] ^= std::byte{static_cast<unsigned char>(1u << prng.below(8))};
      }
      if (i % 3 != 0) reseal(bad);
      SCOPED_TRACE(std::string(sample.input) + " " + dtype_name(sample.dtype) + " try " +
                   std::to_string(i));
      // A changed dtype is a frame of another type to the GPU and fine to the CPU.
      if (bad[5] != frame[5]) continue;
      check_agreement(bad, raw.size(), sample.dtype, sample.codec);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Snug's encoders write no such block, but the format has it.
TEST(GpuHostile, ConstantLowPlaneOfFixedBF16) {
  for (const std::size_t n : {std::size_t{4096}, std::size_t{1003}}) {
    Bytes raw = make_input(input_named("gaussian"), DType::kBF16, n);
    for (std::size_t i = 0; i < raw.size(); i += 2) raw[i] = std::byte{0x5A};
    Bytes frame = encode_or_fail(view(raw), {DType::kBF16, Codec::kFixed, 12, 1});
    ASSERT_EQ(frame[64 + 5], std::byte{static_cast<unsigned char>(Codec::kFixed)});
    // The low plane shrinks to one vector.
    const std::size_t removed = (n + 15) / 16 * 16 - 16;
    frame.erase(frame.begin() + 80 + 16,
                frame.begin() + 80 + 16 + static_cast<std::ptrdiff_t>(removed));
    const auto num_bytes = static_cast<std::uint32_t>(frame.size() - 80);
    const std::uint64_t frame_bytes = frame.size();
    frame[64 + 6] = std::byte{1};
    std::memcpy(&frame[64 + 8], &num_bytes, 4);
    std::memcpy(&frame[16], &frame_bytes, 8);
    reseal(frame);
    Bytes restored(raw.size());
    ASSERT_TRUE(decode(view(frame), restored).ok());
    ASSERT_TRUE(restored == raw);
    check_agreement(frame, raw.size(), DType::kBF16, Codec::kFixed);
  }
}

TEST(GpuHostile, CutShort) {
  const Bytes raw = make_input(input_named("gaussian"), DType::kBF16, 9000);
  const Bytes frame = encode_or_fail(view(raw), {DType::kBF16, Codec::kEntropy, 12, 1});
  for (std::size_t length = 0; length < frame.size(); length += length < 128 ? 1 : 997) {
    Bytes cut(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(length));
    const auto back = gpu_decode(cut, raw.size(), {});
    EXPECT_FALSE(back.ok()) << length;
  }
}

TEST(GpuHostile, RoomTooSmall) {
  const Bytes raw = make_input(input_named("gaussian"), DType::kBF16, 9000);
  for (const Codec codec : {Codec::kEntropy, Codec::kFixed, Codec::kRaw}) {
    const Bytes frame = encode_or_fail(view(raw), {DType::kBF16, codec, 12, 1});
    const auto back = gpu_decode(frame, raw.size() - 1, {});
    ASSERT_FALSE(back.ok());
    EXPECT_EQ(back.status().code, Code::kDstTooSmall);
    cuda::EncodeOptions options;
    options.codec = codec;
    options.log2_block = 12;
    DeviceBuffer src(raw), result(sizeof(cuda::DeviceResult)),
        ws(cuda::encode_workspace_bytes(raw.size(), options));
    for (const std::size_t room :
         {std::size_t{0}, std::size_t{64}, std::size_t{112}, frame.size() - 16}) {
      DeviceBuffer small(room);
      ASSERT_TRUE(
          cuda::encode({src.data(), raw.size()}, {small.data(), room}, {ws.data(), ws.size()},
                       reinterpret_cast<cuda::DeviceResult*>(result.data()), options, nullptr)
              .ok());
      SNUG_CUDA_OK(cudaDeviceSynchronize());
      EXPECT_EQ(fetch_result(result).code, static_cast<std::uint32_t>(Code::kDstTooSmall)) << room;
      EXPECT_TRUE(small.end_is_intact());
    }
  }
}

TEST(GpuHostile, GoldenInvalidFrames) {
  const std::filesystem::path folder = SNUG_TEST_DIR "/golden/invalid";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no golden frames here";
  std::size_t seen = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> text((std::istreambuf_iterator<char>(file)), {});
    Bytes frame(text.size());
    std::memcpy(frame.data(), text.data(), text.size());
    cuda::DecodeOptions options;
    if (frame.size() > 5 && elem_bytes(static_cast<DType>(frame[5])) != 0)
      options.dtype = static_cast<DType>(frame[5]);
    for (const Codec hint : {Codec::kEntropy, Codec::kFixed}) {
      options.codec = hint;
      EXPECT_FALSE(gpu_decode(frame, 1 << 20, options).ok()) << entry.path();
    }
    ++seen;
  }
  EXPECT_GT(seen, 0u);
}

TEST(GpuUsage, RefusesBadArguments) {
  cuda::EncodeOptions options;
  options.log2_block = 11;
  EXPECT_EQ(cuda::encode({}, {}, {}, nullptr, options, nullptr).code, Code::kUsage);
  options.log2_block = 12;
  options.dtype = static_cast<DType>(200);
  EXPECT_EQ(cuda::encode({}, {}, {}, nullptr, options, nullptr).code, Code::kUsage);
  options.dtype = DType::kBF16;
  DeviceBuffer buffer(4096);
  EXPECT_EQ(cuda::encode({buffer.data(), 64}, {buffer.data(), 4096}, {buffer.data(), 16}, nullptr,
                         options, nullptr)
                .code,
            Code::kUsage);
}

}  // namespace
}  // namespace snug::test
