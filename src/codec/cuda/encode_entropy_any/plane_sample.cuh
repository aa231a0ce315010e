// codec/cuda/encode_entropy_any/plane_sample.cuh - how a warp reads a block of any type: values,
// planes, and the counts from which it chooses modes and tables.
#pragma once
#include "codec/cuda/encode_entropy_any/plane_section.cuh"
#include "codec/cuda/frame/plane_merge.cuh"
#include "codec/sample.h"

namespace snug::cuda {

template <class Access, int kWidth>
struct BlockValues {
  Access src;
  u64 pos;
  u32 n;
  bool rotate;

  // Four values from `value` on; those past the end are zero.
  __device__ __forceinline__ void load(u32 value, u32 (&words)[kWidth]) const {
    if (value + 4 <= n) {
      load_whole(value, words);
    } else {
      const Words<kWidth> some = load_some<kWidth>(
          src, pos + u64{value} * kWidth, value < n ? static_cast<i32>((n - value) * kWidth) : 0);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) words[i] = some.w[i];
    }
  }
  // The same where all four exist: without a branch, loads overlap.
  __device__ __forceinline__ void load_whole(u32 value, u32 (&words)[kWidth]) const {
    load_four<kWidth>(src, pos + u64{value} * kWidth, words);
  }
  // Rotates loaded words; separate, so that loads overlap. Single bytes stay as they are: their
  // histogram and look-up table are rotated instead.
  __device__ __forceinline__ void rotate_words(u32 (&words)[kWidth]) const {
    if (kWidth > 1 && rotate) rotate_ahead<kWidth>(words);
  }
  // One plane of loaded words.
  __device__ __forceinline__ u32 pick(u32 (&words)[kWidth], unsigned p) const {
    if constexpr (kWidth == 2) {
      // Without a branch: signs belong to the low plane.
      const u32 signs = rotate && p == 0 ? 0x00010001u : 0, left = rotate ? 1 : 0;
      const auto rotated = [&](u32 w) { return (w << left & ~signs) | (w >> 15 & signs); };
      return __byte_perm(rotated(words[0]), rotated(words[1]), p == 0 ? 0x6420 : 0x7531);
    }
    rotate_words(words);
    return plane_of<kWidth>(words, p);
  }
  __device__ __forceinline__ u32 plane(u32 value, unsigned p) const {
    u32 words[kWidth];
    load(value, words);
    return pick(words, p);
  }
};

// Whether all elements of a block are the same.
template <class Access>
__device__ __noinline__ bool is_constant_block(Access src, u64 pos, u32 num_bytes, unsigned width) {
  u32 first[2] = {};
  for (unsigned i = 0; i < 8; ++i)
    first[i / 4] |= u32{src.load_byte(pos + i % width)} << (i % 4 * 8);
  bool same = true;
  for (u32 i = num_bytes / 16 * 16 + lane_id(); i < num_bytes; i += kWarpSize)
    same &= src.load_byte(pos + i) == static_cast<u8>(first[i % 8 / 4] >> (i % 4 * 8));
  constexpr u32 kUnroll = 4;
#pragma unroll 1
  for (u32 base = lane_id(); base < num_bytes / 16 + lane_id(); base += kUnroll * kWarpSize) {
#pragma unroll
    for (u32 u = 0; u < kUnroll; ++u) {
      if (base + u * kWarpSize >= num_bytes / 16) continue;
      const uint4 v = src.peek16(pos + 16 * u64{base + u * kWarpSize});
      same &= v.x == first[0] && v.y == first[1] && v.z == first[0] && v.w == first[1];
    }
    if (!__all_sync(kAllLanes, same)) return false;
  }
  return __all_sync(kAllLanes, same);
}

// The histogram is aligned: one logical operation computes an address.
__device__ __forceinline__ void count_bytes(u32 bytes, u32 histogram) {
  increment_shared((bytes << 2 & 0x3FC) | histogram);
  increment_shared((bytes >> 6 & 0x3FC) | histogram);
  increment_shared((bytes >> 14 & 0x3FC) | histogram);
  increment_shared((bytes >> 22 & 0x3FC) | histogram);
}
__device__ __forceinline__ void count_nibbles(u32 bytes, u32 counts) {
#pragma unroll
  for (unsigned k = 0; k < 32; k += 8) {
    increment_shared(counts + (bytes >> k & 15) * 4);
    increment_shared(counts + 64 + (bytes >> k >> 4 & 15) * 4);
  }
}

