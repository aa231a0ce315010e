#include "store/value_stats.h"

#include <cmath>
#include <cstring>

#include "frame/bytes.h"

namespace snug::store {
namespace {

// Above this entropy a byte of a mantissa counts as noise.
constexpr double kNoiseBits = 7.5;

template <class Word>
void count_exponents(std::span<const std::byte> raw, const DTypeInfo& format,
                     std::uint64_t* counts) noexcept {
  const unsigned mask = (1u << format.exponent_bits) - 1;
  for (std::size_t i = 0; i + sizeof(Word) <= raw.size(); i += sizeof(Word)) {
    Word word;
    std::memcpy(&word, raw.data() + i, sizeof word);
    ++counts[static_cast<unsigned>(word >> format.mantissa_bits) & mask];
  }
}

}  // namespace

double entropy_bits(std::span<const std::uint64_t> counts) noexcept {
  double total = 0, sum = 0;
  for (const std::uint64_t count : counts) total += static_cast<double>(count);
  if (total == 0) return 0;
  for (const std::uint64_t count : counts)
    if (count != 0)
      sum -= static_cast<double>(count) * std::log2(static_cast<double>(count) / total);
  return sum / total;
}

ValueCounter::ValueCounter(DType dtype) : dtype_(dtype) {
  const DTypeInfo& format = dtype_info(dtype);
  const auto num_planes =
      format.exponent_bits == 0 ? static_cast<int>(elem_bytes(dtype)) : format.mantissa_bits / 8;
  planes_.resize(static_cast<std::size_t>(num_planes));
  if (format.exponent_bits != 0) exponents_.resize(std::size_t{1} << format.exponent_bits);
}

void ValueCounter::add(std::span<const std::byte> raw) noexcept {
  num_bytes_ += raw.size();
  const DTypeInfo& format = dtype_info(dtype_);
  const std::size_t width = elem_bytes(dtype_);
  if (format.exponent_bits != 0) {
    frame::with_width(
        width, [&](auto zero) { count_exponents<decltype(zero)>(raw, format, exponents_.data()); });
  }
  for (std::size_t plane = 0; plane < planes_.size(); ++plane)
    for (std::size_t i = plane; i < raw.size() / width * width; i += width)
      ++planes_[plane][static_cast<std::uint8_t>(raw[i])];
}

void ValueCounter::merge(const ValueCounter& other) noexcept {
  num_bytes_ += other.num_bytes_;
  for (std::size_t i = 0; i < exponents_.size(); ++i) exponents_[i] += other.exponents_[i];
  for (std::size_t plane = 0; plane < planes_.size(); ++plane)
    for (std::size_t v = 0; v < 256; ++v) planes_[plane][v] += other.planes_[plane][v];
}

TensorStats ValueCounter::stats() const {
  TensorStats stats;
  const DTypeInfo& format = dtype_info(dtype_);
  const double elem_bits = 8.0 * static_cast<double>(elem_bytes(dtype_));
  stats.of_exponents = format.exponent_bits != 0;
  double bits = elem_bits;
  if (stats.of_exponents) {
    stats.histogram = exponents_;
    stats.entropy_bits = entropy_bits(stats.histogram);
    bits -= format.exponent_bits - stats.entropy_bits;
  } else {
    stats.histogram.resize(256);
    for (const auto& plane : planes_)
      for (std::size_t v = 0; v < 256; ++v) stats.histogram[v] += plane[v];
    stats.entropy_bits = entropy_bits(stats.histogram);
  }
  for (const auto& plane : planes_) {
    const double plane_bits = entropy_bits(plane);
    if (!stats.of_exponents || plane_bits < kNoiseBits) bits -= 8 - plane_bits;
  }
  stats.bound = num_bytes_ == 0 ? 1 : bits / elem_bits;
  return stats;
}

}  // namespace snug::store
