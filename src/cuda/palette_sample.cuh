// cuda/palette_sample.cuh - what an encoding warp keeps in shared memory, and how
// it looks at a BF16 block before coding it: statistics of a sample, and whether
// all values are one.
#pragma once
#include "codec/sample.h"
#include "codec/sections.h"
#include "cuda/entropy_tables.cuh"
#include "cuda/tensor_access.cuh"

namespace snug::cuda {

// Shared memory of one warp, followed by room for the words (3.5 bits a value and
// a group more, filled from the end) and the escapes (1/32 byte a value, likewise). `lut` maps an
// exponent to what coding it takes; the histogram is done with when the lut is filled.
struct alignas(16) EncodeSmem {
  union {
    uint2 lut[256];
    struct {
      std::uint32_t histogram[256];
      std::uint32_t list[kPaletteListWords];
    };
  };
  std::uint32_t nibbles[2][16];

  __device__ __forceinline__ std::uint8_t* rest() {
    return reinterpret_cast<std::uint8_t*>(this + 1);
  }
};

__host__ __device__ constexpr std::uint32_t words_room(std::uint32_t block_elems) {
  return block_elems / 16 * 7 + 256;
}
__host__ __device__ constexpr std::uint32_t escapes_room(std::uint32_t block_elems) {
  return block_elems / 32;
}

__host__ __device__ constexpr std::uint32_t palette_smem_bytes(int log2_block) {
  const std::uint32_t n = 1u << log2_block;
  // 16 bytes of zeros behind the escapes.
  return static_cast<std::uint32_t>(sizeof(EncodeSmem)) + words_room(n) + escapes_room(n) + 16;
}

// The planes of 8 values: low bytes (mantissa and sign) of a vector.
__device__ __forceinline__ uint2 low_bytes(uint4 v) {
  const auto rotated = [](std::uint32_t w) {
    std::uint32_t r;  // (w >> 15 & mask) | (w << 1 & ~mask)
    asm("lop3.b32 %0, %1, %2, 0x00010001, 0xE4;" : "=r"(r) : "r"(w >> 15), "r"(w << 1));
    return r;
  };
  return {__byte_perm(rotated(v.x), rotated(v.y), 0x6420),
          __byte_perm(rotated(v.z), rotated(v.w), 0x6420)};
}

// Counts the exponents of a vector, and the nibbles of its low bytes.
__device__ __forceinline__ void count_exponents(uint4 v, std::uint32_t histogram) {
  const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    count_shared(histogram + (words[i] >> 5 & 0x3FC));
    count_shared(histogram + (words[i] >> 21 & 0x3FC));
  }
}
__device__ __forceinline__ void count_low_nibbles(uint4 v, std::uint32_t nibbles) {
  const uint2 low = low_bytes(v);
#pragma unroll 1
  for (unsigned i = 0; i < 32; i += 8) {
    count_shared(nibbles + (low.x >> i & 15) * 4);
    count_shared(nibbles + 64 + (low.x >> i >> 4 & 15) * 4);
    count_shared(nibbles + (low.y >> i & 15) * 4);
    count_shared(nibbles + 64 + (low.y >> i >> 4 & 15) * 4);
  }
}

