// delta/bit_io.h - bits in little-endian 32-bit words, lowest first.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace snug::delta {

// Writes into memory the caller knows to be large enough.
class BitWriter {
 public:
  explicit BitWriter(std::uint8_t* dst) noexcept : dst_(dst) {}

  // num_bits up to 32; `bits` has no others.
  void put(std::uint64_t bits, unsigned num_bits) noexcept {
    pending_ |= bits << num_pending_;
    num_pending_ += num_bits;
    if (num_pending_ < 32) return;
    store();
    pending_ >>= 32;
    num_pending_ -= 32;
  }
  void put_long(std::uint64_t bits, unsigned num_bits) noexcept {  // up to 64
    if (num_bits > 32) {
      put(bits & 0xFFFFFFFF, 32);
      bits >>= 32;
      num_bits -= 32;
    }
    put(bits, num_bits);
  }
  // `value` zeros and a one.
  void put_unary(std::uint64_t value) noexcept {
    for (; value >= 32; value -= 32) put(0, 32);
    put(std::uint64_t{1} << value, static_cast<unsigned>(value) + 1);
  }
  // Fills the last word with zeros.
  void finish() noexcept {
    if (num_pending_ > 0) store();
    pending_ = num_pending_ = 0;
  }

 private:
  void store() noexcept {
    const auto word = static_cast<std::uint32_t>(pending_);
    std::memcpy(dst_, &word, 4);
    dst_ += 4;
  }

  std::uint8_t* dst_;
  std::uint64_t pending_ = 0;
  unsigned num_pending_ = 0;
};

// Reads words of a span; behind its end there are zeros.
class BitReader {
 public:
  BitReader(const std::uint8_t* words, std::size_t num_words) noexcept
      : at_(words), end_(words + 4 * num_words) {}

  std::uint64_t get(unsigned num_bits) noexcept {  // up to 32
    fill();
    const std::uint64_t bits = available_ & ((std::uint64_t{1} << num_bits) - 1);
    drop(num_bits);
    return bits;
  }
  std::uint64_t get_long(unsigned num_bits) noexcept {  // up to 64
    if (num_bits <= 32) return get(num_bits);
    const std::uint64_t low = get(32);
    return low | get(num_bits - 32) << 32;
  }
  // Zeros up to the next one; false if there is none before the end.
  bool get_unary(std::uint64_t& value) noexcept {
    value = 0;
    for (;;) {
      fill();
      if (available_ != 0) break;
      if (at_ == end_) return false;
      value += num_available_;
      num_available_ = 0;
    }
    const auto zeros = static_cast<unsigned>(std::countr_zero(available_));
    value += zeros;
    drop(zeros + 1);
    return true;
  }

 private:
  void fill() noexcept {
    if (num_available_ > 32 || at_ == end_) return;
    std::uint32_t word;
    std::memcpy(&word, at_, 4);
    available_ |= std::uint64_t{word} << num_available_;
    num_available_ += 32;
    at_ += 4;
  }
  void drop(unsigned num_bits) noexcept {
    available_ = num_bits < 64 ? available_ >> num_bits : 0;
    num_available_ = num_available_ > num_bits ? num_available_ - num_bits : 0;
  }

  const std::uint8_t* at_;
  const std::uint8_t* const end_;
  std::uint64_t available_ = 0;
  unsigned num_available_ = 0;
};

}  // namespace snug::delta
