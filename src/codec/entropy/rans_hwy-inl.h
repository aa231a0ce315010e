// What vector encoding and decoding of rANS share: the 32 states as vectors,
// handled in octets, 8 lanes each.
#if defined(SNUG_CODEC_ENTROPY_RANS_HWY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SNUG_CODEC_ENTROPY_RANS_HWY_INL_H_
#undef SNUG_CODEC_ENTROPY_RANS_HWY_INL_H_
#else
#define SNUG_CODEC_ENTROPY_RANS_HWY_INL_H_
#endif

#include "codec/entropy/rans.h"
#include "codec/kernels_hwy-inl.h"

HWY_BEFORE_NAMESPACE();
namespace snug::codec {
namespace HWY_NAMESPACE {

using V16x8 = hn::Vec<hn::Full128<std::uint16_t>>;

constexpr std::size_t kVecLanes = HWY_LANES(std::uint32_t);
constexpr std::size_t kVecs = entropy::kLanes / kVecLanes;
constexpr std::size_t kOctets = entropy::kLanes / 8;
constexpr std::size_t kVecsPerOctet = 8 / kVecLanes;

// Lane l is in vector l / kVecLanes. The constructors here and below are written
// out because GCC compiles those it adds itself for the baseline target.
struct States {
  V32 x[kVecs];

  HWY_INLINE States() {}
  HWY_INLINE void load(const std::uint32_t* from) {
    for (std::size_t v = 0; v < kVecs; ++v) x[v] = hn::LoadU(D32(), from + v * kVecLanes);
  }
  HWY_INLINE void store(std::uint32_t* to) const {
    for (std::size_t v = 0; v < kVecs; ++v) hn::StoreU(x[v], D32(), to + v * kVecLanes);
  }
};

// Follows entropy::Prefetch group by group, into the L2 cache: L1 is in use.
struct Prefetcher {
  const std::uint8_t* next;
  std::size_t bytes_per_group;

  // Streams that run one after the other share what the hint says.
  Prefetcher(entropy::Prefetch hint, int num_sharing)
      : next(hint.next),
        bytes_per_group(hint.next == nullptr ? 0
                                             : hint.bytes_per_symbol_byte * entropy::kGroupBytes /
                                                   static_cast<std::size_t>(num_sharing)) {}

  HWY_INLINE void for_group() {
    for (std::size_t i = 0; i < bytes_per_group; i += 64) __builtin_prefetch(next + i, 0, 2);
    next += bytes_per_group;
  }
};

HWY_INLINE std::size_t lane_bits(hn::Mask<D32> mask) {
  std::uint8_t bytes[8];
  hn::StoreMaskBits(D32(), mask, bytes);
  return bytes[0];
}

// Bit i: lane i of the octet is in the mask.
HWY_INLINE std::size_t octet_bits(const hn::Mask<D32>* masks) {
  std::size_t bits = lane_bits(masks[0]);
  if constexpr (kVecsPerOctet == 2) bits |= lane_bits(masks[1]) << 4;
  return bits;
}

// The lower 16 bits of the lanes of an octet.
HWY_INLINE V16x8 octet_words(const V32* octet) {
#if HWY_MAX_BYTES == 16
  const D16 d16;
  return hn::ConcatEven(d16, hn::BitCast(d16, octet[1]), hn::BitCast(d16, octet[0]));
#else
  return hn::TruncateTo(hn::Full128<std::uint16_t>(), octet[0]);
#endif
}

// The kPart-th vector of 8 words as 32-bit lanes.
template <std::size_t kPart>
HWY_INLINE V32 widen_words(V16x8 words) {
#if HWY_MAX_BYTES == 16
  const hn::Half<D16> half;
  if constexpr (kPart == 0) return hn::PromoteTo(D32(), hn::LowerHalf(half, words));
  return hn::PromoteTo(D32(), hn::UpperHalf(half, words));
#else
  return hn::PromoteTo(D32(), words);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace snug::codec
HWY_AFTER_NAMESPACE();

#endif  // target toggle
