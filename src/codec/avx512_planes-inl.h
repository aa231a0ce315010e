// codec/avx512_planes-inl.h - checksums, planes, palettes and the fixed codec.
#pragma once
#include "codec/avx512_vectors-inl.h"

namespace snug::codec {
namespace {

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
    sum_odd = _mm512_add_epi64(
        sum_odd, _mm512_mul_epu32(_mm512_srli_epi64(words, 32), _mm512_or_si512(odd, one)));
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

// Non-temporal stores save reading the lines first: 1.5x on results larger than the cache, where
// most blocks end. They need aligned addresses.
bool is_aligned(const std::uint8_t* p) { return reinterpret_cast<std::uintptr_t>(p) % kVec == 0; }

void put_past_caches(std::uint8_t* at, __m512i v) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(at), v);
}

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
    for (int line = 0; line < 2 && fetch < fetch_end; ++line, fetch += kVec)
      _mm_prefetch(fetch, _MM_HINT_T1);
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

void split2(const std::uint8_t* src, std::size_t n, bool rotate, std::uint8_t* lo,
            std::uint8_t* hi) {
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
    __m512i a = _mm512_permutex2var_epi8(l, idx.first, h),
            b = _mm512_permutex2var_epi8(l, idx.second, h);
    if (kRotate) {
      a = _mm512_shrdi_epi16(a, a, 1);
      b = _mm512_shrdi_epi16(b, b, 1);
    }
    put_elements<kStream>(dst + 2 * i, a);
    put_elements<kStream>(dst + 2 * i + kVec, b);
  }
  kScalarKernels.merge2(lo + i, hi + i, n - i, kRotate, dst + 2 * i);
}

void merge2(const std::uint8_t* lo, const std::uint8_t* hi, std::size_t n, bool rotate,
            std::uint8_t* dst) {
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

std::size_t unmap_palette(const std::uint8_t* nibbles, std::size_t n,
                          const std::uint8_t palette[16], std::uint8_t escape,
                          const std::uint8_t* escapes, std::size_t num_escapes,
                          std::uint8_t* plane) {
  const __m512i values =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(palette)));
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
  return used + kScalarKernels.unmap_palette(nibbles + i / 2, n - i, palette, escape,
                                             escapes + seen, num_escapes - seen, plane + i);
}

// ---- fixed ---------------------------------------------------------------------

std::size_t fixed_pack(const std::uint8_t* high, std::size_t n, const std::uint8_t lut[128],
                       std::uint8_t* nibbles, std::uint8_t* escapes, std::size_t max_escapes) {
  const __m512i low_half = load(lut), high_half = load(lut + 64);
  const __m512i seven = set8(7), sign = set8(0x80);
  std::size_t num_escapes = 0, i = 0;
  for (; i + kVec <= n; i += kVec) {
    const __m512i bytes = load(high + i);
    const __m512i idx =
        _mm512_permutex2var_epi8(low_half, bytes, high_half);  // ignores the sign bit
    const __m512i signs = _mm512_and_si512(bytes, sign);
    // Bits 7 of bytes 4..7 of a group go below those of bytes 0..3.
    const __m256i sign_bits =
        _mm512_cvtepi64_epi32(_mm512_or_si512(signs, _mm512_srli_epi64(signs, 36)));
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
  const __m512i values =
      _mm512_broadcast_i32x4(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(palette)));
  const __m512i seven = set8(7), sign = set8(0x80);
  std::size_t i = 0;
  for (; i + kVec <= n; i += kVec) {
    const __m256i packed = load_half(nibbles + i / 2);
    const __m512i wide = _mm512_cvtepu32_epi64(packed);
    const __m512i signs =
        _mm512_and_si512(_mm512_or_si512(wide, _mm512_slli_epi64(wide, 36)), sign);
    const __m512i idx = unpack_nibbles(packed, seven);
    store(high + i, _mm512_or_si512(_mm512_shuffle_epi8(values, idx), signs));
  }
  kScalarKernels.fixed_unpack(nibbles + i / 2, n - i, palette, high + i);
}

}  // namespace
}  // namespace snug::codec
