// Vector bodies of checksum, copy and 16-bit planes, and the vector types all
// other -inl.h files use; kernels_hwy.cpp compiles them once a target. Loops take
// whole vectors and leave the rest to the scalar kernels.
#if defined(SNUG_CODEC_KERNELS_HWY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SNUG_CODEC_KERNELS_HWY_INL_H_
#undef SNUG_CODEC_KERNELS_HWY_INL_H_
#else
#define SNUG_CODEC_KERNELS_HWY_INL_H_
#endif

#include <cstring>
#include <span>

#include "codec/kernels.h"
#include "frame/checksum.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace snug::codec {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D8 = hn::ScalableTag<std::uint8_t>;
using D16 = hn::ScalableTag<std::uint16_t>;
using D32 = hn::ScalableTag<std::uint32_t>;
using D64 = hn::ScalableTag<std::uint64_t>;
using V8 = hn::Vec<D8>;
using V16 = hn::Vec<D16>;
using V32 = hn::Vec<D32>;
using V64 = hn::Vec<D64>;

constexpr std::size_t kVecBytes = HWY_LANES(std::uint8_t);
// From this many elements on, merged elements are written with non-temporal stores.
constexpr std::size_t kPastCachesFrom = 2048;

// Checksum terms of consecutive stretches of kBytes that start at word first_word.
struct ChecksumLanes {
  static constexpr std::size_t kVecs = 4;  // independent sums
  static constexpr std::size_t kBytes = kVecs * kVecBytes;
  V32 multiplier[kVecs];
  V64 sum[kVecs];

  explicit HWY_INLINE ChecksumLanes(std::size_t first_word) {
    alignas(64) std::uint32_t first[kBytes / 4];
    for (std::size_t i = 0; i < kBytes / 4; ++i)
      first[i] = frame::checksum_multiplier(first_word + i);
    for (std::size_t v = 0; v < kVecs; ++v) {
      multiplier[v] = hn::Load(D32(), first + v * kVecBytes / 4);
      sum[v] = hn::Zero(D64());
    }
  }

  // The multiplier moves on by an even number, so that "| 1" of
  // checksum_multiplier, once applied, holds.
  HWY_INLINE void add(std::size_t v, V8 bytes) {
    const D32 d32;
    const D64 d64;
    const V32 words = hn::BitCast(d32, bytes);
    const V32 odd_words = hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(d64, words)));
    const V32 odd_multiplier =
        hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(d64, multiplier[v])));
    sum[v] = hn::Add(
        sum[v], hn::Add(hn::MulEven(words, multiplier[v]), hn::MulEven(odd_words, odd_multiplier)));
    const V32 step = hn::Set(d32, static_cast<std::uint32_t>(kBytes / 4) * frame::kChecksumStep);
    multiplier[v] = hn::Add(multiplier[v], step);
  }

  HWY_INLINE std::uint64_t total() const {
    const V64 all = hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3]));
    return hn::GetLane(hn::SumOfLanes(D64(), all));
  }
};

std::uint64_t checksum_terms(const std::uint8_t* bytes, std::size_t num_bytes) {
  ChecksumLanes lanes(0);
  std::size_t pos = 0;
  for (; pos + ChecksumLanes::kBytes <= num_bytes; pos += ChecksumLanes::kBytes) {
    HWY_UNROLL(4)
    for (std::size_t v = 0; v < ChecksumLanes::kVecs; ++v)
      lanes.add(v, hn::LoadU(D8(), bytes + pos + v * kVecBytes));
  }
  return lanes.total() + frame::checksum_terms(bytes + pos, num_bytes - pos, pos / 4);
}

HWY_INLINE bool is_vector_aligned(const std::uint8_t* at) {
  return reinterpret_cast<std::uintptr_t>(at) % kVecBytes == 0;
}

std::uint64_t copy_out(const std::uint8_t* src, std::size_t num_bytes, std::uint8_t* dst,
                       std::span<const std::uint8_t> next) {
  const std::size_t head =
      (kVecBytes - reinterpret_cast<std::uintptr_t>(dst) % kVecBytes) % kVecBytes;
  if (head % 4 != 0 || head > num_bytes) {
    std::memcpy(dst, src, num_bytes);
    return checksum_terms(src, num_bytes);
  }
  std::memcpy(dst, src, head);
  ChecksumLanes lanes(head / 4);
  // Payloads are at least half as large as the input that comes next.
  constexpr std::size_t kFetchBytes = 2 * ChecksumLanes::kBytes;
  std::size_t fetched = 0, pos = head;
  for (; pos + ChecksumLanes::kBytes <= num_bytes; pos += ChecksumLanes::kBytes) {
    HWY_UNROLL(4)
    for (std::size_t v = 0; v < ChecksumLanes::kVecs; ++v) {
      const V8 bytes = hn::LoadU(D8(), src + pos + v * kVecBytes);
      hn::Stream(bytes, D8(), dst + pos + v * kVecBytes);
      lanes.add(v, bytes);
    }
    if (fetched + kFetchBytes > next.size()) continue;
    for (std::size_t i = 0; i < kFetchBytes; i += 64)
      __builtin_prefetch(next.data() + fetched + i, 0, 2);
    fetched += kFetchBytes;
  }
  std::memcpy(dst + pos, src + pos, num_bytes - pos);
  return lanes.total() + frame::checksum_terms(src, head, 0) +
         frame::checksum_terms(src + pos, num_bytes - pos, pos / 4);
}

