// Kernel tables by Google Highway: one source, one table a target.
#if __has_include("hwy/highway.h")
#include <bit>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "codec/cpu.h"
#include "delta/delta_kernels.h"

#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "delta/delta_kernels_hwy.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets the target this compiles for:
#include "hwy/highway.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace snug::delta::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#include "delta/delta_lists-inl.h"

std::uint64_t hash_terms(const std::uint8_t* bytes, std::size_t num_bytes,
                         std::uint64_t first_pair) {
  const hn::ScalableTag<std::uint32_t> d32;
  const hn::ScalableTag<std::uint64_t> d64;
  constexpr std::size_t kPairs = HWY_LANES(std::uint64_t), kVecs = 2;
  alignas(64) std::uint32_t first[kVecs][2 * kPairs], step[2 * kPairs];
  for (std::size_t i = 0; i < kVecs * kPairs; ++i) {
    const auto idx = static_cast<std::uint32_t>(first_pair + i);
    first[i / kPairs][i % kPairs * 2] = idx * kHashKeyA;
    first[i / kPairs][i % kPairs * 2 + 1] = idx * kHashKeyB + kHashKeyA;
  }
  for (std::size_t i = 0; i < kPairs; ++i) {
    step[2 * i] = static_cast<std::uint32_t>(kVecs * kPairs) * kHashKeyA;
    step[2 * i + 1] = static_cast<std::uint32_t>(kVecs * kPairs) * kHashKeyB;
  }
  auto key0 = hn::Load(d32, first[0]), key1 = hn::Load(d32, first[1]);
  auto sum0 = hn::Zero(d64), sum1 = hn::Zero(d64);
  const auto steps = hn::Load(d32, step);
  const auto term = [&](const std::uint8_t* at, auto key) HWY_ATTR {
    const auto words = hn::LoadU(d32, reinterpret_cast<const std::uint32_t*>(at));
    const auto keyed = hn::Add(words, key);
    const auto odd = hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(d64, keyed)));
    return hn::Add(hn::MulEven(keyed, odd), hn::BitCast(d64, hn::Shuffle2301(words)));
  };
  std::size_t at = 0;
  for (; at + kVecs * kPairs * 8 <= num_bytes; at += kVecs * kPairs * 8) {
    sum0 = hn::Add(sum0, term(bytes + at, key0));
    sum1 = hn::Add(sum1, term(bytes + at + kPairs * 8, key1));
    key0 = hn::Add(key0, steps);
    key1 = hn::Add(key1, steps);
  }
  // Not SumOfLanes: on AVX-512 it adds as signed numbers, which may overflow.
  alignas(64) std::uint64_t lanes[kPairs];
  hn::Store(hn::Add(sum0, sum1), d64, lanes);
  std::uint64_t sum = kScalarKernels.hash_terms(bytes + at, num_bytes - at, first_pair + at / 8);
  for (const std::uint64_t lane : lanes) sum += lane;
  return sum;
}

