// codec/avx512_encode-inl.h - rANS encoding.
#pragma once
#include "codec/avx512_vectors-inl.h"

namespace snug::codec {
namespace {

// v / freq is the upper half of the 104-bit product with this, exactly, for any
// 32-bit v and freq from 2 to 256.
std::uint64_t reciprocal(std::uint32_t freq) {
  constexpr std::uint64_t kOne = std::uint64_t{1} << 52;
  if (freq <= 1) return kOne - 1;  // v - 1: make_code adds what is then missing
  return (kOne + freq - 1) / freq;
}

// freq in the low half, what push adds to v in the upper half: the start, and
// 256 - 1 more where the quotient of freq 1 comes out one short.
std::uint32_t encode_code(std::uint32_t start, std::uint32_t freq) {
  return (start + (freq == 1 ? kFreqTotal - 1 : 0)) << 16 | freq;
}

// encode_code and reciprocal for [first][second] of byte streams.
struct SecondCodes {
  alignas(64) std::uint32_t code[256];
  alignas(64) std::uint64_t rcp[256];

  explicit SecondCodes(const Model& model) {
    for (unsigned first = 0; first < 16; ++first) {
      std::uint16_t starts[16];
      model.second[first].starts(starts);
      for (unsigned s = 0; s < 16; ++s) {
        const std::uint32_t freq = model.second[first].freq[s];
        code[first * 16 + s] = encode_code(starts[s], freq);
        rcp[first * 16 + s] = reciprocal(freq);
      }
    }
  }
};
struct NoSecondCodes {
  explicit NoSecondCodes(const Model&) {}
};

template <bool kConditional>
struct Encoder {
  __m512i codes;    // encode_code of 16 symbols
  __m512i rcps[2];  // 64 bits each
  std::conditional_t<kConditional, SecondCodes, NoSecondCodes> second;
  const std::uint8_t* symbols;
  std::size_t groups_left;
  std::uint16_t* start;
  std::uint16_t* out;
  // Lanes in falling order (31 to 16, 15 to 0), so that words come out exactly
  // reversed and one pass at the end turns them round.
  __m512i x[2] = {set32(kStateLow), set32(kStateLow)};
  __m512i pairs[2];

  explicit Encoder(const EncodeStream& s)
      : second(*s.model),
        symbols(s.symbols),
        groups_left(s.num_bytes / kGroupBytes),
        start(s.words_end - s.num_bytes - kVec / 2),
        out(start) {
    alignas(64) std::uint32_t code[16];
    alignas(64) std::uint64_t rcp[16];
    std::uint16_t starts[16];
    s.model->first.starts(starts);
    for (int i = 0; i < 16; ++i) {
      code[i] = encode_code(starts[i], s.model->first.freq[i]);
      rcp[i] = reciprocal(s.model->first.freq[i]);
    }
    codes = load(code);
    rcps[0] = load(rcp);
    rcps[1] = load(rcp + 8);
  }

  struct Code {
    __m512i code, freq;
    __m512i rcp[2];  // of even and odd lanes
  };
  Code first_code(__m512i symbol) const {
    Code c;
    c.code = _mm512_permutexvar_epi32(symbol, codes);
    c.freq = _mm512_and_si512(c.code, set32(0x1FF));
    c.rcp[0] = _mm512_permutex2var_epi64(rcps[0], symbol, rcps[1]);
    c.rcp[1] = _mm512_permutex2var_epi64(rcps[0], _mm512_srli_epi64(symbol, 32), rcps[1]);
    return c;
  }
  Code second_code(__m512i first, __m512i symbol) const {
    if constexpr (kConditional) {
      const __m512i mask = set32(15);
      const __m512i row = _mm512_slli_epi32(_mm512_and_si512(first, mask), 4);
      const __m512i idx = _mm512_or_si512(row, _mm512_and_si512(symbol, mask));
      Code c;
      c.code = _mm512_i32gather_epi32(idx, second.code, 4);
      c.freq = _mm512_and_si512(c.code, set32(0x1FF));
      c.rcp[0] =
          _mm512_i64gather_epi64(_mm512_and_si512(idx, _mm512_set1_epi64(0xFF)), second.rcp, 8);
      c.rcp[1] = _mm512_i64gather_epi64(_mm512_srli_epi64(idx, 32), second.rcp, 8);
      return c;
    } else {
      return first_code(symbol);
    }
  }

  // v / freq; v - 1 where freq is 1, which has no 52-bit reciprocal.
  static __m512i divide(__m512i v, const Code& c) {
    const __m512i zero = _mm512_setzero_si512();
    const __m512i even =
        _mm512_madd52hi_epu64(zero, _mm512_and_si512(v, _mm512_set1_epi64(0xFFFFFFFF)), c.rcp[0]);
    const __m512i odd = _mm512_madd52hi_epu64(zero, _mm512_srli_epi64(v, 32), c.rcp[1]);
    return _mm512_or_si512(even, _mm512_slli_epi64(odd, 32));
  }

