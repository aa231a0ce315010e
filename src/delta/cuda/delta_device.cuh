// delta/cuda/delta_device.cuh - what the delta kernels share: the state of a call, groups of
// neighbouring elements and their hash, bits in shared memory.
#pragma once
#include <cstdint>

#include "codec/cuda/frame/device_frame.cuh"
#include "delta/delta_format.h"
#include "snug/cuda.h"

namespace snug::cuda::deltas {

using delta::kNumClasses;
using delta::Subset;

inline constexpr std::uint32_t kGroup = 32;         // neighbours that a lane works on at a time
inline constexpr std::uint32_t kRow = 32 * kGroup;  // and a warp
inline constexpr std::size_t kStateBytes = 256;
inline constexpr int kDefaultGpuLog2Block = 13, kMaxGpuLog2Block = 14;

// State of one call; zero before it starts.
struct CallState {
  std::uint32_t ticket, done;
  unsigned long long base_sum, target_sum;  // hash terms
  unsigned long long num_changed;
  unsigned long long head_sum;     // checksum terms of the index
  unsigned long long first_error;  // see report(); 0: none
  std::uint32_t num_large;         // blocks that apply_kernel leaves to the launch with more room
};
static_assert(sizeof(CallState) <= kStateBytes);

__device__ inline std::uint64_t read_state(unsigned long long* value) {
  return atomicAdd(value, 0);
}

// Computed at each use, unlike lanes_below_mask(), which is kept in a register.
__device__ __forceinline__ std::uint32_t lanes_below() { return (1u << lane_id()) - 1; }
__device__ __forceinline__ std::uint32_t count_bits(std::uint32_t v) {
  return static_cast<std::uint32_t>(__popc(v));
}
__device__ __forceinline__ std::uint32_t width_of_bits(std::uint32_t v) {
  return 32 - static_cast<std::uint32_t>(__clz(static_cast<int>(v)));
}

__device__ __forceinline__ std::uint32_t lowest_bit(std::uint32_t v) {
  return static_cast<std::uint32_t>(__clz(static_cast<int>(__brev(v))));
}

template <unsigned kWidth>
__device__ __forceinline__ std::uint32_t element(const std::uint8_t* block, std::uint32_t i) {
  return kWidth == 2 ? std::uint32_t{reinterpret_cast<const std::uint16_t*>(block)[i]}
                     : std::uint32_t{block[i]};
}

// An exclusive sum over the first kNumClasses lanes of a warp.
__device__ __forceinline__ std::uint32_t prefix_of_classes(std::uint32_t v) {
  return warp_inclusive_sum_fused<kNumClasses>(v) - v;
}

// ---- hash ------------------------------------------------------------------
// delta::hash_term for many pairs of words, with the common work done once. `pair` is the index of
// the first; the compiler knows the distances of the others.
class HashTerms {
 public:
  __device__ explicit HashTerms(std::uint32_t pair)
      : key_a_(pair * delta::kHashKeyA), key_b_(pair * delta::kHashKeyB + delta::kHashKeyA) {}

  __device__ __forceinline__ void add(std::uint32_t a, std::uint32_t b, std::uint32_t distance) {
    const std::uint32_t x = a + key_a_ + distance * delta::kHashKeyA;
    sum_ += std::uint64_t{x} * (b + key_b_ + distance * delta::kHashKeyB);
    sum_a_ += x - distance * delta::kHashKeyA;
    sum_b_ += b;
    ++num_pairs_;
  }
  __device__ __forceinline__ std::uint64_t sum() const {
    return sum_ + (std::uint64_t{sum_a_ - num_pairs_ * key_a_} << 32) + sum_b_;
  }

 private:
  std::uint32_t key_a_, key_b_;
  std::uint64_t sum_ = 0, sum_b_ = 0;
  std::uint32_t sum_a_ = 0, num_pairs_ = 0;
};

// ---- a lane's elements -----------------------------------------------------
template <unsigned kWidth>
struct Group {
  static constexpr std::uint32_t kBytes = kGroup * kWidth;
  std::uint32_t words[8 * kWidth];

  // `from` is a multiple of 16 and has num_bytes; the rest is zero.
  __device__ __forceinline__ void load(const std::uint8_t* from, std::uint32_t num_bytes) {
    if (num_bytes >= kBytes) {
#pragma unroll
      for (unsigned j = 0; j < 2 * kWidth; ++j) {
        const uint4 v = reinterpret_cast<const uint4*>(from)[j];
        words[4 * j] = v.x, words[4 * j + 1] = v.y, words[4 * j + 2] = v.z, words[4 * j + 3] = v.w;
      }
      return;
    }
#pragma unroll
    for (unsigned j = 0; j < 8 * kWidth; ++j) {
      words[j] = 0;
      for (unsigned k = 4 * j; k < 4 * j + 4; ++k)
        if (k < num_bytes) words[j] |= std::uint32_t{from[k]} << 8 * (k % 4);
    }
  }
  // Hash terms of the bytes within the tensor; `pair` is the index of the first pair.
  __device__ __forceinline__ std::uint64_t hash(std::uint32_t pair, std::uint32_t num_bytes) const {
    if (num_bytes >= kBytes) {
      HashTerms terms(pair);
#pragma unroll
      for (unsigned j = 0; j < 4 * kWidth; ++j) terms.add(words[2 * j], words[2 * j + 1], j);
      return terms.sum();
    }
    std::uint64_t sum = 0;
#pragma unroll
    for (unsigned j = 0; j < 4 * kWidth; ++j)
      if (8 * j < num_bytes) sum += delta::hash_term(words[2 * j], words[2 * j + 1], pair + j);
    return sum;
  }
  // Zeros from element `valid` on: bytes behind the last whole element have no class.
  __device__ __forceinline__ void clear_from(std::uint32_t valid) {
#pragma unroll
    for (unsigned j = 0; j < 8 * kWidth; ++j) {
      const std::uint32_t bytes = valid * kWidth > 4 * j ? valid * kWidth - 4 * j : 0;
      if (bytes < 4) words[j] &= (1u << 8 * bytes) - 1;
    }
  }
};

// ---- bits in shared memory -------------------------------------------------
// Words that start as zeros. Bits at `limit` and beyond are dropped.
struct BitTarget {
  std::uint32_t* words;
  std::uint32_t limit;  // in bits; there is one more word

  __device__ __forceinline__ void put(std::uint32_t at, std::uint32_t bits,
                                      std::uint32_t num_bits) const {
    if (bits == 0 || at >= limit) return;
    const std::uint32_t shift = at % 32;
    atomicOr(words + at / 32, bits << shift);
    if (shift + num_bits > 32) atomicOr(words + at / 32 + 1, bits >> (32 - shift));
  }
  __device__ __forceinline__ void put_one(std::uint32_t at) const {
    if (at < limit) atomicOr(words + at / 32, 1u << at % 32);
  }
};

}  // namespace snug::cuda::deltas