// Makes counts of bytes rotated left by one bit from counts of bytes.
inline __device__ __noinline__ void turn_histogram(u32* histogram) {
  const unsigned lane = lane_id();
  u32 counts[8];
#pragma unroll
  for (unsigned i = 0; i < 8; ++i)
    counts[i] = histogram[(i * kWarpSize + lane) / 2 + lane % 2 * 128];
  __syncwarp();
#pragma unroll
  for (unsigned i = 0; i < 8; ++i) histogram[i * kWarpSize + lane] = counts[i];
  __syncwarp();
}

// The first value of the i-th sampled four; a run consists of four fours.
__device__ __forceinline__ u32 sampled_four(u32 i, u32 stride) {
  const u32 run = i / 4;
  return (run * stride + (run & (stride - 1))) * 16 + i % 4 * 4;
}

// Whether the sample of n values is whole runs, the same number for each lane.
__device__ __forceinline__ bool has_even_sample(u32 n) { return n >= 4096 && (n & (n - 1)) == 0; }

// Counts the sampled values of a block of any size.
template <class Access, int kWidth>
__device__ __noinline__ void take_odd_sample(BlockValues<Access, kWidth> values, u32 stride,
                                             PlaneSmem* smem) {
  const u32 histogram = shared_address(smem->histogram), nibbles = shared_address(smem->nibbles);
#pragma unroll 1
  for (u32 i = lane_id(); i / 4 * stride * 16 < values.n; i += kWarpSize) {
    const u32 at = sampled_four(i, stride);
    if (at >= values.n) continue;
    const u32 here = min(values.n - at, 4u);
    u32 words[kWidth];
    values.load(at, words);
    values.rotate_words(words);
    const u32 top = plane_of<kWidth>(words, kWidth - 1);
    for (u32 k = 0; k < here; ++k) increment_shared(histogram + (top >> (8 * k) & 255) * 4);
    if constexpr (kWidth > 1) {
      if (i / 4 % 4 != 0) continue;
#pragma unroll
      for (int p = 0; p < kWidth - 1; ++p) {
        const u32 bytes = plane_of<kWidth>(words, static_cast<unsigned>(p)),
                  counts = nibbles + 128 * static_cast<unsigned>(p);
        for (u32 k = 0; k < here; ++k) {
          increment_shared(counts + (bytes >> (8 * k) & 15) * 4);
          increment_shared(counts + 64 + (bytes >> (8 * k + 4) & 15) * 4);
        }
      }
    }
  }
  __syncwarp();
}

// Counts the nibbles of the planes below the top one, of one sampled run in four.
template <class Access, int kWidth>
__device__ __forceinline__ void sample_planes_below(const BlockValues<Access, kWidth>& values,
                                                    u32 stride, PlaneSmem* smem) {
  const u32 nibbles = shared_address(smem->nibbles), num_fours = values.n / stride / 4;
  if constexpr (kWidth > 1) {
    constexpr u32 kNoiseBatch = kWidth == 8 ? 2 : 4;
#pragma unroll 1
    for (u32 base = lane_id(); base < num_fours / 4; base += kNoiseBatch * kWarpSize) {
      u32 words[kNoiseBatch][kWidth];
#pragma unroll
      for (u32 u = 0; u < kNoiseBatch; ++u) {
        const u32 i = base + u * kWarpSize;
        values.load_whole(sampled_four(i / 4 * 16 + i % 4, stride), words[u]);
      }
#pragma unroll
      for (u32 u = 0; u < kNoiseBatch; ++u) {
        values.rotate_words(words[u]);
#pragma unroll
        for (unsigned p = 0; p + 1 < kWidth; ++p)
          count_nibbles(plane_of<kWidth>(words[u], p), nibbles + 128 * p);
      }
    }
  }
}

// Whether the block may be one repeated value: no lane saw a word that differs from its first one,
// and the first ones agree.
template <int kWidth>
__device__ __forceinline__ bool may_be_constant(const u32 (&first)[kWidth], u32 differs) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) differs |= first[i] ^ __shfl_sync(kAllLanes, first[i], 0);
  if constexpr (kWidth == 1) differs |= first[0] ^ __byte_perm(first[0], 0, 0);
  if constexpr (kWidth == 2) differs |= first[0] ^ __byte_perm(first[1], 0, 0x1010);
  if constexpr (kWidth == 4) differs |= first[0] ^ first[1];
  if constexpr (kWidth == 8) differs |= (first[0] ^ first[2]) | (first[1] ^ first[3]);
  return !__any_sync(kAllLanes, differs != 0);
}

