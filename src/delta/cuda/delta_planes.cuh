// delta/cuda/delta_planes.cuh - the classes of a group of 32 elements as three words of bits, and
// what can be counted with them.
//
// Two elements are classified at once, in the halves of a word. Bit i of a plane belongs to the
// lower half of the i-th such pair, bit 16 + i to the upper one: not quite the order of
// elements, which PlaneOrder knows.
#pragma once
#include "delta/cuda/delta_device.cuh"

namespace snug::cuda::deltas {

template <u32 kWidth>
struct PlaneOrder {
  // The bit of element e.
  __device__ __forceinline__ static u32 bit_of(u32 e) {
    return kWidth == 2 ? e >> 1 | (e & 1) << 4 : (e >> 2) << 1 | (e & 1) | (e & 2) << 3;
  }
  // Bits of all elements before e.
  __device__ __forceinline__ static u32 below(u32 e) {
    if (kWidth == 2) {
      const u32 pair = e >> 1;
      return ((1u << pair) - 1) * 0x10001u | (e & 1) << pair;
    }
    const u32 pair = e >> 2 << 1, rest = e & 3;
    return ((1u << pair) - 1) * 0x10001u |
           ((rest > 0 ? 1u : 0) | (rest > 1 ? 2u : 0) | (rest > 2 ? 0x10000u : 0)) << pair;
  }
  // Bits in the order of elements: moves the half, the highest bit of the index, down.
  __device__ __forceinline__ static u32 sorted(u32 bits) {
    bits = __byte_perm(bits, 0, 0x3120);
    bits = swap_fields(bits, 0x00F000F0, 4);
    bits = swap_fields(bits, 0x0C0C0C0C, 2);
    return kWidth == 2 ? swap_fields(bits, 0x22222222, 1) : bits;
  }
  // The element whose bit is number `nth` among those of `bits`, in the order of elements.
  __device__ __forceinline__ static u32 select(u32 bits, u32 nth) {
    u32 e = 0;
#pragma unroll
    for (u32 step = 16; step > 0; step /= 2)
      if (count_bits(bits & below(e + step)) <= nth) e += step;
    return e;
  }

 private:
  // Swaps fields of `bits` under the mask with those `by` higher.
  __device__ __forceinline__ static u32 swap_fields(u32 bits, u32 mask, u32 by) {
    const u32 differs = (bits ^ bits >> by) & mask;
    return bits ^ differs ^ differs << by;
  }
};

// delta::ClassRule and class_top for two elements at once.
struct PairClasses {
  u32 mask, shift, minus_first;

  __device__ PairClasses(const delta::ClassRule& rule, int class_top)
      : mask(static_cast<u32>(rule.max_key()) * 0x10001u),
        shift(static_cast<u32>(rule.key_shift)),
        minus_first((static_cast<u32>(kNumClasses - 1 - class_top) & 0xFFFF) * 0x10001u) {}
  __device__ __forceinline__ u32 of(u32 word, u32 at) const {
    return __viaddmin_s16x2_relu(word >> (shift + at) & mask, minus_first, 0x00070007u);
  }
};

// A number for each class, 16 bits each: those of 2 j and 2 j + 1 in words[j].
struct ClassCounts {
  u32 words[4];

  __device__ __forceinline__ void add(const ClassCounts& other) {
#pragma unroll
    for (u32 j = 0; j < 4; ++j) words[j] += other.words[j];
  }
  __device__ __forceinline__ void subtract(const ClassCounts& other) {
#pragma unroll
    for (u32 j = 0; j < 4; ++j) words[j] -= other.words[j];
  }
  __device__ __forceinline__ uint4 vector() const {
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
  // Sums over this and the lanes below.
  __device__ __forceinline__ void scan() {
#pragma unroll
    for (u32 j = 0; j < 4; ++j) words[j] = warp_scan(words[j]);
  }
  __device__ __forceinline__ ClassCounts of_lane(u32 from) const {
    ClassCounts out;
#pragma unroll
    for (u32 j = 0; j < 4; ++j) out.words[j] = __shfl_sync(kFullMask, words[j], from);
    return out;
  }
  __device__ __forceinline__ u32 of(u32 c) const {
    const u32 word = c & 4 ? (c & 2 ? words[3] : words[2]) : (c & 2 ? words[1] : words[0]);
    return c & 1 ? word >> 16 : word & 0xFFFF;
  }
};

struct Planes {
  u32 bits[3];

  // Elements of the class with these bits; `c` known to the compiler or not.
  __device__ __forceinline__ u32 members(u32 c) const {
    return (bits[0] ^ ((c & 1) - 1)) & (bits[1] ^ ((c >> 1 & 1) - 1)) &
           (bits[2] ^ ((c >> 2 & 1) - 1));
  }
  __device__ __forceinline__ u32 class_at(u32 bit) const {
    return (bits[0] >> bit & 1) | (bits[1] >> bit & 1) << 1 | (bits[2] >> bit & 1) << 2;
  }
  __device__ __forceinline__ ClassCounts counts() const {
    ClassCounts out;
#pragma unroll
    for (u32 j = 0; j < 4; ++j)
      out.words[j] = count_bits(members(2 * j)) + (count_bits(members(2 * j + 1)) << 16);
    return out;
  }
};

// Bits of `a` under the mask, of `b` elsewhere.
__device__ __forceinline__ u32 choose_bits(u32 mask, u32 a, u32 b) {
  return (a & mask) | (b & ~mask);
}

template <u32 kWidth>
__device__ __forceinline__ Planes class_planes(const Group<kWidth>& group,
                                               const PairClasses& classes) {
  // Classes of pairs q, q + 4, q + 8, q + 12 as nibbles of nibbles[q].
  u32 nibbles[4] = {0, 0, 0, 0};
#pragma unroll
  for (u32 i = 0; i < 16; ++i) {
    const u32 pair =
        kWidth == 2 ? classes.of(group.words[i], 0) : classes.of(group.words[i / 2], 8 * (i % 2));
    nibbles[i % 4] += pair << 4 * (i / 4);
  }
  // Four by four bits turned: bit k of nibbles[q] becomes bit q of plane k.
  const u32 low = choose_bits(0x55555555, nibbles[0], nibbles[1] << 1);
  const u32 mid = choose_bits(0x55555555, nibbles[0] >> 1, nibbles[1]);
  const u32 low2 = choose_bits(0x55555555, nibbles[2], nibbles[3] << 1);
  const u32 mid2 = choose_bits(0x55555555, nibbles[2] >> 1, nibbles[3]);
  return {{choose_bits(0x33333333, low, low2 << 2), mid + (mid2 << 2),
           choose_bits(0x33333333, low >> 2, low2)}};
}

// Bits of the elements that differ, in the order of elements.
template <u32 kWidth>
__device__ __forceinline__ u32 changed_elements(const Group<kWidth>& base,
                                                const Group<kWidth>& next) {
  u32 bits = 0;
#pragma unroll
  for (u32 i = 0; i < 16; ++i) {
    const u32 word = kWidth == 2
                         ? base.words[i] ^ next.words[i]
                         : (base.words[i / 2] ^ next.words[i / 2]) >> 8 * (i % 2) & 0xFF00FF;
    bits += __vminu2(word, 0x00010001u) << i;
  }
  return PlaneOrder<kWidth>::sorted(bits);
}

}  // namespace snug::cuda::deltas
