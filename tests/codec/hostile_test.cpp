// Damaged and hostile frames: an error or the right data, never anything else.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <tuple>

#include "frame/frame.h"
#include "support/checks.h"
#include "support/inputs.h"
#include "support/prng.h"
#include "support/reseal.h"
#include "support/sanitizer.h"

namespace snug::test {
namespace {

// Small frames that between them have every codec, plane mode and section.
struct Sample {
  const char* input;
  DType dtype;
  Codec codec;
  std::size_t num_elems;
};
constexpr Sample kSamples[] = {
    {"gaussian", DType::kBF16, Codec::kEntropy, 700},
    {"outliers", DType::kBF16, Codec::kEntropy, 501},
    {"outliers", DType::kBF16, Codec::kFixed, 301},
    {"gaussian", DType::kBF16, Codec::kRaw, 100},
    {"constant", DType::kBF16, Codec::kEntropy, 5000},
    {"gaussian", DType::kF16, Codec::kEntropy, 700},
    {"f32_holding_bf16", DType::kF32, Codec::kEntropy, 300},
    {"f32_holding_bf16", DType::kF32, Codec::kFixed, 200},
    {"outliers", DType::kF32, Codec::kFixed, 150},
    {"row_scales", DType::kF32, Codec::kEntropy, 1000},
    {"f64_holding_f32", DType::kF64, Codec::kEntropy, 250},
    {"gaussian", DType::kF8E4M3, Codec::kEntropy, 1200},
    {"gaussian", DType::kF8E5M2, Codec::kEntropy, 1200},
    {"f4_packed", DType::kF4, Codec::kEntropy, 4000},
    {"small_integers", DType::kI32, Codec::kEntropy, 300},
    {"small_integers", DType::kI64, Codec::kEntropy, 300},
    {"booleans", DType::kBool, Codec::kEntropy, 1000},
    {"half_and_half", DType::kBytes, Codec::kEntropy, 900},
};

struct Original {
  Bytes raw, frame;
};

Original make(const Sample& sample) {
  Original original;
  original.raw = make_input(input_named(sample.input), sample.dtype, sample.num_elems);
  // A tail, where there can be one.
  original.raw.resize(original.raw.size() - elem_bytes(sample.dtype) / 2);
  original.frame = encode_or_fail(view(original.raw), {sample.dtype, sample.codec, 12, 1});
  return original;
}

class Hostile : public testing::TestWithParam<Sample> {};

INSTANTIATE_TEST_SUITE_P(All, Hostile, testing::ValuesIn(kSamples), [](const auto& info) {
  return std::string(dtype_name(info.param.dtype)) + "_" + codec_name(info.param.codec) + "_" +
         info.param.input + "_" + std::to_string(info.param.num_elems);
});

TEST_P(Hostile, SampleIsCodedAsItsNameSays) {
  const Original original = make(GetParam());
  const auto stats = frame_stats(view(original.frame));
  ASSERT_TRUE(stats.ok());
  const Codec codec =
      std::strcmp(GetParam().input, "constant") == 0 ? Codec::kConstant : GetParam().codec;
  EXPECT_GT(stats->num_blocks[static_cast<int>(codec)], 0u);
}

TEST_P(Hostile, TruncationIsAlwaysAnError) {
  const Original original = make(GetParam());
  for (std::size_t size = 0; size < original.frame.size(); ++size) {
    const auto result = read_hostile(view(original.frame).first(size));
    ASSERT_EQ(result.status().code, Code::kCorrupt) << size;
  }
}

TEST_P(Hostile, EveryBitFlipIsFound) {
  const Original original = make(GetParam());
  Bytes frame = original.frame;
  // Sanitized, every 7th bit: each position within a byte still has its turn.
  for (std::size_t bit = 0; bit < 8 * frame.size(); bit += kSanitized ? 7 : 1) {
    frame[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    ASSERT_FALSE(read_hostile(view(frame)).ok()) << "bit " << bit;
    frame[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
}

// Every byte of header and index takes values that often break parsers, with
// checksums that agree.
TEST_P(Hostile, ResealedHeaderBytesAreSafe) {
  const Original original = make(GetParam());
  const std::size_t head = 64 + 16 * ((original.frame.size() > 0) + (GetParam().num_elems > 4096));
  for (std::size_t at = 0; at < head; ++at)
    for (const int value : {0, 1, 2, 3, 4, 7, 15, 16, 17, 31, 64, 127, 128, 240, 254, 255}) {
      Bytes frame = original.frame;
      frame[at] = static_cast<std::byte>(value);
      reseal_head(frame);
      (void)read_hostile(view(frame));
    }
}

// Payload bytes that lie, with checksums that agree: parsers and kernels see them.
TEST_P(Hostile, ResealedPayloadsAreSafe) {
  const Original original = make(GetParam());
  const auto header = frame::read_header(view(original.frame));
  ASSERT_TRUE(header.ok());
  const std::size_t start = header->payload_start();
  Prng prng(7);
  for (std::size_t round = 0; round < repetitions(10000); ++round) {
    Bytes frame = original.frame;
    for (std::size_t changes = 1 + prng.below(4); changes-- > 0;) {
      const std::size_t at = start + prng.below(frame.size() - start);
      switch (prng.below(4)) {
        case 0: frame[at] = static_cast<std::byte>(prng.byte()); break;
        case 1: frame[at] ^= static_cast<std::byte>(1 << prng.below(8)); break;
        case 2: frame[at] = std::byte{0xFF}; break;
        case 3:
          std::memset(frame.data() + at, 0,
                      std::min<std::size_t>(frame.size() - at, 1 + prng.below(64)));
          break;
      }
    }
    reseal(frame);
    ASSERT_TRUE(verify(view(frame)).ok());
    const auto result = read_hostile(view(frame));
    if (result.ok()) {
      ASSERT_EQ(result->size(), original.raw.size());
    }
  }
}

// Each 32-bit word of the payload in turn becomes a size that overflows.
TEST_P(Hostile, ResealedPayloadWordsAreSafe) {
  const Original original = make(GetParam());
  const auto header = frame::read_header(view(original.frame));
  ASSERT_TRUE(header.ok());
  for (std::size_t at = header->payload_start(); at < original.frame.size(); at += 4)
    for (const std::uint32_t value :
         {0u, 1u, 0x7FFFFFFFu, 0x80000000u, 0xFFFFFFFFu, 0x10000u, 0xFFFFu}) {
      Bytes frame = original.frame;
      std::memcpy(frame.data() + at, &value, 4);
      reseal(frame);
      (void)read_hostile(view(frame));
    }
}

// Blocks that claim another codec or other plane modes than they were made with.
TEST_P(Hostile, ResealedCodecsAndModesAreSafe) {
  const Original original = make(GetParam());
  for (int codec = 0; codec < 6; ++codec)
    for (unsigned modes = 0; modes < 65536; modes += modes < 256 ? 1 : (kSanitized ? 4111 : 257)) {
      Bytes frame = original.frame;
      frame[64 + 5] = static_cast<std::byte>(codec);
      frame[64 + 6] = static_cast<std::byte>(modes);
      frame[64 + 7] = static_cast<std::byte>(modes >> 8);
      reseal(frame);
      (void)read_hostile(view(frame));
    }
}

// A block's payload under the index entry of a block with another size.
TEST_P(Hostile, ResealedElementCountsAreSafe) {
  const Original original = make(GetParam());
  for (std::uint64_t num_elems = 0; num_elems < 2 * GetParam().num_elems;
       num_elems += kSanitized ? 13 : 1) {
    Bytes frame = original.frame;
    std::memcpy(frame.data() + 8, &num_elems, 8);
    reseal_head(frame);
    (void)read_hostile(view(frame));
  }
}

TEST(HostileBytes, NoiseIsNoFrame) {
  Prng prng(8);
  for (std::size_t round = 0; round < repetitions(5000); ++round) {
    Bytes noise(prng.below(300));
    for (auto& byte : noise) byte = static_cast<std::byte>(prng.byte());
    if (noise.size() >= 64 && prng.one_in(2)) {
      std::memcpy(noise.data(), "SNUG\1", 5);
      noise[5] = static_cast<std::byte>(prng.below(13));
      noise[6] = static_cast<std::byte>(12 + prng.below(6));
      std::memset(noise.data() + 7, 0, 57);
      noise[8] = static_cast<std::byte>(prng.byte());
      noise[9] = static_cast<std::byte>(prng.below(20));
      reseal(noise);
    }
    (void)read_hostile(view(noise));
  }
}

}  // namespace
}  // namespace snug::test