// Masks of one whole group. Nothing here reads a mask back: parts of words that were
// just written would stall it.
template <class U>
HWY_INLINE void classify_group(const std::uint8_t* base, const std::uint8_t* next,
                               const Classifier& classifier, Group& group, std::uint64_t* changed) {
  // Keys and thresholds lack the top bit, so that signed comparisons do; there is no
  // vector instruction for "at least".
  using S = hwy::MakeSigned<U>;
  const hn::ScalableTag<U> d;
  const hn::ScalableTag<S> ds;
  constexpr std::size_t kLanes = HWY_LANES(U);
  static_assert(kLanes <= kGroupElems && kLanes >= 4);
  const auto key_mask = hn::Set(d, static_cast<U>(classifier.rule.key_mask));
  group.at_least[0] = ~std::uint64_t{0};
  for (std::size_t v = 0; v < kGroupElems / kLanes; ++v) {
    const auto from = hn::LoadU(d, reinterpret_cast<const U*>(base) + v * kLanes);
    const auto key = hn::BitCast(ds, hn::And(from, key_mask));
    const auto store = [&](std::uint64_t& word, auto mask) HWY_ATTR {
      std::uint8_t* to = reinterpret_cast<std::uint8_t*>(&word) + v * kLanes / 8;
      if constexpr (kLanes >= 8) {
        hn::StoreMaskBits(ds, mask, to);
      } else {
        std::uint8_t part[8];
        hn::StoreMaskBits(ds, mask, part);
        *to = static_cast<std::uint8_t>(v % 2 == 0 ? part[0] & 15 : (*to & 15) | part[0] << 4);
      }
    };
    for (int c = 1; c < kNumClasses; ++c)
      store(group.at_least[c],
            hn::Gt(key, hn::Set(ds, static_cast<S>(classifier.thresholds[c] - 1))));
    if (next != nullptr) {
      const auto to = hn::LoadU(d, reinterpret_cast<const U*>(next) + v * kLanes);
      store(*changed, hn::Ne(hn::BitCast(ds, from), hn::BitCast(ds, to)));
    }
  }
}

template <class U>
void classify(const std::uint8_t* base, const std::uint8_t* next, std::size_t n,
              const Classifier& classifier, Group* groups, std::uint64_t* changed) {
  constexpr std::size_t kBytes = kGroupElems * sizeof(U);
  const std::size_t whole = n / kGroupElems;
  for (std::size_t g = 0; g < whole; ++g)
    classify_group<U>(base + g * kBytes, next == nullptr ? nullptr : next + g * kBytes, classifier,
                      groups[g], changed + g);
  if (whole * kGroupElems == n) return;
  constexpr int kLog2Width = sizeof(U) == 1 ? 0 : sizeof(U) == 2 ? 1 : 2;
  kScalarKernels.classify[kLog2Width](
      base + whole * kBytes, next == nullptr ? nullptr : next + whole * kBytes,
      n - whole * kGroupElems, classifier, groups + whole, changed + whole);
}

// 64-bit elements are rare: the reference serves them.
void classify64(const std::uint8_t* base, const std::uint8_t* next, std::size_t n,
                const Classifier& classifier, Group* groups, std::uint64_t* changed) {
  kScalarKernels.classify[3](base, next, n, classifier, groups, changed);
}

const Kernels kKernels = {
#if HWY_TARGET == HWY_AVX3
    .name = "avx512",
#elif HWY_TARGET == HWY_AVX2
    .name = "avx2",
#elif HWY_TARGET == HWY_SSE4
    .name = "sse4",
#else
    .name = "neon",
#endif
    .hash_terms = hash_terms,
    .classify = {classify<std::uint8_t>, classify<std::uint16_t>, classify<std::uint32_t>,
                 classify64},
    .count = count_classes,
    .collect = {collect_changes<std::uint8_t>, collect_changes<std::uint16_t>,
                collect_changes<std::uint32_t>, collect_changes<std::uint64_t>},
    .scatter = {scatter_changes<std::uint8_t>, scatter_changes<std::uint16_t>,
                scatter_changes<std::uint32_t>, scatter_changes<std::uint64_t>},
};

}  // namespace snug::delta::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace snug::delta {

void append_hwy_kernels(codec::TargetList<const Kernels*>& tables) noexcept {
  [[maybe_unused]] const codec::CpuFeatures& cpu = codec::cpu_features();
#if HWY_TARGETS & HWY_AVX3
  if (cpu.avx512) tables.push_back(&N_AVX3::kKernels);
#endif
#if HWY_TARGETS & HWY_AVX2
  if (cpu.avx2) tables.push_back(&N_AVX2::kKernels);
#endif
#if HWY_TARGETS & HWY_SSE4
  if (cpu.sse4) tables.push_back(&N_SSE4::kKernels);
#endif
#if HWY_TARGETS & HWY_NEON
  if (cpu.neon) tables.push_back(&N_NEON::kKernels);
#endif
}

}  // namespace snug::delta
#endif
#endif
