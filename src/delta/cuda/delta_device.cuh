// delta/cuda/delta_device.cuh - what the delta kernels share: the state of a call,
// sums over a warp, groups of neighbours and their hash, bits in shared memory.
#pragma once
#include <cstdint>

#include "codec/cuda/frame/device_frame.cuh"
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
inline constexpr u32 kGroup = 32;         // neighbours that one lane works on at a time
inline constexpr u32 kRow = 32 * kGroup;  // those of a warp
inline constexpr std::size_t kStateBytes = 256;
inline constexpr int kDefaultGpuLog2Block = 13, kMaxGpuLog2Block = 14;

// Of one call; zero before it starts.
struct CallState {
  u32 ticket, done;
  u64 base_sum, target_sum;  // hash terms
  u64 num_changed;
  u64 head_sum;     // checksum terms of the index
  u64 first_error;  // see report(); 0: none
  u32 num_large;    // blocks that apply_kernel leaves to the launch with more room
};
static_assert(sizeof(CallState) <= kStateBytes);

__device__ inline u64 read_state(u64* value) { return atomicAdd(value, u64{0}); }

__device__ __forceinline__ u32 lane() { return threadIdx.x % 32; }
__device__ __forceinline__ u32 warp() { return threadIdx.x / 32; }
__device__ __forceinline__ u32 lanes_below() { return (1u << lane()) - 1; }
__device__ __forceinline__ u32 count_bits(u32 v) { return static_cast<u32>(__popc(v)); }
__device__ __forceinline__ u32 width_of_bits(u32 v) {
  return 32 - static_cast<u32>(__clz(static_cast<int>(v)));
}

__device__ __forceinline__ u32 lowest_bit(u32 v) {
  return static_cast<u32>(__clz(static_cast<int>(__brev(v))));
}

__device__ __forceinline__ void prefetch_to_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

template <u32 kWidth>
__device__ __forceinline__ u32 element(const u8* block, u32 i) {
  return kWidth == 2 ? u32{reinterpret_cast<const u16*>(block)[i]} : u32{block[i]};
}

// ---- sums over a warp ------------------------------------------------------
// Adds what the lane `distance` below has, where there is one: the shuffle
// itself knows.
__device__ __forceinline__ u32 add_from_below(u32 v, u32 distance) {
  u32 sum;
  asm volatile(
      "{ .reg .pred p;\n"
      "shfl.sync.up.b32 %0|p, %1, %2, 0, 0xffffffff;\n"
      "@p add.u32 %0, %0, %1; }"
      : "=&r"(sum)
      : "r"(v), "r"(distance));
  return sum;
}

// Over this and the lanes below.
__device__ __forceinline__ u32 warp_scan(u32 v) {
#pragma unroll
  for (u32 d = 1; d < 32; d *= 2) v = add_from_below(v, d);
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
  for (u32 d = 1; d < kNumClasses; d *= 2) sum = add_from_below(sum, d);
  return sum - v;
}

// ---- hash ------------------------------------------------------------------
// Terms of pairs of words: delta::hash_term, with all that can be done once for
// many pairs. `pair` is the index of the first; the others' distances from it
// are known to the compiler.
class HashTerms {
 public:
  __device__ explicit HashTerms(u32 pair)
      : key_a_(pair * delta::kHashKeyA), key_b_(pair * delta::kHashKeyB + delta::kHashKeyA) {}

  __device__ __forceinline__ void add(u32 a, u32 b, u32 distance) {
    const u32 x = a + key_a_ + distance * delta::kHashKeyA;
    sum_ += u64{x} * (b + key_b_ + distance * delta::kHashKeyB);
    sum_a_ += x - distance * delta::kHashKeyA;
    sum_b_ += b;
    ++num_pairs_;
  }
  __device__ __forceinline__ u64 sum() const {
    return sum_ + (u64{sum_a_ - num_pairs_ * key_a_} << 32) + sum_b_;
  }

 private:
  u32 key_a_, key_b_;
  u64 sum_ = 0, sum_b_ = 0;
  u32 sum_a_ = 0, num_pairs_ = 0;
};

// ---- a lane's elements -----------------------------------------------------
template <u32 kWidth>
struct Group {
  static constexpr u32 kBytes = kGroup * kWidth;
  u32 words[8 * kWidth];

  // From an address that is a multiple of 16, where num_bytes are left; zeros
  // behind them.
  __device__ __forceinline__ void load(const u8* from, u32 num_bytes) {
    if (num_bytes >= kBytes) {
#pragma unroll
      for (u32 j = 0; j < 2 * kWidth; ++j) {
        const uint4 v = reinterpret_cast<const uint4*>(from)[j];
        words[4 * j] = v.x, words[4 * j + 1] = v.y, words[4 * j + 2] = v.z, words[4 * j + 3] = v.w;
      }
      return;
    }
#pragma unroll
    for (u32 j = 0; j < 8 * kWidth; ++j) {
      words[j] = 0;
      for (u32 k = 4 * j; k < 4 * j + 4; ++k)
        if (k < num_bytes) words[j] |= u32{from[k]} << 8 * (k % 4);
    }
  }
  // Hash terms of what lies within the tensor, of which this starts with pair
  // `pair`.
  __device__ __forceinline__ u64 hash(u32 pair, u32 num_bytes) const {
    if (num_bytes >= kBytes) {
      HashTerms terms(pair);
#pragma unroll
      for (u32 j = 0; j < 4 * kWidth; ++j) terms.add(words[2 * j], words[2 * j + 1], j);
      return terms.sum();
    }
    u64 sum = 0;
#pragma unroll
    for (u32 j = 0; j < 4 * kWidth; ++j)
      if (8 * j < num_bytes) sum += delta::hash_term(words[2 * j], words[2 * j + 1], pair + j);
    return sum;
  }
  // Zeros from element `valid` on: a byte that makes no whole element has no
  // class.
  __device__ __forceinline__ void clear_from(u32 valid) {
#pragma unroll
    for (u32 j = 0; j < 8 * kWidth; ++j) {
      const u32 bytes = valid * kWidth > 4 * j ? valid * kWidth - 4 * j : 0;
      if (bytes < 4) words[j] &= (1u << 8 * bytes) - 1;
    }
  }
};

// ---- bits in shared memory -------------------------------------------------
// Words that are zero where nothing was put yet. What lies at `limit` or behind
// it is not put.
struct BitTarget {
  u32* words;
  u32 limit;  // a bit; one word more than that is there

  __device__ __forceinline__ void put(u32 at, u32 bits, u32 num_bits) const {
    if (bits == 0 || at >= limit) return;
    const u32 shift = at % 32;
    atomicOr(words + at / 32, bits << shift);
    if (shift + num_bits > 32) atomicOr(words + at / 32 + 1, bits >> (32 - shift));
  }
  __device__ __forceinline__ void put_one(u32 at) const {
    if (at < limit) atomicOr(words + at / 32, 1u << at % 32);
  }
};

}  // namespace snug::cuda::deltas
