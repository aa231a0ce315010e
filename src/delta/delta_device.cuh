// delta/delta_device.cuh - what the delta kernels share: a thread's elements, their
// classes, sums over a thread block, bits in shared memory.
//
// A thread block works on one block of a delta; each thread on 32 neighbours.
#pragma once
#include <cstdint>

#include "cuda/device_frame.cuh"
#include "delta/delta_format.h"
#include "snug/cuda.h"

namespace snug::cuda::deltas {

using delta::kNumClasses;
using delta::Subset;
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = unsigned long long;

inline constexpr u32 kFullMask = 0xFFFFFFFFu;
inline constexpr u32 kPerThread = 32;

// Of one call; zero before it starts.
struct CallState {
  u32 ticket, done;
  u64 base_sum, target_sum;  // hash terms
  u64 num_changed;
  u64 head_sum;     // checksum terms of the index
  u64 first_error;  // see report(); 0: none
};

// Errors of the lowest block win, so that all runs report the same one; as report() of
// cuda/device_frame.cuh.
__device__ inline u64 error_key(Code code, Reason reason, u64 block) {
  return ((~block & 0xFFFFFFFFFFFFull) << 16) | static_cast<u64>(reason) << 8 |
         static_cast<u64>(code);
}

__device__ __forceinline__ u32 lane() { return threadIdx.x % 32; }
__device__ __forceinline__ u32 warp() { return threadIdx.x / 32; }

// ---- elements and classes --------------------------------------------------
template <u32 kWidth>
struct Elems {
  u32 words[8 * kWidth];

  __device__ __forceinline__ u32 get(u32 i) const {  // i must be known to the compiler
    return kWidth == 2 ? words[i / 2] >> 16 * (i % 2) & 0xFFFF : words[i / 4] >> 8 * (i % 4) & 0xFF;
  }
  __device__ __forceinline__ void set(u32 i, u32 v) {
    const u32 shift = kWidth == 2 ? 16 * (i % 2) : 8 * (i % 4);
    u32& word = words[i * kWidth / 4];
    word = (word & ~((kWidth == 2 ? 0xFFFFu : 0xFFu) << shift)) | v << shift;
  }
  // Of a block of block_bytes that starts at a multiple of 16; zeros behind its end.
  __device__ void load(const u8* block, u32 block_bytes) {
    const u32 first = threadIdx.x * kPerThread * kWidth;
    if (first + kPerThread * kWidth <= block_bytes) {
#pragma unroll
      for (u32 j = 0; j < 2 * kWidth; ++j) {
        const uint4 v = reinterpret_cast<const uint4*>(block + first)[j];
        words[4 * j] = v.x, words[4 * j + 1] = v.y, words[4 * j + 2] = v.z, words[4 * j + 3] = v.w;
      }
      return;
    }
#pragma unroll
    for (u32 j = 0; j < 8 * kWidth; ++j) {
      words[j] = 0;
      for (u32 k = 0; k < 4; ++k)
        if (first + 4 * j + k < block_bytes) words[j] |= u32{block[first + 4 * j + k]} << 8 * k;
    }
  }
  // Sum of hash terms; the block starts at byte `block_start` of the tensor.
  __device__ u64 hash(u64 block_start, u32 block_bytes) const {
    const u32 first = threadIdx.x * kPerThread * kWidth;
    const auto pair = static_cast<u32>((block_start + first) / 8);
    return first + kPerThread * kWidth <= block_bytes ? hash_pairs<true>(pair, 0)
           : first < block_bytes ? hash_pairs<false>(pair, (block_bytes - first + 7) / 8)
                                 : 0;
  }

 private:
  // delta::hash_term, with all that can be done once for many pairs.
  template <bool kAll>
  __device__ __forceinline__ u64 hash_pairs(u32 pair, u32 num_pairs) const {
    const u32 key_a = pair * delta::kHashKeyA, key_b = pair * delta::kHashKeyB + delta::kHashKeyA;
    u64 sum = 0, sum_b = 0;
    u32 sum_a = 0;
#pragma unroll
    for (u32 j = 0; j < 4 * kWidth; ++j) {
      const u32 a = words[2 * j], b = words[2 * j + 1];
      if (!kAll && j >= num_pairs) break;
      sum += u64{a + key_a + j * delta::kHashKeyA} * (b + key_b + j * delta::kHashKeyB);
      sum_a += a;
      sum_b += b;
    }
    return sum + (u64{sum_a} << 32) + sum_b;
  }
};

// A byte behind the last element of a full block belongs to no thread's elements: the
// first thread adds its term.
template <u32 kThreads, u32 kWidth>
__device__ u64 term_behind(u32 byte, u64 block_start, u32 block_bytes) {
  constexpr u32 kBytes = kThreads * kPerThread * kWidth;
  if (threadIdx.x != 0 || block_bytes <= kBytes) return 0;
  return delta::hash_term(byte, 0, (block_start + kBytes) / 8);
}

struct Classes {
  u32 mask;   // bits of the key within an element
  u32 shift;  // to its lowest bit
  int first;  // key of class 0
  u32 width_bits;

