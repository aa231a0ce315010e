// AVX-512 kernels (F, BW, VL, DQ, VBMI, VBMI2, IFMA: Ice Lake and Zen 4 onwards).
//
// Tables live in registers: a 256-entry symbol table is two two-register byte
// permutes, 16-entry frequency tables are one permute. No gathers on the BF16
// path; gathers are what binds other rANS decoders.
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "codec/kernels.h"
#include "frame/checksum.h"

namespace snug::codec {
namespace {

using entropy::EncodeStream;
using entropy::kFreqTotal;
using entropy::kGroupBytes;
using entropy::kStateLow;
using entropy::Model;
using entropy::Stream;
using entropy::Table;

constexpr std::size_t kVec = 64;

__m512i load(const void* p) { return _mm512_loadu_si512(p); }
void store(void* p, __m512i v) { _mm512_storeu_si512(p, v); }
__m256i load_half(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
__m512i set8(unsigned char v) { return _mm512_set1_epi8(static_cast<char>(v)); }
__m512i set32(std::uint32_t v) { return _mm512_set1_epi32(static_cast<int>(v)); }

// ---- checksum ----------------------------------------------------------------

// Running sum of checksum terms, 16 words at a time.
struct ChecksumLanes {
  // Multipliers of even and odd words, one in each 64-bit lane, and their sums.
  __m512i even, odd;
  __m512i sum_even = _mm512_setzero_si512(), sum_odd = sum_even;

  explicit ChecksumLanes(std::size_t first_word) {
    alignas(64) std::uint64_t e[8], o[8];
    for (std::uint32_t i = 0; i < 8; ++i) {
      const std::uint32_t word = static_cast<std::uint32_t>(first_word) + 2 * i;
      e[i] = static_cast<std::uint32_t>(word * frame::kChecksumStep + frame::kChecksumStart);
      o[i] = static_cast<std::uint32_t>((word + 1) * frame::kChecksumStep + frame::kChecksumStart);
    }
    even = load(e);
    odd = load(o);
  }
  void add(__m512i words) {
    const __m512i one = set32(1), step = set32(16 * frame::kChecksumStep);
    sum_even = _mm512_add_epi64(sum_even, _mm512_mul_epu32(words, _mm512_or_si512(even, one)));
    sum_odd = _mm512_add_epi64(sum_odd, _mm512_mul_epu32(_mm512_srli_epi64(words, 32), _mm512_or_si512(odd, one)));
    even = _mm512_add_epi32(even, step);
    odd = _mm512_add_epi32(odd, step);
  }
  std::uint64_t total() const {
    // Not _mm512_reduce_add_epi64: GCC's adds signed numbers, which overflow.
    alignas(64) std::uint64_t lanes[8];
    store(lanes, _mm512_add_epi64(sum_even, sum_odd));
    std::uint64_t sum = 0;
    for (const std::uint64_t lane : lanes) sum += lane;
    return sum;
  }
};

std::uint64_t checksum_terms(const std::uint8_t* bytes, std::size_t num_bytes) {
  ChecksumLanes lanes(0);
  std::size_t i = 0;
  for (; i + kVec <= num_bytes; i += kVec) lanes.add(load(bytes + i));
  return lanes.total() + frame::checksum_terms(bytes + i, num_bytes - i, i / 4);
}

// ---- planes --------------------------------------------------------------------

// Byte positions 0, 2, 4, ... of two registers; + 1 for the odd ones.
__m512i even_bytes() {
  alignas(64) std::uint8_t idx[64];
  for (unsigned i = 0; i < 64; ++i) idx[i] = static_cast<std::uint8_t>(2 * i);
  return load(idx);
}

// Stores that bypass the caches save reading the lines first: 1.5x on results
// larger than the cache, where most blocks end. They need aligned addresses.
bool is_aligned(const std::uint8_t* p) { return reinterpret_cast<std::uintptr_t>(p) % kVec == 0; }

void put_past_caches(std::uint8_t* at, __m512i v) { _mm512_stream_si512(reinterpret_cast<__m512i*>(at), v); }

void finish_writes() { _mm_sfence(); }

std::uint64_t copy_out(const std::uint8_t* src, std::size_t num_bytes, std::uint8_t* dst,
                       std::span<const std::uint8_t> next) {
  const std::size_t head = (kVec - reinterpret_cast<std::uintptr_t>(dst) % kVec) % kVec;
  if (head % 4 != 0 || head > num_bytes) {
    std::memcpy(dst, src, num_bytes);
    return checksum_terms(src, num_bytes);
  }
  std::memcpy(dst, src, head);
  ChecksumLanes lanes(head / 4);
  const std::uint8_t *fetch = next.data(), *fetch_end = fetch + next.size();
  std::size_t i = head;
  for (; i + kVec <= num_bytes; i += kVec) {
    const __m512i bytes = load(src + i);
    put_past_caches(dst + i, bytes);
    lanes.add(bytes);
    for (int line = 0; line < 2 && fetch < fetch_end; ++line, fetch += kVec) _mm_prefetch(fetch, _MM_HINT_T1);
  }
  std::memcpy(dst + i, src + i, num_bytes - i);
  return lanes.total() + frame::checksum_terms(src, head, 0) +
         frame::checksum_terms(src + i, num_bytes - i, i / 4);
}

template <bool kRotate>
void split2_impl(const std::uint8_t* src, std::size_t n, std::uint8_t* lo, std::uint8_t* hi) {
  const __m512i even = even_bytes(), odd = _mm512_add_epi8(even, set8(1));
  std::size_t i = 0;
  for (; i + kVec <= n; i += kVec) {
    __m512i a = load(src + 2 * i), b = load(src + 2 * i + kVec);
    if (kRotate) {
      a = _mm512_shldi_epi16(a, a, 1);
      b = _mm512_shldi_epi16(b, b, 1);
    }
    store(lo + i, _mm512_permutex2var_epi8(a, even, b));
    store(hi + i, _mm512_permutex2var_epi8(a, odd, b));
  }
  kScalarKernels.split2(src + 2 * i, n - i, kRotate, lo + i, hi + i);
}

void split2(const std::uint8_t* src, std::size_t n, bool rotate, std::uint8_t* lo, std::uint8_t* hi) {
  rotate ? split2_impl<true>(src, n, lo, hi) : split2_impl<false>(src, n, lo, hi);
}

// Byte positions 0, 64, 1, 65, ...: one of the low plane, one of the high plane.
struct MergeIdx {
  __m512i first, second;

  MergeIdx() {
    alignas(64) std::uint8_t idx[64];
    for (unsigned i = 0; i < 64; ++i) idx[i] = static_cast<std::uint8_t>(i / 2 + i % 2 * 64);
    first = load(idx);
    second = _mm512_add_epi8(first, set8(32));
  }
};

template <bool kStream>
void put_elements(std::uint8_t* at, __m512i v) {
  kStream ? put_past_caches(at, v) : store(at, v);
}

template <bool kRotate, bool kStream>
void merge2_impl(const std::uint8_t* lo, const std::uint8_t* hi, std::size_t n, std::uint8_t* dst) {
  const MergeIdx idx;
  std::size_t i = 0;
  for (; i + kVec <= n; i += kVec) {
    const __m512i l = load(lo + i), h = load(hi + i);
    __m512i a = _mm512_permutex2var_epi8(l, idx.first, h), b = _mm512_permutex2var_epi8(l, idx.second, h);
    if (kRotate) {
      a = _mm512_shrdi_epi16(a, a, 1);
      b = _mm512_shrdi_epi16(b, b, 1);
    }
    put_elements<kStream>(dst + 2 * i, a);
    put_elements<kStream>(dst + 2 * i + kVec, b);
  }
  kScalarKernels.merge2(lo + i, hi + i, n - i, kRotate, dst + 2 * i);
}

void merge2(const std::uint8_t* lo, const std::uint8_t* hi, std::size_t n, bool rotate, std::uint8_t* dst) {
  constexpr std::size_t kStreamFrom = 4096;
  if (n >= kStreamFrom && is_aligned(dst))
    rotate ? merge2_impl<true, true>(lo, hi, n, dst) : merge2_impl<false, true>(lo, hi, n, dst);
  else
    rotate ? merge2_impl<true, false>(lo, hi, n, dst) : merge2_impl<false, false>(lo, hi, n, dst);
}

// ---- palettes ------------------------------------------------------------------

// A table of 256 bytes in four registers.
struct Lut256 {
  __m512i part[4];

  explicit Lut256(const std::uint8_t* bytes) {
    for (int i = 0; i < 4; ++i) part[i] = load(bytes + 64 * i);
  }
  __m512i lookup_bytes(__m512i idx) const {
    const __m512i low = _mm512_permutex2var_epi8(part[0], idx, part[1]);
    const __m512i high = _mm512_permutex2var_epi8(part[2], idx, part[3]);
    return _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(idx), high);
  }
  // Looks up the low byte of each 32-bit lane; the other bytes are arbitrary.
  __m512i lookup_low_bytes(__m512i idx) const {
    const __m512i low = _mm512_permutex2var_epi8(part[0], idx, part[1]);
    const __m512i high = _mm512_permutex2var_epi8(part[2], idx, part[3]);
    return _mm512_mask_mov_epi32(low, _mm512_test_epi32_mask(idx, set32(0x80)), high);
  }
};

// 64 bytes below 16 to 32 bytes, first of a pair in the low nibble.
__m256i pack_nibbles(__m512i bytes) {
  return _mm512_cvtepi16_epi8(_mm512_maddubs_epi16(bytes, _mm512_set1_epi16(0x1001)));
}

// 32 bytes to 64 bytes holding one nibble each, reduced by `mask`.
__m512i unpack_nibbles(__m256i packed, __m512i mask) {
  const __m512i wide = _mm512_cvtepu8_epi16(packed);
  return _mm512_and_si512(_mm512_or_si512(wide, _mm512_slli_epi16(wide, 4)), mask);
}

std::size_t map_palette(const std::uint8_t* plane, std::size_t n, const std::uint8_t lut[256],
                        std::uint8_t escape, std::uint8_t* nibbles, std::uint8_t* escapes) {
  const Lut256 table(lut);
  const __m512i esc = set8(escape);
  std::uint8_t* out = escapes;
  std::size_t i = 0;
  for (; i + kVec <= n; i += kVec) {
    const __m512i bytes = load(plane + i);
    const __m512i idx = table.lookup_bytes(bytes);
    const __mmask64 is_escape = _mm512_cmpeq_epi8_mask(idx, esc);
    // Compress in a register: compressing stores are microcoded on Zen 4.
    store(out, _mm512_maskz_compress_epi8(is_escape, bytes));
    out += _mm_popcnt_u64(is_escape);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(nibbles + i / 2), pack_nibbles(idx));
  }
  out += kScalarKernels.map_palette(plane + i, n - i, lut, escape, nibbles + i / 2, out);
  return static_cast<std::size_t>(out - escapes);
}

std::size_t unmap_palette(const std::uint8_t* nibbles, std::size_t n, const std::uint8_t palette[16],
                          std::uint8_t escape, const std::uint8_t* escapes, std::size_t num_escapes,
                          std::uint8_t* plane) {
  const __m512i values = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(palette)));
  const __m512i esc = set8(escape), mask = set8(15);
  std::size_t used = 0, i = 0;
  for (; i + kVec <= n; i += kVec) {
    const __m512i idx = unpack_nibbles(load_half(nibbles + i / 2), mask);
    const __mmask64 is_escape = _mm512_cmpeq_epi8_mask(idx, esc);
    __m512i next;
    if (used + kVec <= num_escapes) {
      next = load(escapes + used);
    } else {
      const std::size_t left = used < num_escapes ? num_escapes - used : 0;
      next = _mm512_maskz_loadu_epi8((std::uint64_t{1} << left) - 1, escapes + (left ? used : 0));
    }
    store(plane + i, _mm512_mask_expand_epi8(_mm512_shuffle_epi8(values, idx), is_escape, next));
    used += static_cast<std::size_t>(_mm_popcnt_u64(is_escape));
  }
  if (i == n) return used;
  const std::size_t seen = used < num_escapes ? used : num_escapes;
  return used + kScalarKernels.unmap_palette(nibbles + i / 2, n - i, palette, escape, escapes + seen,
                                             num_escapes - seen, plane + i);
}