// Counts the sampled values; true if all of them equal the first.
template <class Access>
__device__ __noinline__ bool sample_bf16(Access src, std::uint64_t pos, std::uint32_t n,
                                         EncodeSmem* smem) {
  const unsigned lane = lane_id();
  const std::uint32_t histogram = shared_address(smem->histogram),
                      nibbles = shared_address(smem->nibbles);
#pragma unroll
  for (unsigned i = 0; i < 256; i += kWarp) store_shared(histogram + 4 * (i + lane), 0u);
  store_shared(nibbles + 4 * lane, 0u);
  const auto stride = static_cast<std::uint32_t>(codec::sample_stride(n));  // a power of two
  const std::uint32_t shift = 31 - __clz(static_cast<int>(stride));
  // First value of a vector; two vectors a run.
  const auto vec_start = [&](std::uint32_t vec) {
    const std::uint32_t run = vec / 2;
    return ((run << shift) + (run & (stride - 1))) * 16 + vec % 2 * 8;
  };
  std::uint32_t differs = 0;
  __syncwarp();
  if (n % 4096 != 0) {
    const std::uint32_t first = src.load_byte(pos) | std::uint32_t{src.load_byte(pos + 1)} << 8;
    // Value by value: only the last block of a tensor comes here.
#pragma unroll 1
    for (std::uint32_t i = lane; vec_start(i / 8) + i % 8 < n; i += kWarp) {
      const std::uint32_t at = vec_start(i / 8) + i % 8;
      const std::uint32_t v =
          src.load_byte(pos + 2 * at) | std::uint32_t{src.load_byte(pos + 2 * at + 1)} << 8;
      const std::uint32_t low = (v << 1 & 0xFE) | v >> 15;
      differs |= v ^ first;
      count_shared(histogram + (v >> 5 & 0x3FC));
      if (i / 16 % 4 != 0) continue;
      count_shared(nibbles + (low & 15) * 4);
      count_shared(nibbles + 64 + (low >> 4) * 4);
    }
    __syncwarp();
    return !__any_sync(kAll, differs != 0);
  }
  constexpr unsigned kUnroll = 8, kNoiseUnroll = 4;
  const std::uint32_t num_vecs = n >> (3 + shift);
  // One run in four once more, for the low bytes.
  const std::uint32_t num_noise = num_vecs / 4;
  uint4 noise[kNoiseUnroll];
  const auto load_noise = [&](std::uint32_t base) {
#pragma unroll
    for (unsigned u = 0; u < kNoiseUnroll; ++u) {
      const std::uint32_t i = min(base + u * kWarp, num_noise - 1);
      noise[u] = src.peek16(pos + 2 * std::uint64_t{vec_start(i / 2 * 8 + i % 2)});
    }
  };
  load_noise(lane);
  std::uint32_t first = 0;  // of the lane's values, twice
#pragma unroll 1
  for (std::uint32_t base = lane; base < num_vecs; base += kUnroll * kWarp) {
    uint4 v[kUnroll];
#pragma unroll
    for (unsigned u = 0; u < kUnroll; ++u)
      v[u] = src.peek16(pos + 2 * std::uint64_t{vec_start(min(base + u * kWarp, num_vecs - 1))});
    if (base == lane) first = __byte_perm(v[0].x, 0, 0x1010);
#pragma unroll
    for (unsigned u = 0; u < kUnroll; ++u) {
      differs |= (v[u].x ^ first) | (v[u].y ^ first) | (v[u].z ^ first) | (v[u].w ^ first);
      if (base + u * kWarp < num_vecs) count_exponents(v[u], histogram);
    }
  }
#pragma unroll 1
  for (std::uint32_t base = lane;;) {
#pragma unroll
    for (unsigned u = 0; u < kNoiseUnroll; ++u)
      if (base + u * kWarp < num_noise) count_low_nibbles(noise[u], nibbles);
    base += kNoiseUnroll * kWarp;
    if (base >= num_noise) break;
    load_noise(base);
  }
  __syncwarp();
  differs |= first ^ __shfl_sync(kAll, first, 0);
  return !__any_sync(kAll, differs != 0);
}

// Whether all values of a whole block equal its first.
template <class Access>
__device__ __noinline__ bool is_constant_bf16(Access src, std::uint64_t pos, std::uint32_t n) {
  const std::uint32_t first = __byte_perm(src.peek16(pos).x, 0, 0x1010);
  constexpr unsigned kUnroll = 8;
#pragma unroll 1
  for (std::uint32_t vec = lane_id(); vec < n / 8 + lane_id(); vec += kUnroll * kWarp) {
    std::uint32_t differs = 0;
#pragma unroll
    for (unsigned u = 0; u < kUnroll; ++u) {
      const uint4 v = src.peek16(pos + 16 * std::uint64_t{min(vec + u * kWarp, n / 8 - 1)});
      differs |= (v.x ^ first) | (v.y ^ first) | (v.z ^ first) | (v.w ^ first);
    }
    if (__any_sync(kAll, differs != 0)) return false;
  }
  return true;
}

}  // namespace snug::cuda
