#include "nccl/detect.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace snug::nccl {
namespace {

constexpr double kWorthwhileRatio = 0.94;  // above it data goes raw
constexpr std::size_t kWords = 256;        // 8-byte words of a sample
constexpr std::size_t kRunWords = 8;
constexpr std::size_t kMaxSymbols = kWords * 8;

using Histogram = std::array<std::uint16_t, 256>;

// n * log2(n), so that the entropy of a histogram is a sum of 256 table entries.
const std::array<float, kMaxSymbols + 1>& n_log_n() {
  static const auto table = [] {
    std::array<float, kMaxSymbols + 1> values{};
    for (std::size_t n = 1; n < values.size(); ++n)
      values[n] = static_cast<float>(n) * std::log2(static_cast<float>(n));
    return values;
  }();
  return table;
}

// Bits a symbol costs. The last term corrects for symbols that a small sample
// misses (Miller and Madow).
double entropy_bits(const Histogram& counts, std::size_t total) {
  float sum = 0;
  int used = 0;
  for (const std::uint16_t count : counts) {
    sum += n_log_n()[count];
    used += count != 0;
  }
  const double n = static_cast<double>(total);
  return std::log2(n) - sum / n + (used - 1) / (2 * n * 0.6931);
}

// Runs of words spread over the buffer.
struct Sample {
  std::array<std::uint64_t, kWords> words;
  std::size_t size = 0;

  explicit Sample(std::span<const std::byte> data) {
    constexpr std::size_t kRuns = kWords / kRunWords;
    const std::size_t total_words = data.size() / 8;
    const std::size_t step = total_words <= kWords ? kRunWords : total_words / kRuns;
    for (std::size_t run = 0; run < kRuns; ++run)
      for (std::size_t i = run * step; i < run * step + kRunWords && i < total_words; ++i)
        std::memcpy(&words[size++], data.data() + i * 8, 8);
  }
};

// What the codecs see in elements of `width` bytes: the byte below the sign, which
// holds the exponent, and whether the lower half is used.
struct Top {
  double bits;       // entropy of that byte
  bool low_is_zero;  // FP32 that holds BF16
};
Top look_at(const Sample& sample, int width) {
  Histogram histogram{};
  std::uint64_t low_bits = 0;
  const int shift = width == 1 ? 0 : 8 * width - 9;
  for (std::size_t i = 0; i < sample.size; ++i)
    for (int at = 0; at < 64; at += 8 * width) {
      ++histogram[(sample.words[i] >> (at + shift)) & 0xff];
      low_bits |= sample.words[i] >> at;
    }
  return {entropy_bits(histogram, sample.size * static_cast<std::size_t>(8 / width)),
          (low_bits & 0xffff) == 0};
}

}  // namespace

Guess guess_dtype(std::span<const std::byte> data) noexcept {
  const Sample sample(data);
  if (sample.size < 32) return {};
  const Top one = look_at(sample, 1), two = look_at(sample, 2), four = look_at(sample, 4);
  // An exponent of 8 bits takes few values; FP16's byte also has mantissa bits.
  const DType two_bytes = two.bits < 4.5 ? DType::kBF16 : DType::kF16;
  const Guess guesses[] = {{two_bytes, (two.bits + 8) / 16},
                           {DType::kF32, (four.bits + (four.low_is_zero ? 8 : 24)) / 32},
                           {DType::kF8E4M3, one.bits / 8}};
  Guess best;
  for (const Guess& guess : guesses)
    if (guess.ratio < best.ratio) best = guess;
  return best;
}

Codec codec_for(const Guess& guess, Codec wanted, CodecChoice choice) noexcept {
  if (guess.ratio > kWorthwhileRatio) return Codec::kRaw;
  if (wanted != Codec::kFixed || guess.dtype == DType::kBF16) return wanted;
  return choice == CodecChoice::kFixed ? Codec::kRaw : Codec::kEntropy;
}

}  // namespace snug::nccl
