// codec/entropy/rans.h - 32 interleaved rANS states over pairs of 4-bit symbols.
//
// A symbol byte holds two symbols: the low nibble comes first. Each has a frequency out of 256, so
// that a table is 256 entries: four AVX-512 registers or 1 KiB of a GPU's shared memory. One 16-bit
// renormalisation serves both symbols of a pair. Symbol bytes come in groups of 128: byte 4*lane +
// step of a group belongs to that lane, so that one lane's four steps are neighbours.
#pragma once
#include <cstddef>
#include <cstdint>

namespace snug::codec::entropy {

inline constexpr int kLanes = 32;
inline constexpr int kSteps = 4;                             // steps a group
inline constexpr std::size_t kGroupBytes = kLanes * kSteps;  // symbol bytes a group
inline constexpr std::uint32_t kStateLow = 1u << 16;         // states live in [2^16, 2^32)
inline constexpr int kFreqBits = 8;
inline constexpr std::uint32_t kFreqTotal = 1u << kFreqBits;

// Frequencies of the 16 symbols; they add up to 256.
struct Table {
  std::uint16_t freq[16] = {};

  void starts(std::uint16_t (&start)[16]) const noexcept {
    std::uint16_t sum = 0;
    for (int s = 0; s < 16; ++s) {
      start[s] = sum;
      sum = static_cast<std::uint16_t>(sum + freq[s]);
    }
  }
};

// Palette streams use one table for both symbols of a pair. Byte streams use
// `first` for the first symbol and second[first symbol] for the other.
struct Model {
  bool conditional = false;
  Table first;
  Table second[16];

  const Table& table_for_second(unsigned first_symbol) const noexcept {
    return conditional ? second[first_symbol] : first;
  }
};

// One stream to decode; `symbols` receives num_bytes, a multiple of 128. Intact means: all words
// used, none missing, every lane back at kStateLow.
struct Stream {
  const std::uint8_t* words;  // 16-bit words at any address
  std::size_t num_words;
  const std::uint32_t* states;  // 32
  const Model* model;
  std::uint8_t* symbols;
  std::size_t num_bytes;
};

// One stream to encode: num_bytes (a multiple of 128) symbol bytes, taken from
// the last to the first. Words are written downwards from words_end: at most
// num_bytes of them, and slack below that. Every symbol in use must have a
// frequency. A kernel sets num_words and the 32 states a decoder starts from.
struct EncodeStream {
  const std::uint8_t* symbols;
  std::size_t num_bytes;
  const Model* model;
  std::uint16_t* words_end;
  std::size_t num_words;
  std::uint32_t states[kLanes];
};

// Memory that will be read soon: a hint to fetch `bytes_per_symbol_byte` of it
// for each symbol byte of the first stream while arithmetic keeps the core busy.
struct Prefetch {
  const std::uint8_t* next = nullptr;
  std::size_t bytes_per_symbol_byte = 0;
};

}  // namespace snug::codec::entropy
