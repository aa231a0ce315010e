// codec/avx512_decode-inl.h - rANS decoding, and a fused loop that decodes whole BF16 blocks.
#pragma once
#include "codec/avx512_planes-inl.h"

namespace snug::codec {
namespace {

// Second tables of byte streams: freq << 16 | rank << 8 | symbol for [first][slot].
struct SecondSlots {
  alignas(64) std::uint32_t slot[16][kFreqTotal];

  explicit SecondSlots(const Model& model) {
    for (unsigned first = 0; first < 16; ++first) {
      unsigned at = 0;
      for (unsigned s = 0; s < 16; ++s)
        for (unsigned rank = 0; rank < model.second[first].freq[s]; ++rank)
          slot[first][at++] =
              static_cast<std::uint32_t>(model.second[first].freq[s]) << 16 | rank << 8 | s;
    }
  }
};
struct NoSecondSlots {
  explicit NoSecondSlots(const Model&) {}
};

struct SymbolLut {
  alignas(64) std::uint8_t symbol[kFreqTotal];

  explicit SymbolLut(const Table& table) {
    unsigned at = 0;
    for (unsigned s = 0; s < 16; ++s)
      for (unsigned i = 0; i < table.freq[s]; ++i) symbol[at++] = static_cast<std::uint8_t>(s);
  }
};

template <bool kConditional>
struct Decoder {
  Lut256 symbols;
  __m512i gaps, starts;  // 256 - freq and start of 16 symbols
  std::conditional_t<kConditional, SecondSlots, NoSecondSlots> second;
  __m512i x[2];
  __m512i pairs[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  const std::uint8_t* word;
  const std::uint8_t* words_end;
  std::uint8_t* out;
  std::size_t groups_left;
  bool enough = true;

  explicit Decoder(const Stream& s)
      : symbols(SymbolLut(s.model->first).symbol),
        second(*s.model),
        x{load(s.states), load(s.states + 16)},
        word(s.words),
        words_end(s.words + 2 * s.num_words),
        out(s.symbols),
        groups_left(s.num_bytes / kGroupBytes) {
    alignas(64) std::uint32_t gap[16], start[16];
    std::uint16_t starts16[16];
    s.model->first.starts(starts16);
    for (int i = 0; i < 16; ++i) {
      gap[i] = kFreqTotal - s.model->first.freq[i];
      start[i] = starts16[i];
    }
    gaps = load(gap);
    starts = load(start);
  }

  bool can_run_fast() const {
    return groups_left > 0 && static_cast<std::size_t>(words_end - word) >= 2 * kGroupBytes;
  }

  // x = freq * (x >> 8) + slot - start = x - (256 - freq) * (x >> 8) - start.
  // Returns the symbol in the low byte of each lane, the other bytes arbitrary.
  __m512i first_symbol(__m512i& v) const {
    const __m512i symbol = symbols.lookup_low_bytes(v);
    const __m512i gap = _mm512_permutexvar_epi32(symbol, gaps);
    const __m512i start = _mm512_permutexvar_epi32(symbol, starts);
    v = _mm512_sub_epi32(_mm512_sub_epi32(v, start),
                         _mm512_mullo_epi32(_mm512_srli_epi32(v, 8), gap));
    return symbol;
  }

  __m512i second_symbol(__m512i& v, __m512i first) const {
    if constexpr (kConditional) {
      const __m512i row = _mm512_slli_epi32(_mm512_and_si512(first, set32(15)), 8);
      const __m512i idx = _mm512_or_si512(row, _mm512_and_si512(v, set32(kFreqTotal - 1)));
      const __m512i entry = _mm512_i32gather_epi32(idx, second.slot, 4);
      const __m512i freqs =
          _mm512_mullo_epi32(_mm512_srli_epi32(v, 8), _mm512_srli_epi32(entry, 16));
      v = _mm512_add_epi32(freqs, _mm512_and_si512(_mm512_srli_epi32(entry, 8), set32(0xFF)));
      return entry;
    } else {
      return first_symbol(v);
    }
  }

  template <bool kFast>
  void renormalize(__m512i& v) {
    const __mmask16 low = _mm512_cmplt_epu32_mask(v, set32(kStateLow));
    auto used = static_cast<std::size_t>(_mm_popcnt_u32(low));
    __m256i words;
    if (kFast) {
      words = load_half(word);
    } else {
      const auto left = static_cast<std::size_t>(words_end - word) / 2;
      words = _mm256_maskz_loadu_epi16(
          static_cast<__mmask16>(left >= 16 ? 0xFFFF : (1u << left) - 1), word);
      if (used > left) {
        enough = false;
        used = left;
      }
    }
    const __m512i next = _mm512_maskz_expand_epi32(low, _mm512_cvtepu16_epi32(words));
    v = _mm512_or_si512(_mm512_mask_slli_epi32(v, low, v, kStateBits), next);
    word += 2 * used;
  }

  // One pair of symbols from each lane. The two halves are written out side by
  // side: a step is one long chain of dependent instructions.
  template <bool kFast>
  void run_step() {
    __m512i symbol[2] = {first_symbol(x[0]), first_symbol(x[1])};
    for (int i = 0; i < 2; ++i) pairs[i] = _mm512_shrdi_epi32(pairs[i], symbol[i], 4);
    for (int i = 0; i < 2; ++i) symbol[i] = second_symbol(x[i], symbol[i]);
    for (int i = 0; i < 2; ++i) pairs[i] = _mm512_shrdi_epi32(pairs[i], symbol[i], 4);
    renormalize<kFast>(x[0]);
    renormalize<kFast>(x[1]);
  }

  // After four steps each lane has 8 symbols, which are neighbours: one 32-bit word.
  void put_group() {
    store(out, pairs[0]);
    store(out + kVec, pairs[1]);
    out += kGroupBytes;
    --groups_left;
  }

  template <bool kFast>
  void run_group() {
#pragma GCC unroll 4
    for (unsigned step = 0; step < entropy::kSteps; ++step) run_step<kFast>();
    put_group();
  }

  bool finish() {
    while (can_run_fast()) run_group<true>();
    while (groups_left > 0) run_group<false>();
    const __m512i low = set32(kStateLow);
    return enough && word == words_end && _mm512_cmpneq_epi32_mask(x[0], low) == 0 &&
           _mm512_cmpneq_epi32_mask(x[1], low) == 0;
  }
};

unsigned rans_decode(const Stream* streams, int num_streams) {
  unsigned intact = 0;
  for (int i = 0; i < num_streams; ++i) {
    const bool ok = streams[i].model->conditional ? Decoder<true>(streams[i]).finish()
                                                  : Decoder<false>(streams[i]).finish();
    intact |= unsigned{ok} << i;
  }
  return intact;
}

// ---- BF16 in one loop ----------------------------------------------------------

// Elements out of decoded symbols, 64 at a time.
struct Bf16Writer {
  const std::uint8_t* low;
  const std::uint8_t* escape_at;
  std::size_t escapes_left;
  bool enough = true;
  std::uint8_t* dst;
  __m512i palette, escape;

