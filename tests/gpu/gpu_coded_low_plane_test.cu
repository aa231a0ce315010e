// BF16 blocks whose low bytes are coded or constant, between others whose low bytes are raw, as in
// gradients: the GPU writes what the CPU writes.
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>

#include "frame/frame.h"
#include "gpu/gpu_buffers.h"
#include "support/inputs.h"
#include "support/prng.h"

namespace snug::test {
namespace {

// What the low bytes of a block are.
enum class Low { kNoise, kFewBits, kSkewed, kZero, kNearlyNoise };
constexpr Low kLows[] = {Low::kNoise,  Low::kFewBits, Low::kNoise,
                         Low::kSkewed, Low::kZero,    Low::kNearlyNoise};

unsigned low_byte(Low low, Prng& prng) {
  switch (low) {
    case Low::kFewBits: return prng.byte() & 0xC1u;
    case Low::kSkewed: return prng.one_in(8) ? prng.byte() : 0x5Au;
    case Low::kZero: return 0;
    case Low::kNearlyNoise: return prng.one_in(6) ? 0x42u : prng.byte();
    default: return prng.byte();
  }
}

// A few exponents and escapes, or so many that a palette hardly pays.
unsigned exponent(bool wide, Prng& prng) {
  if (prng.one_in(wide ? 3 : 400)) return prng.byte();
  return static_cast<unsigned>(120 - __builtin_ctzll(prng.next() | 1u << 7));
}

Bytes make_raw(std::size_t n, int log2_block, bool wide) {
  Prng prng(n + static_cast<unsigned>(log2_block));
  Bytes raw(2 * n);
  for (std::size_t i = 0; i < n; ++i) {
    const Low low = kLows[(i >> log2_block) % std::size(kLows)];
    unsigned v = exponent(wide, prng) * 256 | low_byte(low, prng);
    v = (v >> 1 | v << 15) & 0xFFFF;  // the sign bit back to the top
    std::memcpy(&raw[2 * i], &v, 2);
  }
  return raw;
}

// The plane modes of all blocks of a frame.
std::set<unsigned> modes_of(const Bytes& coded, std::size_t num_blocks) {
  std::set<unsigned> all;
  const auto* index = reinterpret_cast<const std::uint8_t*>(coded.data()) + frame::kHeaderBytes;
  for (std::size_t i = 0; i < num_blocks; ++i)
    all.insert(frame::read_entry(index + i * frame::kEntryBytes).plane_modes);
  return all;
}

void check(std::size_t n, int log2_block, bool wide) {
  const Bytes raw = make_raw(n, log2_block, wide);
  const Bytes expected = encode_or_fail(view(raw), {DType::kBF16, Codec::kEntropy, log2_block, 1});
  if (!wide) {
    const auto modes = modes_of(expected, std::size(kLows));
    for (const unsigned kind : {3u << 2, 3u << 2 | 2, 3u << 2 | 1})
      EXPECT_TRUE(modes.contains(kind)) << "no block has modes " << kind;
  }
  cuda::EncodeOptions options;
  options.dtype = DType::kBF16;
  options.codec = Codec::kEntropy;
  options.log2_block = log2_block;
  for (const int max_sms : {0, 1})
    for (const std::size_t misalign : {std::size_t{0}, std::size_t{2}}) {
      SCOPED_TRACE("n " + std::to_string(n) + " log2_block " + std::to_string(log2_block) +
                   " max_sms " + std::to_string(max_sms) + " misalign " + std::to_string(misalign));
      options.max_sms = max_sms;
      EXPECT_TRUE(gpu_encode(raw, options, misalign) == expected);
    }
}

TEST(GpuCodedLowPlane, BetweenRawOnes) {
  for (const int log2_block : {12, 13, 14})
    for (const std::size_t rest : {0u, 1u, 130u, 777u, 3000u})
      for (const bool wide : {false, true})
        check((std::size_t{12} << log2_block) + rest, log2_block, wide);
}

}  // namespace
}  // namespace snug::test