template <bool kRotate>
HWY_INLINE void split2_as(const std::uint8_t* src, std::size_t n, std::uint8_t* lo,
                          std::uint8_t* hi) {
  const D8 d8;
  const D16 d16;
  std::size_t i = 0;
  for (; i + kVecBytes <= n; i += kVecBytes) {
    V16 a = hn::BitCast(d16, hn::LoadU(d8, src + 2 * i));
    V16 b = hn::BitCast(d16, hn::LoadU(d8, src + 2 * i + kVecBytes));
    if constexpr (kRotate) {
      a = hn::Or(hn::Add(a, a), hn::ShiftRight<15>(a));
      b = hn::Or(hn::Add(b, b), hn::ShiftRight<15>(b));
    }
    hn::StoreU(hn::ConcatEven(d8, hn::BitCast(d8, b), hn::BitCast(d8, a)), d8, lo + i);
    hn::StoreU(hn::ConcatOdd(d8, hn::BitCast(d8, b), hn::BitCast(d8, a)), d8, hi + i);
  }
  kScalarKernels.split2(src + 2 * i, n - i, kRotate, lo + i, hi + i);
}

void split2(const std::uint8_t* src, std::size_t n, bool rotate, std::uint8_t* lo,
            std::uint8_t* hi) {
  rotate ? split2_as<true>(src, n, lo, hi) : split2_as<false>(src, n, lo, hi);
}

template <bool kPastCaches>
HWY_INLINE void put(V8 v, std::uint8_t* dst) {
  kPastCaches ? hn::Stream(v, D8(), dst) : hn::StoreU(v, D8(), dst);
}

// Stores the results of InterleaveLower and InterleaveUpper in memory order: they work on each
// 16-byte part of a vector separately.
template <bool kPastCaches>
HWY_INLINE void put_interleaved(V16 lower, V16 upper, std::uint8_t* dst) {
  const D8 d8;
  const V8 a = hn::BitCast(d8, lower), b = hn::BitCast(d8, upper);
  if constexpr (kVecBytes == 16) {
    put<kPastCaches>(a, dst);
    put<kPastCaches>(b, dst + kVecBytes);
  } else {
    put<kPastCaches>(hn::ConcatLowerLower(d8, b, a), dst);
    put<kPastCaches>(hn::ConcatUpperUpper(d8, b, a), dst + kVecBytes);
  }
}

template <bool kRotate, bool kPastCaches>
HWY_INLINE void merge2_as(const std::uint8_t* lo, const std::uint8_t* hi, std::size_t n,
                          std::uint8_t* dst) {
  const D8 d8;
  const D16 d16;
  std::size_t i = 0;
  for (; i + kVecBytes <= n; i += kVecBytes) {
    const V8 l = hn::LoadU(d8, lo + i), h = hn::LoadU(d8, hi + i);
    V16 a = hn::BitCast(d16, hn::InterleaveLower(d8, l, h));
    V16 b = hn::BitCast(d16, hn::InterleaveUpper(d8, l, h));
    if constexpr (kRotate) {
      a = hn::Or(hn::ShiftRight<1>(a), hn::ShiftLeft<15>(a));
      b = hn::Or(hn::ShiftRight<1>(b), hn::ShiftLeft<15>(b));
    }
    put_interleaved<kPastCaches>(a, b, dst + 2 * i);
  }
  kScalarKernels.merge2(lo + i, hi + i, n - i, kRotate, dst + 2 * i);
}

void merge2(const std::uint8_t* lo, const std::uint8_t* hi, std::size_t n, bool rotate,
            std::uint8_t* dst) {
  if (n >= kPastCachesFrom && is_vector_aligned(dst))
    rotate ? merge2_as<true, true>(lo, hi, n, dst) : merge2_as<false, true>(lo, hi, n, dst);
  else
    rotate ? merge2_as<true, false>(lo, hi, n, dst) : merge2_as<false, false>(lo, hi, n, dst);
}

}  // namespace HWY_NAMESPACE
}  // namespace snug::codec
HWY_AFTER_NAMESPACE();

#endif  // target toggle