  explicit Bf16Writer(const Bf16Block& b)
      : low(b.low),
        escape_at(b.escapes),
        escapes_left(b.num_escapes),
        dst(b.dst),
        palette(
            _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b.palette)))),
        escape(set8(b.escape)) {}

  template <bool kStream>
  void put64(const std::uint8_t* nibbles, __m512i first, __m512i second) {
    const __m512i idx = unpack_nibbles(load_half(nibbles), set8(15));
    const __mmask64 is_escape = _mm512_cmpeq_epi8_mask(idx, escape);
    const std::uint64_t readable =
        _bzhi_u64(~std::uint64_t{0}, static_cast<unsigned>(escapes_left < 64 ? escapes_left : 64));
    auto used = static_cast<std::size_t>(_mm_popcnt_u64(is_escape));
    const __m512i next = _mm512_maskz_loadu_epi8(readable, escape_at);
    const __m512i high =
        _mm512_mask_expand_epi8(_mm512_shuffle_epi8(palette, idx), is_escape, next);
    if (used > escapes_left) {
      enough = false;
      used = escapes_left;
    }
    escape_at += used;
    escapes_left -= used;
    const __m512i l = load(low);
    const __m512i a = _mm512_permutex2var_epi8(l, first, high),
                  b = _mm512_permutex2var_epi8(l, second, high);
    put_elements<kStream>(dst, _mm512_shrdi_epi16(a, a, 1));
    put_elements<kStream>(dst + kVec, _mm512_shrdi_epi16(b, b, 1));
    low += kVec;
    dst += 2 * kVec;
  }
};

template <bool kStream>
unsigned decode_bf16_pair_impl(const Bf16Block (&blocks)[2], entropy::Prefetch hint) {
  Decoder<false> a(blocks[0].stream), b(blocks[1].stream);
  Bf16Writer write_a(blocks[0]), write_b(blocks[1]);
  const MergeIdx idx;
  Prefetcher prefetch(hint);
  // The fused loop handles whole groups only, not the tail of either block.
  std::size_t fused = std::min(blocks[0].num_elems, blocks[1].num_elems) / (2 * kGroupBytes);
  const std::uint8_t *from_a = blocks[0].stream.symbols, *from_b = blocks[1].stream.symbols;
  std::size_t done = 0;
  for (; done < fused && a.can_run_fast() && b.can_run_fast(); ++done) {
    prefetch.for_group();
    // Elements are written one group behind the symbols.
    const bool write = done > 0;
#pragma GCC unroll 4
    for (std::size_t step = 0; step < entropy::kSteps; ++step) {
      a.run_step<true>();
      if (write) write_a.template put64<kStream>(from_a + 32 * step, idx.first, idx.second);
      b.run_step<true>();
      if (write) write_b.template put64<kStream>(from_b + 32 * step, idx.first, idx.second);
    }
    a.put_group();
    b.put_group();
    if (write) {
      from_a += kGroupBytes;
      from_b += kGroupBytes;
    }
  }
  const bool a_intact = a.finish(), b_intact = b.finish();
  const auto write_rest = [](const Bf16Block& block, Bf16Writer& writer) {
    const auto written = static_cast<std::size_t>(writer.low - block.low);
    std::size_t used = 0;
    alignas(64) std::uint8_t high[4096];
    for (std::size_t i = written; i < block.num_elems; i += sizeof high) {
      const std::size_t n = std::min(block.num_elems - i, sizeof high);
      const std::size_t seen = std::min(used, writer.escapes_left);
      used += unmap_palette(block.stream.symbols + i / 2, n, block.palette, block.escape,
                            writer.escape_at + seen, writer.escapes_left - seen, high);
      merge2(block.low + i, high, n, true, block.dst + 2 * i);
    }
    return writer.enough && used == writer.escapes_left;
  };
  const bool a_ok = write_rest(blocks[0], write_a) && a_intact;
  const bool b_ok = write_rest(blocks[1], write_b) && b_intact;
  return unsigned{a_ok} | unsigned{b_ok} << 1;
}

unsigned decode_bf16_pair(const Bf16Block (&blocks)[2], entropy::Prefetch prefetch) {
  return is_aligned(blocks[0].dst) && is_aligned(blocks[1].dst)
             ? decode_bf16_pair_impl<true>(blocks, prefetch)
             : decode_bf16_pair_impl<false>(blocks, prefetch);
}

}  // namespace
}  // namespace snug::codec
