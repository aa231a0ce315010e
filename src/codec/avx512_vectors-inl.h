// codec/avx512_vectors-inl.h - what all AVX-512 kernels are written in. These files are parts of
// kernels_avx512.cpp, which alone is compiled for these instructions.
#pragma once
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

constexpr int kStateBits = 16;

struct Prefetcher {
  const std::uint8_t* next;
  std::size_t bytes_per_group;

  explicit Prefetcher(entropy::Prefetch p)
      : next(p.next),
        bytes_per_group(p.next != nullptr ? p.bytes_per_symbol_byte * kGroupBytes : 0) {}

  void for_group() {
    for (std::size_t i = 0; i < bytes_per_group; i += kVec) _mm_prefetch(next + i, _MM_HINT_T1);
    next += bytes_per_group;
  }
};

}  // namespace
}  // namespace snug::codec
