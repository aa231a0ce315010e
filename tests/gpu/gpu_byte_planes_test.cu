// Planes of bytes with any number of tables, alone, on top of a raw plane and below a palette:
// the GPU restores what the CPU wrote, and judges damaged frames as the CPU does.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "gpu/gpu_buffers.h"
#include "support/inputs.h"
#include "support/prng.h"
#include "support/reseal.h"

namespace snug::test {
namespace {

// Bytes whose high nibble says how the low one is distributed: `num_rows` ways of their own
// and an even one. Of the first way only one low nibble occurs.
std::uint8_t plane_byte(unsigned num_rows, bool has_even, Prng& prng) {
  const auto row = static_cast<unsigned>(prng.below(num_rows + (has_even ? 1 : 0)));
  const bool own = row < num_rows && (row == 0 || !prng.one_in(4));
  const unsigned low = own ? row * 5 % 16 : static_cast<unsigned>(prng.below(16));
  return static_cast<std::uint8_t>(row * 16 + low);
}

// Most exponents are near 120, a few anywhere.
std::uint8_t exponent(Prng& prng) {
  if (prng.one_in(300)) return prng.byte();
  return static_cast<std::uint8_t>(120 - __builtin_ctzll(prng.next() | 1u << 6));
}

struct Kind {
  DType dtype;
  unsigned plane_modes;
};
constexpr Kind kKinds[] = {{DType::kBytes, 2},
                           {DType::kF8E4M3, 2},
                           {DType::kI16, 2 << 2},
                           {DType::kF16, 2 << 2},
                           {DType::kBF16, 3 << 2 | 2}};

Bytes make_raw(const Kind& kind, std::size_t n, unsigned num_rows, bool has_even) {
  Prng prng(n * 31 + num_rows * 2 + (has_even ? 1 : 0));
  const bool is_wide = elem_bytes(kind.dtype) == 2;
  Bytes raw(n * elem_bytes(kind.dtype));
  for (std::size_t i = 0; i < n; ++i) {
    const unsigned coded = plane_byte(num_rows, has_even, prng);
    if (!is_wide) {
      // The sign bit is moved to the bottom before planes are made.
      const unsigned v = kind.dtype == DType::kBytes ? coded : coded >> 1 | coded << 7;
      raw[i] = static_cast<std::byte>(v);
      continue;
    }
    unsigned v =
        kind.dtype == DType::kBF16 ? exponent(prng) * 256u | coded : coded * 256u | prng.byte();
    if (kind.dtype != DType::kI16) v = (v >> 1 | v << 15) & 0xFFFF;
    std::memcpy(&raw[2 * i], &v, 2);
  }
  return raw;
}

int log2_block(const Kind& kind) { return elem_bytes(kind.dtype) == 2 ? 12 : 13; }

Bytes make_frame(const Kind& kind, const Bytes& raw) {
  const Bytes frame = encode_or_fail(view(raw), {kind.dtype, Codec::kEntropy, log2_block(kind), 1});
  unsigned modes = 0;
  std::memcpy(&modes, frame.data() + 64 + 6, 2);
  EXPECT_EQ(modes, kind.plane_modes) << "not the kind of block that this is about";
  return frame;
}

Result<Bytes> restore(const Kind& kind, const Bytes& frame, std::size_t raw_bytes,
                      std::size_t misalign) {
  cuda::DecodeOptions options;
  options.dtype = kind.dtype;
  options.codec = Codec::kEntropy;
  options.log2_block = log2_block(kind);
  return gpu_decode(frame, raw_bytes, options, misalign);
}

TEST(GpuBytePlanes, AnyNumberOfTables) {
  for (const Kind& kind : kKinds)
    for (const unsigned num_rows : {1, 2, 3, 4, 5, 6, 15})
      for (const bool has_even : {false, true})
        for (const std::size_t missing : {0, 1, 2, 3, 5, 127, 128, 129, 200, 255, 256, 259}) {
          SCOPED_TRACE(std::string(dtype_name(kind.dtype)) + " rows " + std::to_string(num_rows) +
                       (has_even ? " and an even one" : "") + " missing " +
                       std::to_string(missing));
          // A plane of one byte is constant, and encoders leave low planes raw whose nibbles
          // by themselves promise little.
          if (num_rows == 1 && !has_even) continue;
          if (num_rows > 6 && kind.dtype == DType::kBF16) continue;
          const std::size_t n = (std::size_t{2} << log2_block(kind)) - missing;
          const Bytes raw = make_raw(kind, n, num_rows, has_even);
          const Bytes frame = make_frame(kind, raw);
          for (const std::size_t misalign : {0, 1}) {
            const auto restored = restore(kind, frame, raw.size(), misalign);
            ASSERT_TRUE(restored.ok()) << to_string(restored.status());
            ASSERT_TRUE(*restored == raw) << "misaligned by " << misalign;
          }
        }
}

TEST(GpuBytePlanes, DamageIsJudgedAsByTheCpu) {
  for (const Kind& kind : kKinds)
    for (const unsigned num_rows : {2, 6}) {
      const Bytes raw = make_raw(kind, std::size_t{1} << log2_block(kind), num_rows, true);
      const Bytes frame = make_frame(kind, raw);
      Prng prng(num_rows);
      // Where the first section is; half of the flips go there.
      const std::size_t head = kind.plane_modes == 2u << 2 ? 80 + raw.size() / 2 : 80;
      for (int i = 0; i < 60; ++i) {
        SCOPED_TRACE(std::string(dtype_name(kind.dtype)) + " rows " + std::to_string(num_rows) +
                     " try " + std::to_string(i));
        Bytes bad = frame;
        const std::size_t at =
            prng.one_in(2) ? 80 + prng.below(frame.size() - 80) : head + prng.below(300);
        bad[at] ^= std::byte{static_cast<unsigned char>(1u << prng.below(8))};
        if (i % 4 != 0) reseal(bad);
        Bytes expected(raw.size());
        const auto cpu = decode(view(bad), expected);
        const auto gpu = restore(kind, bad, raw.size(), 0);
        ASSERT_EQ(gpu.ok(), cpu.ok())
            << to_string(cpu.status()) << " / " << to_string(gpu.status());
        if (cpu.ok()) {
          ASSERT_TRUE(*gpu == expected);
        }
      }
    }
}

// Noise with just so many zeros, in blocks whose sample is no whole number of runs: whether coding
// pays is a matter of a few values, which both must count alike.
TEST(GpuBytePlanes, BlocksThatHardlyPay) {
  cuda::EncodeOptions options;
  options.dtype = DType::kBytes;
  options.codec = Codec::kEntropy;
  options.log2_block = 17;
  std::size_t num_raw = 0, num_coded = 0;
  for (const std::size_t n : {12300, 16390, 32778, 100010})
    for (std::uint32_t limit = 4300; limit < 5700; limit += 20) {
      SCOPED_TRACE(std::to_string(n) + " bytes, limit " + std::to_string(limit));
      Bytes raw(n);
      std::uint32_t state = 1;
      for (std::byte& byte : raw) {
        state = state * 1664525 + 1013904223;
        byte = static_cast<std::byte>((state >> 8 & 0xFFFF) < limit ? 0 : state >> 24);
      }
      const Bytes expected =
          encode_or_fail(view(raw), {options.dtype, options.codec, options.log2_block, 1});
      ++(expected.size() > n ? num_raw : num_coded);
      ASSERT_TRUE(gpu_encode(raw, options) == expected);
    }
  EXPECT_GT(num_raw, 0u);
  EXPECT_GT(num_coded, 0u);
}

}  // namespace
}  // namespace snug::test