  __device__ Classes(const delta::ClassRule& rule, int class_top, u32 width)
      : mask(static_cast<u32>(rule.key_mask) >> rule.key_shift << rule.key_shift),
        shift(static_cast<u32>(rule.key_shift)),
        first(class_top - (kNumClasses - 1)),
        width_bits(8 * width) {}
  __device__ __forceinline__ u32 of(u32 v) const {
    return static_cast<u32>(
        min(max(static_cast<int>((v & mask) >> shift) - first, 0), kNumClasses - 1));
  }
  // Four times the class of the element that starts at bit `at` of a word.
  __device__ __forceinline__ u32 scaled(u32 word, u32 at) const {
    const u32 key = mask == 0 ? 0 : (word & mask << at) >> (at + shift - 2);
    return static_cast<u32>(
        __viaddmin_s32_relu(static_cast<int>(key), -4 * first, 4 * (kNumClasses - 1)));
  }
  // Elements of class c are those from begin(c) up to, not including, begin(c + 1).
  __device__ __forceinline__ u32 begin(u32 c) const {
    const int key = first + static_cast<int>(c);
    if (c == kNumClasses) return 1u << (width_bits - 1);
    return c == 0 || key <= 0 ? 0 : static_cast<u32>(key) << shift;
  }
};

// A number for each class, 16 bits each: class c is half c / 4 of a word.
struct ClassCounts {
  u32 words[4];

  __device__ __forceinline__ u32 of(u32 c) const {
    const u32 word = c & 1 ? (c & 2 ? words[3] : words[2]) : (c & 2 ? words[1] : words[0]);
    return c & 4 ? word >> 16 : word & 0xFFFF;
  }
};

// How many of the first `valid` elements each class has: eight nibbles for eight elements,
// then bytes, then 16 bits.
template <u32 kWidth, bool kAll>
__device__ __forceinline__ ClassCounts count_some(const Elems<kWidth>& elems, u32 valid,
                                                  const Classes& classes) {
  constexpr u32 kPerWord = 4 / kWidth;
  u32 even = 0, odd = 0;
#pragma unroll
  for (u32 g = 0; g < 4; ++g) {
    u32 nibbles = 0;
#pragma unroll
    for (u32 i = 8 * g; i < 8 * g + 8; ++i) {
      const u32 one = 1u << classes.scaled(elems.words[i / kPerWord], 8 * kWidth * (i % kPerWord));
      if (kAll || i < valid) nibbles += one;
    }
    even += nibbles & 0x0F0F0F0F;
    odd += nibbles >> 4 & 0x0F0F0F0F;
  }
  return {{even & 0x00FF00FF, even >> 8 & 0x00FF00FF, odd & 0x00FF00FF, odd >> 8 & 0x00FF00FF}};
}

template <u32 kWidth>
__device__ ClassCounts count_classes(const Elems<kWidth>& elems, u32 valid,
                                     const Classes& classes) {
  return valid == kPerThread ? count_some<kWidth, true>(elems, valid, classes)
                             : count_some<kWidth, false>(elems, valid, classes);
}

// ---- sums over a thread block ----------------------------------------------
inline constexpr u32 kMaxWarps = 16;

struct ScanRows {
  u32 rows[kMaxWarps][8];
};

// Each thread's values become the sums over earlier threads, `total` over all. Rows may be
// used again after the next barrier.
template <u32 kThreads, u32 kValues>
__device__ void block_scan(u32 (&v)[kValues], u32 (&total)[kValues], ScanRows& shared) {
  constexpr u32 kWarps = kThreads / 32;
  u32 own[kValues];
#pragma unroll
  for (u32 k = 0; k < kValues; ++k) own[k] = v[k];
#pragma unroll
  for (u32 d = 1; d < 32; d *= 2)
#pragma unroll
    for (u32 k = 0; k < kValues; ++k) {
      const u32 below = __shfl_up_sync(kFullMask, v[k], d);
      if (lane() >= d) v[k] += below;
    }
  if (lane() == 31)
#pragma unroll
    for (u32 k = 0; k < kValues; ++k) shared.rows[warp()][k] = v[k];
  __syncthreads();
#pragma unroll
  for (u32 k = 0; k < kValues; ++k) {
    u32 row = lane() < kWarps ? shared.rows[lane()][k] : 0;
#pragma unroll
    for (u32 d = 1; d < kWarps; d *= 2) {
      const u32 below = __shfl_up_sync(kFullMask, row, d);
      if (lane() >= d) row += below;
    }
    total[k] = __shfl_sync(kFullMask, row, kWarps - 1);
    const u32 before = __shfl_sync(kFullMask, row, warp() == 0 ? 0 : warp() - 1);
    v[k] += (warp() == 0 ? 0 : before) - own[k];
  }
}

// Sum over this and the lanes below.
__device__ __forceinline__ u32 warp_scan(u32 v) {
#pragma unroll
  for (u32 d = 1; d < 32; d *= 2) {
    const u32 below = __shfl_up_sync(kFullMask, v, d);
    if (lane() >= d) v += below;
  }
  return v;
}

__device__ __forceinline__ u64 warp_sum(u64 v) {
  for (u32 d = 16; d > 0; d /= 2) v += __shfl_xor_sync(kFullMask, v, d);
  return v;
}

// Among the first eight lanes of a warp: the sum over earlier lanes.
__device__ __forceinline__ u32 prefix_of_classes(u32 v) {
  u32 sum = v;
#pragma unroll
  for (u32 d = 1; d < kNumClasses; d *= 2) {
    const u32 below = __shfl_up_sync(kFullMask, sum, d);
    if (lane() >= d) sum += below;
  }
  return sum - v;
}

// ---- bits in shared memory -------------------------------------------------
// `words` is zero where nothing was put yet.
__device__ __forceinline__ void put_bits(u32* words, u32 at, u32 bits, u32 num_bits) {
  if (bits == 0) return;
  const u32 shift = at % 32;
  atomicOr(words + at / 32, bits << shift);
  if (shift + num_bits > 32) atomicOr(words + at / 32 + 1, bits >> (32 - shift));
}

}  // namespace snug::cuda::deltas
