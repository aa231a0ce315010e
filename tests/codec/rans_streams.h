// codec/rans_streams.h - models, symbols and streams to test entropy coders with.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/kernels.h"
#include "support/guarded_buffer.h"
#include "support/prng.h"

namespace snug::test {

// Symbol bytes of streams worth testing; each a multiple of a group.
inline constexpr std::size_t kStreamLengths[] = {128,  256,  384,  512,        640,
                                                 1024, 1152, 4096, 8192 + 128, 65536};

// A stream with all that its decoder needs.
struct Encoded {
  codec::entropy::Model model;
  std::vector<std::uint8_t> symbols;
  std::uint32_t states[codec::entropy::kLanes] = {};
  std::vector<std::uint8_t> words;  // little-endian, 16 bits each

  codec::entropy::Stream stream(const std::uint8_t* words_at, std::uint8_t* out) const {
    return {words_at, words.size() / 2, states, &model, out, symbols.size()};
  }
};

// One stream to encode, in memory that has exactly the promised room.
struct Encoding {
  explicit Encoding(const Encoded& e);
  void store(Encoded& e) const;

  GuardedBuffer symbols;
  std::vector<std::uint16_t> room;
  codec::entropy::EncodeStream stream;
};

// `live` symbols share 256; few, many and lopsided tables all occur.
codec::entropy::Table random_table(int live, Prng& prng);

// Symbols as frequent as the model says, or, `flat`, all equally frequent: the
// costliest ones then need a word nearly every time.
std::vector<std::uint8_t> draw_symbols(const codec::entropy::Model& model, std::size_t num_bytes,
                                       bool flat, Prng& prng);

// Drawn from a random model and encoded by the scalar kernels.
Encoded random_stream(bool conditional, std::size_t num_bytes, bool flat, Prng& prng);
void encode_scalar(Encoded& e);

// Changes something that the format's own checks cannot see.
void damage(Encoded& e, Prng& prng);

}  // namespace snug::test
