// Sizes that each kind of data must reach. All targets give the same bytes, so
// this runs once. bench/results/cpu_codec.md quotes the figures that it prints.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "support/checks.h"
#include "support/minifloat.h"

namespace snug::test {
namespace {

constexpr std::size_t kNumElems = 1 << 21;

// Gaussian values times `scale`, as elements of `dtype`; `holding` narrower
// values where it differs.
Bytes gaussian(DType dtype, double scale, DType holding) {
  std::mt19937_64 rng(1);
  std::normal_distribution<double> normal(0, scale);
  const std::size_t width = elem_bytes(dtype);
  Bytes raw(kNumElems * width);
  for (std::size_t i = 0; i < kNumElems; ++i) {
    std::uint64_t bits = to_bits(normal(rng), holding);
    if (dtype == DType::kF32 && holding == DType::kBF16) bits <<= 16;
    std::memcpy(raw.data() + i * width, &bits, width);
  }
  return raw;
}

double ratio_of(const Bytes& raw, DType dtype, Codec codec) {
  const Bytes frame = encode_or_fail(view(raw), {dtype, codec, 0, 1});
  return static_cast<double>(frame.size()) / static_cast<double>(raw.size());
}

TEST(Ratio, IsWithinWhatEachTypeAllows) {
  struct Expected {
    const char* name;
    DType dtype, holding;
    double scale;
    Codec codec;
    double limit;
  };
  // E4M3 as quantisers make it: the largest of a few million values, 5.2 sigma,
  // becomes 448.
  const Expected kExpected[] = {
      {"BF16", DType::kBF16, DType::kBF16, 0.02, Codec::kEntropy, 0.6626},
      {"BF16 fixed", DType::kBF16, DType::kBF16, 0.02, Codec::kFixed, 0.752},
      {"FP16", DType::kF16, DType::kF16, 0.02, Codec::kEntropy, 0.846},
      {"FP32", DType::kF32, DType::kF32, 0.02, Codec::kEntropy, 0.832},
      {"FP32 holding BF16", DType::kF32, DType::kBF16, 0.02, Codec::kEntropy, 0.335},
      {"FP32 holding BF16, fixed", DType::kF32, DType::kBF16, 0.02, Codec::kFixed, 0.377},
      {"E4M3", DType::kF8E4M3, DType::kF8E4M3, 448 / 5.2, Codec::kEntropy, 0.82},
      {"E5M2", DType::kF8E5M2, DType::kF8E5M2, 0.02, Codec::kEntropy, 0.70},
  };
  for (const Expected& e : kExpected) {
    const double ratio = ratio_of(gaussian(e.dtype, e.scale, e.holding), e.dtype, e.codec);
    std::printf("%-26s %.4f (limit %.4f)\n", e.name, ratio, e.limit);
    EXPECT_LE(ratio, e.limit) << e.name;
    EXPECT_GE(ratio, e.limit * 0.9) << e.name << ": the limit in this table is too generous";
  }
}

TEST(Ratio, Bf16IsWithinThreePermilleOfTheExponentBound) {
  const Bytes raw = gaussian(DType::kBF16, 0.02, DType::kBF16);
  double counts[256] = {}, entropy = 0;
  for (std::size_t i = 0; i < raw.size(); i += 2) {
    std::uint16_t v;
    std::memcpy(&v, raw.data() + i, 2);
    counts[v >> 7 & 255] += 1.0 / kNumElems;
  }
  for (const double p : counts)
    if (p > 0) entropy -= p * std::log2(p);
  const double bound = (8 + entropy) / 16, ratio = ratio_of(raw, DType::kBF16, Codec::kEntropy);
  std::printf("BF16 %.4f, bound %.4f: %+.2f %%\n", ratio, bound, 100 * (ratio / bound - 1));
  EXPECT_LE(ratio, bound * 1.003);
}

TEST(Ratio, IncompressibleDataCostsLessThanAThousandth) {
  for (const DType dtype : all_dtypes()) {
    const Bytes raw = make_input(input_named("random_bits"), dtype, 1 << 19);
    if (raw.empty()) continue;
    EXPECT_LE(ratio_of(raw, dtype, Codec::kEntropy), 1.001) << dtype_name(dtype);
    EXPECT_LE(ratio_of(raw, dtype, Codec::kFixed), 1.001) << dtype_name(dtype);
  }
}

TEST(Ratio, SimpleDataIsSmall) {
  EXPECT_LE(ratio_of(make_input(input_named("booleans"), DType::kBool, 1 << 17), DType::kBool,
                     Codec::kEntropy),
            0.08);
  EXPECT_LE(ratio_of(make_input(input_named("small_integers"), DType::kI32, 1 << 17), DType::kI32,
                     Codec::kEntropy),
            0.19);
}

}  // namespace
}  // namespace snug::test