// ---- rANS: what both directions need ------------------------------------------

constexpr int kStateBits = 16;

struct Prefetcher {
  const std::uint8_t* next;
  std::size_t bytes_per_group;

  explicit Prefetcher(entropy::Prefetch p)
      : next(p.next), bytes_per_group(p.next != nullptr ? p.bytes_per_symbol_byte * kGroupBytes : 0) {}

  void for_group() {
    for (std::size_t i = 0; i < bytes_per_group; i += kVec) _mm_prefetch(next + i, _MM_HINT_T1);
    next += bytes_per_group;
  }
};

// ---- rANS decoding -------------------------------------------------------------

// Second tables of byte streams: freq << 16 | rank << 8 | symbol for [first][slot].
struct SecondSlots {
  alignas(64) std::uint32_t slot[16][kFreqTotal];

  explicit SecondSlots(const Model& model) {
    for (unsigned first = 0; first < 16; ++first) {
      unsigned at = 0;
      for (unsigned s = 0; s < 16; ++s)
        for (unsigned rank = 0; rank < model.second[first].freq[s]; ++rank)
          slot[first][at++] = static_cast<std::uint32_t>(model.second[first].freq[s]) << 16 | rank << 8 | s;
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
    v = _mm512_sub_epi32(_mm512_sub_epi32(v, start), _mm512_mullo_epi32(_mm512_srli_epi32(v, 8), gap));
    return symbol;
  }

  __m512i second_symbol(__m512i& v, __m512i first) const {
    if constexpr (kConditional) {
      const __m512i row = _mm512_slli_epi32(_mm512_and_si512(first, set32(15)), 8);
      const __m512i idx = _mm512_or_si512(row, _mm512_and_si512(v, set32(kFreqTotal - 1)));
      const __m512i entry = _mm512_i32gather_epi32(idx, second.slot, 4);
      const __m512i freqs = _mm512_mullo_epi32(_mm512_srli_epi32(v, 8), _mm512_srli_epi32(entry, 16));
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
      words = _mm256_maskz_loadu_epi16(static_cast<__mmask16>(left >= 16 ? 0xFFFF : (1u << left) - 1), word);
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
      : low(b.low), escape_at(b.escapes), escapes_left(b.num_escapes), dst(b.dst),
        palette(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b.palette)))),
        escape(set8(b.escape)) {}

