// The reference: reads like docs/format.md, no intrinsics.
#include <cstring>

#include "codec/kernels.h"
#include "frame/checksum.h"

namespace snug::codec {
namespace {

using entropy::EncodeStream;
using entropy::kFreqBits;
using entropy::kFreqTotal;
using entropy::kGroupBytes;
using entropy::kLanes;
using entropy::kStateLow;
using entropy::kSteps;
using entropy::Model;
using entropy::Stream;

std::uint64_t checksum_terms(const std::uint8_t* bytes, std::size_t num_bytes) {
  return frame::checksum_terms(bytes, num_bytes, 0);
}

void finish_writes() {}

std::uint64_t copy_out(const std::uint8_t* src, std::size_t num_bytes, std::uint8_t* dst,
                       std::span<const std::uint8_t>) {
  std::memcpy(dst, src, num_bytes);
  return checksum_terms(src, num_bytes);
}

void split2(const std::uint8_t* src, std::size_t n, bool rotate, std::uint8_t* lo,
            std::uint8_t* hi) {
  for (std::size_t i = 0; i < n; ++i) {
    std::uint16_t v;
    std::memcpy(&v, src + 2 * i, 2);
    if (rotate) v = static_cast<std::uint16_t>(v << 1 | v >> 15);
    lo[i] = static_cast<std::uint8_t>(v);
    hi[i] = static_cast<std::uint8_t>(v >> 8);
  }
}

void merge2(const std::uint8_t* lo, const std::uint8_t* hi, std::size_t n, bool rotate,
            std::uint8_t* dst) {
  for (std::size_t i = 0; i < n; ++i) {
    auto v = static_cast<std::uint16_t>(lo[i] | hi[i] << 8);
    if (rotate) v = static_cast<std::uint16_t>(v >> 1 | v << 15);
    std::memcpy(dst + 2 * i, &v, 2);
  }
}

std::size_t map_palette(const std::uint8_t* plane, std::size_t n, const std::uint8_t lut[256],
                        std::uint8_t escape, std::uint8_t* nibbles, std::uint8_t* escapes) {
  std::size_t num_escapes = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint8_t idx = lut[plane[i]];
    if (idx == escape) escapes[num_escapes++] = plane[i];
    if (i % 2 == 0)
      nibbles[i / 2] = idx;
    else
      nibbles[i / 2] |= static_cast<std::uint8_t>(idx << 4);
  }
  return num_escapes;
}

std::size_t unmap_palette(const std::uint8_t* nibbles, std::size_t n,
                          const std::uint8_t palette[16], std::uint8_t escape,
                          const std::uint8_t* escapes, std::size_t num_escapes,
                          std::uint8_t* plane) {
  std::size_t used = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const unsigned idx = nibbles[i / 2] >> (i % 2 * 4) & 15;
    if (idx == escape) {
      plane[i] = used < num_escapes ? escapes[used] : 0;
      ++used;
    } else {
      plane[i] = palette[idx];
    }
  }
  return used;
}

void rans_encode_one(EncodeStream& stream) {
  const Model& model = *stream.model;
  std::uint16_t first_start[16], second_start[16][16];
  model.first.starts(first_start);
  for (unsigned s = 0; s < 16; ++s) model.table_for_second(s).starts(second_start[s]);

  std::uint16_t* word = stream.words_end;
  for (auto& state : stream.states) state = kStateLow;
  for (std::size_t group = stream.num_bytes / kGroupBytes; group-- > 0;) {
    for (int step = kSteps; step-- > 0;) {
      for (int lane = kLanes; lane-- > 0;) {
        const unsigned pair =
            stream.symbols[group * kGroupBytes + static_cast<std::size_t>(kSteps * lane + step)];
        const unsigned first = pair & 15, second = pair >> 4;
        const std::uint32_t f1 = model.first.freq[first];
        const std::uint32_t f2 = model.table_for_second(first).freq[second];
        std::uint32_t x = stream.states[lane];
        if (x >= std::uint64_t{f1} * f2 << 16) {
          *--word = static_cast<std::uint16_t>(x);
          x >>= 16;
        }
        x = (x / f2 << kFreqBits) + x % f2 + second_start[first][second];
        x = (x / f1 << kFreqBits) + x % f1 + first_start[first];
        stream.states[lane] = x;
      }
    }
  }
  stream.num_words = static_cast<std::size_t>(stream.words_end - word);
}

void rans_encode(EncodeStream* streams, int num_streams, entropy::Prefetch) {
  for (int i = 0; i < num_streams; ++i) rans_encode_one(streams[i]);
}

// What a slot of 256 says: which symbol, how frequent, and the slot's rank in it.
struct Slot {
  std::uint8_t symbol;
  std::uint8_t rank;
  std::uint16_t freq;
};