  // (v / freq << 8) + v % freq + start = v + (256 - freq) * (v / freq) + start.
  static __m512i push(__m512i v, const Code& c) {
    const __m512i gap = _mm512_sub_epi32(set32(kFreqTotal), c.freq);
    return _mm512_add_epi32(_mm512_add_epi32(v, _mm512_srli_epi32(c.code, 16)),
                            _mm512_mullo_epi32(divide(v, c), gap));
  }

  void take_group() {
    const __m512i reverse = _mm512_set_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const std::uint8_t* at = symbols + --groups_left * kGroupBytes;
    pairs[0] = _mm512_permutexvar_epi32(reverse, load(at + kVec));
    pairs[1] = _mm512_permutexvar_epi32(reverse, load(at));
  }

  void run_step(unsigned step) {
    Code first[2], last[2];
    __mmask16 full[2];
    for (int i = 0; i < 2; ++i) {
      const __m512i a = _mm512_srli_epi32(pairs[i], 8 * step),
                    b = _mm512_srli_epi32(pairs[i], 8 * step + 4);
      first[i] = first_code(a);
      last[i] = second_code(a, b);
      // x >= freq1 * freq2 << 16, shifted right so that 2^16 * 2^16 does not overflow.
      const __m512i product = _mm512_mullo_epi32(first[i].freq, last[i].freq);
      full[i] = _mm512_cmpge_epu32_mask(_mm512_srli_epi32(x[i], kStateBits), product);
    }
    const __m512i low = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(x[0])),
                                           _mm512_cvtepi32_epi16(x[1]), 1);
    const auto mask = static_cast<__mmask32>(full[0] | static_cast<std::uint32_t>(full[1]) << 16);
    store(out, _mm512_maskz_compress_epi16(mask, low));
    out += _mm_popcnt_u32(mask);
    for (int i = 0; i < 2; ++i) x[i] = _mm512_mask_srli_epi32(x[i], full[i], x[i], kStateBits);
    for (int i = 0; i < 2; ++i) x[i] = push(x[i], last[i]);
    for (int i = 0; i < 2; ++i) x[i] = push(x[i], first[i]);
  }

  void finish(EncodeStream& s) {
    while (groups_left > 0) {
      take_group();
#pragma GCC unroll 4
      for (unsigned i = 0; i < entropy::kSteps; ++i) run_step(entropy::kSteps - 1 - i);
    }
    const __m512i reverse = _mm512_set_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    store(s.states, _mm512_permutexvar_epi32(reverse, x[1]));
    store(s.states + 16, _mm512_permutexvar_epi32(reverse, x[0]));
    s.num_words = static_cast<std::size_t>(out - start);
    turn_round(start, s.num_words, s.words_end);
  }

  // Moves num_words words to end at words_end, in reversed order. Where target
  // and source overlap: swap from both ends first, then slide.
  static void turn_round(std::uint16_t* words, std::size_t num_words, std::uint16_t* words_end) {
    alignas(64) std::uint16_t idx[32];
    for (unsigned i = 0; i < 32; ++i) idx[i] = static_cast<std::uint16_t>(31 - i);
    const __m512i reverse = load(idx);
    if (words + num_words <= words_end - num_words) {
      std::size_t i = 0;
      for (; i + 32 <= num_words; i += 32)
        store(words_end - i - 32, _mm512_permutexvar_epi16(reverse, load(words + i)));
      for (; i < num_words; ++i) words_end[-static_cast<std::ptrdiff_t>(i) - 1] = words[i];
      return;
    }
    std::size_t a = 0, b = num_words;
    for (; a + 64 <= b; a += 32, b -= 32) {
      const __m512i front = load(words + a), back = load(words + b - 32);
      store(words + a, _mm512_permutexvar_epi16(reverse, back));
      store(words + b - 32, _mm512_permutexvar_epi16(reverse, front));
    }
    for (; a + 1 < b; ++a, --b) std::swap(words[a], words[b - 1]);
    std::memmove(words_end - num_words, words, num_words * 2);
  }
};

void rans_encode(EncodeStream* streams, int num_streams, entropy::Prefetch hint) {
  if (num_streams == 2 && !streams[0].model->conditional && !streams[1].model->conditional) {
    Encoder<false> a(streams[0]), b(streams[1]);
    Prefetcher prefetch(hint);
    while (a.groups_left > 0 && b.groups_left > 0) {
      prefetch.for_group();
      a.take_group();
      b.take_group();
#pragma GCC unroll 4
      for (unsigned i = 0; i < entropy::kSteps; ++i) {
        a.run_step(entropy::kSteps - 1 - i);
        b.run_step(entropy::kSteps - 1 - i);
      }
    }
    a.finish(streams[0]);
    b.finish(streams[1]);
    return;
  }
  for (int i = 0; i < num_streams; ++i)
    streams[i].model->conditional ? Encoder<true>(streams[i]).finish(streams[i])
                                  : Encoder<false>(streams[i]).finish(streams[i]);
}

}  // namespace
}  // namespace snug::codec
