// delta/cuda/delta_planes.cuh - the classes of a group of 32 elements as three words of bits, the
// planes.
//
// Two elements are classified at once, in the halves of a word. Bit i of a plane belongs to the
// lower half of pair i, bit 16 + i to the upper one. PlaneOrder translates to the order of
// elements.
#pragma once
#include "delta/cuda/delta_device.cuh"

namespace snug::cuda::deltas {

template <unsigned kWidth>
struct PlaneOrder {
  // The bit of element e.
  __device__ __forceinline__ static std::uint32_t bit_of(std::uint32_t e) {
    return kWidth == 2 ? e >> 1 | (e & 1) << 4 : (e >> 2) << 1 | (e & 1) | (e & 2) << 3;
  }
  // Bits of all elements before e.
  __device__ __forceinline__ static std::uint32_t below(std::uint32_t e) {
    if (kWidth == 2) {
      const std::uint32_t pair = e >> 1;
      return ((1u << pair) - 1) * 0x10001u | (e & 1) << pair;
    }
    const std::uint32_t pair = e >> 2 << 1, rest = e & 3;
    return ((1u << pair) - 1) * 0x10001u |
           ((rest > 0 ? 1u : 0) | (rest > 1 ? 2u : 0) | (rest > 2 ? 0x10000u : 0)) << pair;
  }
  // Bits in the order of elements: the half, the highest bit of the index, moves down.
  __device__ __forceinline__ static std::uint32_t sorted(std::uint32_t bits) {
    bits = __byte_perm(bits, 0, 0x3120);
    bits = swap_fields(bits, 0x00F000F0, 4);
    bits = swap_fields(bits, 0x0C0C0C0C, 2);
    return kWidth == 2 ? swap_fields(bits, 0x22222222, 1) : bits;
  }
  // The element whose bit is number `nth` among those of `bits`, in the order of elements.
  __device__ __forceinline__ static std::uint32_t select(std::uint32_t bits, std::uint32_t nth) {
    std::uint32_t e = 0;
#pragma unroll
    for (unsigned step = 16; step > 0; step /= 2)
      if (count_bits(bits & below(e + step)) <= nth) e += step;
    return e;
  }

 private:
  // Swaps fields of `bits` under the mask with those `by` higher.
  __device__ __forceinline__ static std::uint32_t swap_fields(std::uint32_t bits,
                                                              std::uint32_t mask,
                                                              std::uint32_t by) {
    const std::uint32_t differs = (bits ^ bits >> by) & mask;
    return bits ^ differs ^ differs << by;
  }
};

// delta::ClassRule and class_top for two elements at once.
struct PairClasses {
  std::uint32_t mask, shift, minus_first;

  __device__ PairClasses(const delta::ClassRule& rule, int class_top)
      : mask(static_cast<std::uint32_t>(rule.max_key()) * 0x10001u),
        shift(static_cast<std::uint32_t>(rule.key_shift)),
        minus_first((static_cast<std::uint32_t>(kNumClasses - 1 - class_top) & 0xFFFF) * 0x10001u) {
  }
  __device__ __forceinline__ std::uint32_t of(std::uint32_t word, std::uint32_t at) const {
    return __viaddmin_s16x2_relu(word >> (shift + at) & mask, minus_first, 0x00070007u);
  }
};

// A 16-bit number for each class: those of classes 2 j and 2 j + 1 in words[j].
struct ClassCounts {
  std::uint32_t words[4];

  __device__ __forceinline__ void add(const ClassCounts& other) {
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) words[j] += other.words[j];
  }
  __device__ __forceinline__ void subtract(const ClassCounts& other) {
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) words[j] -= other.words[j];
  }
  __device__ __forceinline__ uint4 vector() const {
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
  // Inclusive sums over the lanes of a warp.
  __device__ __forceinline__ void scan() {
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) words[j] = warp_inclusive_sum_fused(words[j]);
  }
  __device__ __forceinline__ ClassCounts of_lane(std::uint32_t from) const {
    ClassCounts out;
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) out.words[j] = __shfl_sync(kAllLanes, words[j], from);
    return out;
  }
  __device__ __forceinline__ std::uint32_t of(std::uint32_t c) const {
    const std::uint32_t word =
        c & 4 ? (c & 2 ? words[3] : words[2]) : (c & 2 ? words[1] : words[0]);
    return c & 1 ? word >> 16 : word & 0xFFFF;
  }
};

struct Planes {
  std::uint32_t bits[3];

  // The elements of class c.
  __device__ __forceinline__ std::uint32_t members(std::uint32_t c) const {
    return (bits[0] ^ ((c & 1) - 1)) & (bits[1] ^ ((c >> 1 & 1) - 1)) &
           (bits[2] ^ ((c >> 2 & 1) - 1));
  }
  __device__ __forceinline__ std::uint32_t class_at(std::uint32_t bit) const {
    return (bits[0] >> bit & 1) | (bits[1] >> bit & 1) << 1 | (bits[2] >> bit & 1) << 2;
  }
  __device__ __forceinline__ ClassCounts counts() const {
    ClassCounts out;
#pragma unroll
    for (unsigned j = 0; j < 4; ++j)
      out.words[j] = count_bits(members(2 * j)) + (count_bits(members(2 * j + 1)) << 16);
    return out;
  }
};

// Bits of `a` under the mask, of `b` elsewhere.
__device__ __forceinline__ std::uint32_t choose_bits(std::uint32_t mask, std::uint32_t a,
                                                     std::uint32_t b) {
  return (a & mask) | (b & ~mask);
}

template <unsigned kWidth>
__device__ __forceinline__ Planes class_planes(const Group<kWidth>& group,
                                               const PairClasses& classes) {
  // Classes of pairs q, q + 4, q + 8, q + 12 as nibbles of nibbles[q].
  std::uint32_t nibbles[4] = {0, 0, 0, 0};
#pragma unroll
  for (unsigned i = 0; i < 16; ++i) {
    const std::uint32_t pair =
        kWidth == 2 ? classes.of(group.words[i], 0) : classes.of(group.words[i / 2], 8 * (i % 2));
    nibbles[i % 4] += pair << 4 * (i / 4);
  }
  // Transposes 4 x 4 bits: bit k of nibbles[q] becomes bit q of plane k.
  const std::uint32_t low = choose_bits(0x55555555, nibbles[0], nibbles[1] << 1);
  const std::uint32_t mid = choose_bits(0x55555555, nibbles[0] >> 1, nibbles[1]);
  const std::uint32_t low2 = choose_bits(0x55555555, nibbles[2], nibbles[3] << 1);
  const std::uint32_t mid2 = choose_bits(0x55555555, nibbles[2] >> 1, nibbles[3]);
  return {{choose_bits(0x33333333, low, low2 << 2), mid + (mid2 << 2),
           choose_bits(0x33333333, low >> 2, low2)}};
}

// Bits of the elements that differ, in the order of elements.
template <unsigned kWidth>
__device__ __forceinline__ std::uint32_t changed_elements(const Group<kWidth>& base,
                                                          const Group<kWidth>& next) {
  std::uint32_t bits = 0;
#pragma unroll
  for (unsigned i = 0; i < 16; ++i) {
    const std::uint32_t word =
        kWidth == 2 ? base.words[i] ^ next.words[i]
                    : (base.words[i / 2] ^ next.words[i / 2]) >> 8 * (i % 2) & 0xFF00FF;
    bits += __vminu2(word, 0x00010001u) << i;
  }
  return PlaneOrder<kWidth>::sorted(bits);
}

}  // namespace snug::cuda::deltas