// Counts the sampled values: top bytes, and the nibbles of the planes below. Returns whether
// the block may be one repeated value.
template <class Access, int kWidth>
__device__ __noinline__ bool take_sample(BlockValues<Access, kWidth> values, PlaneSmem* smem) {
  const unsigned lane = lane_id();
  const u32 histogram = shared_address(smem->histogram), nibbles = shared_address(smem->nibbles);
#pragma unroll
  for (unsigned i = 0; i < 256; i += kWarpSize) store_shared(histogram + 4 * (i + lane), 0u);
#pragma unroll
  for (unsigned p = 0; p + 1 < kWidth; ++p) store_shared(nibbles + 4 * (p * kWarpSize + lane), 0u);
  __syncwarp();
  const auto stride = static_cast<u32>(codec::sample_stride(values.n));
  if (!has_even_sample(values.n)) {
    take_odd_sample(values, stride, smem);
    if (kWidth == 1 && values.rotate) turn_histogram(smem->histogram);
    return true;
  }
  // All loads of a batch are issued before the first count.
  constexpr u32 kBatch = kWidth == 1 ? 16 : kWidth == 8 ? 4 : 8;
  const u32 num_fours = values.n / stride / 4;
  u32 first[kWidth], differs = 0;
#pragma unroll 1
  for (u32 base = lane; base < num_fours; base += kBatch * kWarpSize) {
    u32 words[kBatch][kWidth];
#pragma unroll
    for (u32 u = 0; u < kBatch; ++u)
      values.load_whole(sampled_four(base + u * kWarpSize, stride), words[u]);
    if (base == lane)
#pragma unroll
      for (int i = 0; i < kWidth; ++i) first[i] = words[0][i];
#pragma unroll
    for (u32 u = 0; u < kBatch; ++u) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) differs |= words[u][i] ^ first[i];
      count_bytes(values.pick(words[u], kWidth - 1), histogram);
    }
  }
  sample_planes_below(values, stride, smem);
  __syncwarp();
  if (kWidth == 1 && values.rotate) turn_histogram(smem->histogram);
  return may_be_constant<kWidth>(first, differs);
}

// Exact counts of one plane.
template <class Access, int kWidth>
__device__ __noinline__ void count_plane(BlockValues<Access, kWidth> values, unsigned plane,
                                         PlaneSmem* smem) {
  const u32 histogram = shared_address(smem->histogram);
#pragma unroll
  for (unsigned i = 0; i < 256; i += kWarpSize) store_shared(histogram + 4 * (i + lane_id()), 0u);
  __syncwarp();
  // Four values at a time, or vectors where they hold more.
  constexpr u32 kFours = kWidth == 1 ? 4 : kWidth == 2 ? 2 : 1;
  constexpr u32 kBatch = kWidth == 8 ? 2 : 4, kStep = 4 * kFours * kWarpSize;
  u32 first = 0;
#pragma unroll 1
  for (; first + kBatch * kStep <= values.n; first += kBatch * kStep) {
    u32 words[kBatch][kFours][kWidth];
#pragma unroll
    for (u32 u = 0; u < kBatch; ++u) {
      const u32 value = first + u * kStep + 4 * kFours * lane_id();
      if constexpr (kFours == 1) {
        values.load_whole(value, words[u][0]);
      } else {
        const uint4 v = values.src.peek16(values.pos + u64{value} * kWidth);
        const u32 all[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (u32 i = 0; i < 4; ++i) words[u][i / kWidth][i % kWidth] = all[i];
      }
    }
#pragma unroll
    for (u32 u = 0; u < kBatch; ++u)
#pragma unroll
      for (u32 k = 0; k < kFours; ++k) count_bytes(values.pick(words[u][k], plane), histogram);
  }
#pragma unroll 1
  for (u32 value = first + 4 * lane_id(); value < values.n; value += 128) {
    const u32 bytes = values.plane(value, plane);
    for (unsigned k = 0; k < 4 && value + k < values.n; ++k)
      increment_shared(histogram + (bytes >> (8 * k) & 255) * 4);
  }
  __syncwarp();
  if (kWidth == 1 && values.rotate) turn_histogram(smem->histogram);
}

}  // namespace snug::cuda