void fill_slots(const entropy::Table& table, Slot (&slots)[kFreqTotal]) {
  unsigned slot = 0;
  for (unsigned s = 0; s < 16; ++s)
    for (unsigned rank = 0; rank < table.freq[s]; ++rank)
      slots[slot++] = {static_cast<std::uint8_t>(s), static_cast<std::uint8_t>(rank),
                       table.freq[s]};
}

bool rans_decode_one(const Stream& stream) {
  Slot first_slots[kFreqTotal], second_slots[16][kFreqTotal];
  fill_slots(stream.model->first, first_slots);
  for (unsigned s = 0; s < 16; ++s)
    if (!stream.model->conditional)
      std::memcpy(second_slots[s], first_slots, sizeof first_slots);
    else if (stream.model->first.freq[s] != 0)
      fill_slots(stream.model->second[s], second_slots[s]);

  std::uint32_t x[kLanes];
  std::memcpy(x, stream.states, sizeof x);
  std::size_t word = 0;
  bool enough = true;
  for (std::size_t group = 0; group < stream.num_bytes / kGroupBytes; ++group) {
    for (int step = 0; step < kSteps; ++step) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const Slot a = first_slots[x[lane] % kFreqTotal];
        x[lane] = a.freq * (x[lane] >> kFreqBits) + a.rank;
        const Slot b = second_slots[a.symbol][x[lane] % kFreqTotal];
        x[lane] = b.freq * (x[lane] >> kFreqBits) + b.rank;
        stream.symbols[group * kGroupBytes + static_cast<std::size_t>(kSteps * lane + step)] =
            static_cast<std::uint8_t>(a.symbol | b.symbol << 4);
        if (x[lane] < kStateLow) {
          if (word < stream.num_words) {
            std::uint16_t next;
            std::memcpy(&next, stream.words + 2 * word++, 2);
            x[lane] = x[lane] << 16 | next;
          } else {
            enough = false;
          }
        }
      }
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) enough &= x[lane] == kStateLow;
  return enough && word == stream.num_words;
}

unsigned rans_decode(const Stream* streams, int num_streams) {
  unsigned intact = 0;
  for (int i = 0; i < num_streams; ++i) intact |= unsigned{rans_decode_one(streams[i])} << i;
  return intact;
}

// Group of 8 values in a 32-bit word: bits 4i..4i+2 are the palette index of
// value i; the sign of value i < 4 is bit 8i+7, of value 4+i bit 8i+3. On a GPU
// one PRMT then turns four indices into four bytes and one LOP3 adds the signs.
std::size_t fixed_pack(const std::uint8_t* high, std::size_t n, const std::uint8_t lut[128],
                       std::uint8_t* nibbles, std::uint8_t* escapes, std::size_t max_escapes) {
  std::size_t num_escapes = 0;
  for (std::size_t group = 0; group < (n + 7) / 8; ++group) {
    std::uint32_t word = 0;
    for (unsigned i = 0; i < 8; ++i) {
      const std::size_t pos = group * 8 + i;
      if (pos >= n) break;
      const std::uint8_t byte = high[pos];
      const std::uint32_t idx = lut[byte & 127];
      word |= idx << (4 * i);
      word |= std::uint32_t{byte} >> 7 << (i < 4 ? 8 * i + 7 : 8 * (i - 4) + 3);
      if (idx == 7) {
        const std::uint32_t escape = static_cast<std::uint32_t>(pos) | std::uint32_t{byte} << 24;
        if (num_escapes < max_escapes) std::memcpy(escapes + 4 * num_escapes, &escape, 4);
        ++num_escapes;
      }
    }
    std::memcpy(nibbles + 4 * group, &word, 4);
  }
  return num_escapes;
}

void fixed_unpack(const std::uint8_t* nibbles, std::size_t n, const std::uint8_t palette[8],
                  std::uint8_t* high) {
  for (std::size_t pos = 0; pos < n; ++pos) {
    std::uint32_t word;
    std::memcpy(&word, nibbles + pos / 8 * 4, 4);
    const unsigned i = pos % 8;
    const unsigned sign = word >> (i < 4 ? 8 * i + 7 : 8 * (i - 4) + 3) & 1;
    high[pos] = static_cast<std::uint8_t>(palette[word >> (4 * i) & 7] | sign << 7);
  }
}

}  // namespace

const Kernels kScalarKernels = {
    .name = "scalar",
    .checksum_terms = checksum_terms,
    .finish_writes = finish_writes,
    .copy_out = copy_out,
    .split2 = split2,
    .merge2 = merge2,
    .map_palette = map_palette,
    .unmap_palette = unmap_palette,
    .rans_encode = rans_encode,
    .rans_decode = rans_decode,
    .fixed_pack = fixed_pack,
    .fixed_unpack = fixed_unpack,
    .decode_bf16_pair = nullptr,
};

}  // namespace snug::codec