  template <bool kStream>
  void put64(const std::uint8_t* nibbles, __m512i first, __m512i second) {
    const __m512i idx = unpack_nibbles(load_half(nibbles), set8(15));
    const __mmask64 is_escape = _mm512_cmpeq_epi8_mask(idx, escape);
    const std::uint64_t readable = _bzhi_u64(~std::uint64_t{0}, static_cast<unsigned>(escapes_left < 64 ? escapes_left : 64));
    auto used = static_cast<std::size_t>(_mm_popcnt_u64(is_escape));
    const __m512i next = _mm512_maskz_loadu_epi8(readable, escape_at);
    const __m512i high = _mm512_mask_expand_epi8(_mm512_shuffle_epi8(palette, idx), is_escape, next);
    if (used > escapes_left) {
      enough = false;
      used = escapes_left;
    }
    escape_at += used;
    escapes_left -= used;
    const __m512i l = load(low);
    const __m512i a = _mm512_permutex2var_epi8(l, first, high), b = _mm512_permutex2var_epi8(l, second, high);
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
  // The fused loop leaves whole groups only: no tail of either block in it.
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
  return is_aligned(blocks[0].dst) && is_aligned(blocks[1].dst) ? decode_bf16_pair_impl<true>(blocks, prefetch)
                                                                : decode_bf16_pair_impl<false>(blocks, prefetch);
}

// ---- rANS encoding -------------------------------------------------------------

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
      c.rcp[0] = _mm512_i64gather_epi64(_mm512_and_si512(idx, _mm512_set1_epi64(0xFF)), second.rcp, 8);
      c.rcp[1] = _mm512_i64gather_epi64(_mm512_srli_epi64(idx, 32), second.rcp, 8);
      return c;
    } else {
      return first_code(symbol);
    }
  }

  // v / freq; v - 1 where freq is 1, which has no 52-bit reciprocal.
  static __m512i divide(__m512i v, const Code& c) {
    const __m512i zero = _mm512_setzero_si512();
    const __m512i even = _mm512_madd52hi_epu64(zero, _mm512_and_si512(v, _mm512_set1_epi64(0xFFFFFFFF)), c.rcp[0]);
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
      const __m512i a = _mm512_srli_epi32(pairs[i], 8 * step), b = _mm512_srli_epi32(pairs[i], 8 * step + 4);
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

// ---- fixed ---------------------------------------------------------------------

std::size_t fixed_pack(const std::uint8_t* high, std::size_t n, const std::uint8_t lut[128],
                       std::uint8_t* nibbles, std::uint8_t* escapes, std::size_t max_escapes) {
  const __m512i low_half = load(lut), high_half = load(lut + 64);
  const __m512i seven = set8(7), sign = set8(0x80);
  std::size_t num_escapes = 0, i = 0;
  for (; i + kVec <= n; i += kVec) {
    const __m512i bytes = load(high + i);
    const __m512i idx = _mm512_permutex2var_epi8(low_half, bytes, high_half);  // ignores the sign bit
    const __m512i signs = _mm512_and_si512(bytes, sign);
    // Bits 7 of bytes 4..7 of a group go below those of bytes 0..3.
    const __m256i sign_bits = _mm512_cvtepi64_epi32(_mm512_or_si512(signs, _mm512_srli_epi64(signs, 36)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(nibbles + i / 2),
                        _mm256_or_si256(pack_nibbles(idx), sign_bits));
    for (std::uint64_t left = _mm512_cmpeq_epi8_mask(idx, seven); left != 0; left &= left - 1) {
      const std::size_t pos = i + static_cast<std::size_t>(_tzcnt_u64(left));
      const std::uint32_t escape = static_cast<std::uint32_t>(pos) | std::uint32_t{high[pos]} << 24;
      if (num_escapes < max_escapes) std::memcpy(escapes + 4 * num_escapes, &escape, 4);
      ++num_escapes;
    }
  }
  // The scalar tail numbers positions from its own start.
  const std::size_t seen = num_escapes < max_escapes ? num_escapes : max_escapes;
  const std::size_t more = kScalarKernels.fixed_pack(high + i, n - i, lut, nibbles + i / 2,
                                                     escapes + 4 * seen, max_escapes - seen);
  for (std::size_t e = seen; e < seen + more && e < max_escapes; ++e) {
    std::uint32_t escape;
    std::memcpy(&escape, escapes + 4 * e, 4);
    escape += static_cast<std::uint32_t>(i);
    std::memcpy(escapes + 4 * e, &escape, 4);
  }
  return num_escapes + more;
}

void fixed_unpack(const std::uint8_t* nibbles, std::size_t n, const std::uint8_t palette[8],
                  std::uint8_t* high) {
  const __m512i values = _mm512_broadcast_i32x4(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(palette)));
  const __m512i seven = set8(7), sign = set8(0x80);
  std::size_t i = 0;
  for (; i + kVec <= n; i += kVec) {
    const __m256i packed = load_half(nibbles + i / 2);
    const __m512i wide = _mm512_cvtepu32_epi64(packed);
    const __m512i signs = _mm512_and_si512(_mm512_or_si512(wide, _mm512_slli_epi64(wide, 36)), sign);
    const __m512i idx = unpack_nibbles(packed, seven);
    store(high + i, _mm512_or_si512(_mm512_shuffle_epi8(values, idx), signs));
  }
  kScalarKernels.fixed_unpack(nibbles + i / 2, n - i, palette, high + i);
}

const Kernels kTable = {
    .name = "avx512",
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
    .decode_bf16_pair = decode_bf16_pair,
};

}  // namespace

const Kernels* avx512_kernels() noexcept {
  const bool supported = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
                         __builtin_cpu_supports("avx512ifma");
  return supported ? &kTable : nullptr;
}

}  // namespace snug::codec
