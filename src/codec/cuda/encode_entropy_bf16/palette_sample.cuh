// codec/cuda/encode_entropy_bf16/palette_sample.cuh - shared memory of an encoding warp, and what
// it learns about a BF16 block before coding it: counts of a sample, and whether it is constant.
#pragma once
#include "codec/cuda/encode_entropy_any/entropy_tables.cuh"
#include "codec/cuda/frame/tensor_access.cuh"
#include "codec/sample.h"
#include "codec/sections.h"

namespace snug::cuda {

inline constexpr unsigned kRingGroups = 4;  // of 256 values, in flight to the coder

// `lut` maps an exponent to its symbol. It replaces the histogram.
struct alignas(16) EncodeSmem {
  union {
    uint2 lut[256];
    struct {
      u32 histogram[256];
      u32 list[kPaletteListWords];
    };
  };
  u32 nibbles[2][16];
  alignas(16) u8 ring[512 * kRingGroups];
};

__device__ __forceinline__ DirectAccess keep_in_register(DirectAccess tensor) {
  asm volatile("mov.b64 %0, %0;" : "+l"(tensor.data));  // computed once
  return tensor;
}
__device__ __forceinline__ ScatteredAccess keep_in_register(const ScatteredAccess& tensor) {
  return tensor;
}

inline constexpr u32 kSampleBytes = 8192;  // of blocks of up to 65536 values

// The low plane (mantissa and sign) of 8 values.
__device__ __forceinline__ uint2 low_bytes(uint4 v) {
  const auto rotated = [](u32 w) {
    u32 r;  // (w >> 15 & mask) | (w << 1 & ~mask)
    asm("lop3.b32 %0, %1, %2, 0x00010001, 0xE4;" : "=r"(r) : "r"(w >> 15), "r"(w << 1));
    return r;
  };
  return {__byte_perm(rotated(v.x), rotated(v.y), 0x6420),
          __byte_perm(rotated(v.z), rotated(v.w), 0x6420)};
}

// Counts the exponents of a vector, and the nibbles of its low bytes. A dot product extracts a byte
// and adds the address of a table.
__device__ __forceinline__ void count_exponents(uint4 v, u32 histogram) {
  const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    const u32 shifted = words[i] << 1;  // exponents are bytes 1 and 3
    increment_shared(__dp4a(shifted, 0x400u, histogram));
    increment_shared(__dp4a(shifted, 0x4000000u, histogram));
  }
}
__device__ __forceinline__ void count_low_nibbles(uint4 v, u32 nibbles) {
  const uint2 low = low_bytes(v);
  const u32 words[4] = {low.x & 0x0F0F0F0F, low.y & 0x0F0F0F0F, low.x >> 4 & 0x0F0F0F0F,
                        low.y >> 4 & 0x0F0F0F0F};
#pragma unroll
  for (unsigned i = 0; i < 4; ++i)
#pragma unroll
    for (unsigned k = 0; k < 4; ++k)
      increment_shared(__dp4a(words[i], 4u << 8 * k, nibbles) + i / 2 * 64);
}

// Value by value, for the last block of a tensor.
template <class Access>
__device__ __noinline__ void sample_values(Access src, u64 pos, u32 n, u32 histogram, u32 nibbles) {
  const auto stride = static_cast<u32>(codec::sample_stride(n));
#pragma unroll 1
  for (u32 i = lane_id();; i += kWarpSize) {
    const u32 run = i / 16, at = (run * stride + run % stride) * 16 + i % 16;
    if (at >= n) break;
    const u32 v = src.load_byte(pos + 2 * at) | u32{src.load_byte(pos + 2 * at + 1)} << 8;
    const u32 low = (v << 1 & 0xFE) | v >> 15;
    increment_shared(histogram + (v >> 5 & 0x3FC));
    if (run % 4 != 0) continue;
    increment_shared(nibbles + (low & 15) * 4);
    increment_shared(nibbles + 64 + (low >> 4) * 4);
  }
}

// Starts copying the sampled values of a whole block to `room`, the vectors of a lane 512 bytes
// apart. A run is two vectors; those of a lane are equally spaced, because strides divide 16.
template <class Access>
__device__ __forceinline__ void fetch_sample(const Access& src, u64 pos, u32 n, u32 room) {
  const auto stride = static_cast<u32>(codec::sample_stride(n));
  const u32 run = lane_id() / 2;
  const Access mine = advanced(src, pos + 32 * (run * stride + run % stride) + lane_id() % 2 * 16);
#pragma unroll 4
  for (u32 i = 0; i < n / (256 * stride); ++i)
    mine.fetch16(512 * u64{stride * i}, room + 512 * i + 16 * lane_id());
  commit_copies();
}

// Counts the sampled values; `room` is 8 KiB (more where n > 65536) of shared memory. Short loops:
// warps are at different places of the code, and the instruction cache is small.
template <class Access>
__device__ __noinline__ void sample_bf16(Access src, u64 pos, u32 n, EncodeSmem* smem, u8* room) {
  const unsigned lane = lane_id();
  const u32 histogram = kept_shared_address(smem->histogram),
            nibbles = kept_shared_address(smem->nibbles), sample = shared_address(room);
  if (n % 4096 == 0) fetch_sample(src, pos, n, sample);
#pragma unroll
  for (unsigned i = 0; i < 256; i += 4 * kWarpSize)
    store_shared(histogram + 4 * (i + 4 * lane), uint4{});
  store_shared(nibbles + 4 * lane, 0u);
  __syncwarp();
  if (n % 4096 != 0) {
    sample_values(src, pos, n, histogram, nibbles);
    __syncwarp();
    return;
  }
  const u32 sample_end = sample + 2 * n / static_cast<u32>(codec::sample_stride(n));
  wait_copies<0>();
#pragma unroll 2
  for (u32 at = sample + 16 * lane; at < sample_end; at += 512)
    count_exponents(load_shared_b128(at), histogram);
  __syncwarp();
  // Low bytes of one run in four: 32 bytes of 128.
#pragma unroll 1
  for (u32 at = sample + lane / 2 * 128 + lane % 2 * 16; at < sample_end; at += 2048)
    count_low_nibbles(load_shared_b128(at), nibbles);
  __syncwarp();
}

// Whether all values of a whole block equal its first.
template <class Access>
__device__ __noinline__ bool is_constant_bf16(Access src, u64 pos, u32 n) {
  const u32 first = __byte_perm(src.peek16(pos).x, 0, 0x1010);
  constexpr unsigned kUnroll = 8;
#pragma unroll 1
  for (u32 vec = lane_id(); vec < n / 8 + lane_id(); vec += kUnroll * kWarpSize) {
    u32 differs = 0;
#pragma unroll
    for (unsigned u = 0; u < kUnroll; ++u) {
      const uint4 v = src.peek16(pos + 16 * u64{min(vec + u * kWarpSize, n / 8 - 1)});
      differs |= (v.x ^ first) | (v.y ^ first) | (v.z ^ first) | (v.w ^ first);
    }
    if (__any_sync(kAllLanes, differs != 0)) return false;
  }
  return true;
}

}  // namespace snug::cuda
