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
  std::uint64_t pos;
  std::uint32_t n;
  bool rotate;

  // Four values from `value` on; those past the end are zero.
  __device__ __forceinline__ void load(std::uint32_t value, std::uint32_t (&words)[kWidth]) const {
    if (value + 4 <= n) {
      load_whole(value, words);
    } else {
      const Words<kWidth> some =
          load_some<kWidth>(src, pos + std::uint64_t{value} * kWidth,
                            value < n ? static_cast<std::int32_t>((n - value) * kWidth) : 0);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) words[i] = some.w[i];
    }
  }
  // The same where all four exist: without a branch, loads overlap.
  __device__ __forceinline__ void load_whole(std::uint32_t value,
                                             std::uint32_t (&words)[kWidth]) const {
    load_four<kWidth>(src, pos + std::uint64_t{value} * kWidth, words);
  }
  // Rotates loaded words; separate, so that loads overlap. Single bytes stay as they are: their
  // histogram and look-up table are rotated instead.
  __device__ __forceinline__ void rotate_words(std::uint32_t (&words)[kWidth]) const {
    if (kWidth > 1 && rotate) rotate_ahead<kWidth>(words);
  }
  // One plane of loaded words.
  __device__ __forceinline__ std::uint32_t pick(std::uint32_t (&words)[kWidth], unsigned p) const {
    if constexpr (kWidth == 2) {
      // Without a branch: signs belong to the low plane.
      const std::uint32_t signs = rotate && p == 0 ? 0x00010001u : 0, left = rotate ? 1 : 0;
      const auto rotated = [&](std::uint32_t w) {
        return (w << left & ~signs) | (w >> 15 & signs);
      };
      return __byte_perm(rotated(words[0]), rotated(words[1]), p == 0 ? 0x6420 : 0x7531);
    }
    rotate_words(words);
    return plane_of<kWidth>(words, p);
  }
  __device__ __forceinline__ std::uint32_t plane(std::uint32_t value, unsigned p) const {
    std::uint32_t words[kWidth];
    load(value, words);
    return pick(words, p);
  }
};

// Whether all elements of a block are the same.
template <class Access>
__device__ __noinline__ bool is_constant_block(Access src, std::uint64_t pos,
                                               std::uint32_t num_bytes, unsigned width) {
  std::uint32_t first[2] = {};
  for (unsigned i = 0; i < 8; ++i)
    first[i / 4] |= std::uint32_t{src.load_byte(pos + i % width)} << (i % 4 * 8);
  bool same = true;
  for (std::uint32_t i = num_bytes / 16 * 16 + lane_id(); i < num_bytes; i += kWarpSize)
    same &= src.load_byte(pos + i) == static_cast<std::uint8_t>(first[i % 8 / 4] >> (i % 4 * 8));
  constexpr std::uint32_t kUnroll = 4;
#pragma unroll 1
  for (std::uint32_t base = lane_id(); base < num_bytes / 16 + lane_id();
       base += kUnroll * kWarpSize) {
#pragma unroll
    for (std::uint32_t u = 0; u < kUnroll; ++u) {
      if (base + u * kWarpSize >= num_bytes / 16) continue;
      const uint4 v = src.peek16(pos + 16 * std::uint64_t{base + u * kWarpSize});
      same &= v.x == first[0] && v.y == first[1] && v.z == first[0] && v.w == first[1];
    }
    if (!__all_sync(kAllLanes, same)) return false;
  }
  return __all_sync(kAllLanes, same);
}

// The histogram is aligned: one logical operation computes an address.
__device__ __forceinline__ void count_bytes(std::uint32_t bytes, std::uint32_t histogram) {
  increment_shared((bytes << 2 & 0x3FC) | histogram);
  increment_shared((bytes >> 6 & 0x3FC) | histogram);
  increment_shared((bytes >> 14 & 0x3FC) | histogram);
  increment_shared((bytes >> 22 & 0x3FC) | histogram);
}
__device__ __forceinline__ void count_nibbles(std::uint32_t bytes, std::uint32_t counts) {
#pragma unroll
  for (unsigned k = 0; k < 32; k += 8) {
    increment_shared(counts + (bytes >> k & 15) * 4);
    increment_shared(counts + 64 + (bytes >> k >> 4 & 15) * 4);
  }
}

// Makes counts of bytes rotated left by one bit from counts of bytes.
inline __device__ __noinline__ void turn_histogram(std::uint32_t* histogram) {
  const unsigned lane = lane_id();
  std::uint32_t counts[8];
#pragma unroll
  for (unsigned i = 0; i < 8; ++i)
    counts[i] = histogram[(i * kWarpSize + lane) / 2 + lane % 2 * 128];
  __syncwarp();
#pragma unroll
  for (unsigned i = 0; i < 8; ++i) histogram[i * kWarpSize + lane] = counts[i];
  __syncwarp();
}

// The first value of the i-th sampled four; a run consists of four fours.
__device__ __forceinline__ std::uint32_t sampled_four(std::uint32_t i, std::uint32_t stride) {
  const std::uint32_t run = i / 4;
  return (run * stride + (run & (stride - 1))) * 16 + i % 4 * 4;
}

// Whether the sample of n values is whole runs, the same number for each lane.
__device__ __forceinline__ bool has_even_sample(std::uint32_t n) {
  return n >= 4096 && (n & (n - 1)) == 0;
}

// Counts the sampled values of a block of any size.
template <class Access, int kWidth>
__device__ __noinline__ void take_odd_sample(BlockValues<Access, kWidth> values,
                                             std::uint32_t stride, PlaneSmem* smem) {
  const std::uint32_t histogram = shared_address(smem->histogram),
                      nibbles = shared_address(smem->nibbles);
#pragma unroll 1
  for (std::uint32_t i = lane_id(); i / 4 * stride * 16 < values.n; i += kWarpSize) {
    const std::uint32_t at = sampled_four(i, stride);
    if (at >= values.n) continue;
    const std::uint32_t here = min(values.n - at, 4u);
    std::uint32_t words[kWidth];
    values.load(at, words);
    values.rotate_words(words);
    const std::uint32_t top = plane_of<kWidth>(words, kWidth - 1);
    for (std::uint32_t k = 0; k < here; ++k)
      increment_shared(histogram + (top >> (8 * k) & 255) * 4);
    if constexpr (kWidth > 1) {
      if (i / 4 % 4 != 0) continue;
#pragma unroll
      for (int p = 0; p < kWidth - 1; ++p) {
        const std::uint32_t bytes = plane_of<kWidth>(words, static_cast<unsigned>(p)),
                            counts = nibbles + 128 * static_cast<unsigned>(p);
        for (std::uint32_t k = 0; k < here; ++k) {
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
                                                    std::uint32_t stride, PlaneSmem* smem) {
  const std::uint32_t nibbles = shared_address(smem->nibbles), num_fours = values.n / stride / 4;
  if constexpr (kWidth > 1) {
    constexpr std::uint32_t kNoiseBatch = kWidth == 8 ? 2 : 4;
#pragma unroll 1
    for (std::uint32_t base = lane_id(); base < num_fours / 4; base += kNoiseBatch * kWarpSize) {
      std::uint32_t words[kNoiseBatch][kWidth];
#pragma unroll
      for (std::uint32_t u = 0; u < kNoiseBatch; ++u) {
        const std::uint32_t i = base + u * kWarpSize;
        values.load_whole(sampled_four(i / 4 * 16 + i % 4, stride), words[u]);
      }
#pragma unroll
      for (std::uint32_t u = 0; u < kNoiseBatch; ++u) {
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
__device__ __forceinline__ bool may_be_constant(const std::uint32_t (&first)[kWidth],
                                                std::uint32_t differs) {
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
  const std::uint32_t histogram = shared_address(smem->histogram),
                      nibbles = shared_address(smem->nibbles);
#pragma unroll
  for (unsigned i = 0; i < 256; i += kWarpSize) store_shared(histogram + 4 * (i + lane), 0u);
#pragma unroll
  for (unsigned p = 0; p + 1 < kWidth; ++p) store_shared(nibbles + 4 * (p * kWarpSize + lane), 0u);
  __syncwarp();
  const auto stride = static_cast<std::uint32_t>(codec::sample_stride(values.n));
  if (!has_even_sample(values.n)) {
    take_odd_sample(values, stride, smem);
    if (kWidth == 1 && values.rotate) turn_histogram(smem->histogram);
    return true;
  }
  // All loads of a batch are issued before the first count.
  constexpr std::uint32_t kBatch = kWidth == 1 ? 16 : kWidth == 8 ? 4 : 8;
  const std::uint32_t num_fours = values.n / stride / 4;
  std::uint32_t first[kWidth], differs = 0;
#pragma unroll 1
  for (std::uint32_t base = lane; base < num_fours; base += kBatch * kWarpSize) {
    std::uint32_t words[kBatch][kWidth];
#pragma unroll
    for (std::uint32_t u = 0; u < kBatch; ++u)
      values.load_whole(sampled_four(base + u * kWarpSize, stride), words[u]);
    if (base == lane)
#pragma unroll
      for (int i = 0; i < kWidth; ++i) first[i] = words[0][i];
#pragma unroll
    for (std::uint32_t u = 0; u < kBatch; ++u) {
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
  const std::uint32_t histogram = shared_address(smem->histogram);
#pragma unroll
  for (unsigned i = 0; i < 256; i += kWarpSize) store_shared(histogram + 4 * (i + lane_id()), 0u);
  __syncwarp();
  // Four values at a time, or vectors where they hold more.
  constexpr std::uint32_t kFours = kWidth == 1 ? 4 : kWidth == 2 ? 2 : 1;
  constexpr std::uint32_t kBatch = kWidth == 8 ? 2 : 4, kStep = 4 * kFours * kWarpSize;
  std::uint32_t first = 0;
#pragma unroll 1
  for (; first + kBatch * kStep <= values.n; first += kBatch * kStep) {
    std::uint32_t words[kBatch][kFours][kWidth];
#pragma unroll
    for (std::uint32_t u = 0; u < kBatch; ++u) {
      const std::uint32_t value = first + u * kStep + 4 * kFours * lane_id();
      if constexpr (kFours == 1) {
        values.load_whole(value, words[u][0]);
      } else {
        const uint4 v = values.src.peek16(values.pos + std::uint64_t{value} * kWidth);
        const std::uint32_t all[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (std::uint32_t i = 0; i < 4; ++i) words[u][i / kWidth][i % kWidth] = all[i];
      }
    }
#pragma unroll
    for (std::uint32_t u = 0; u < kBatch; ++u)
#pragma unroll
      for (std::uint32_t k = 0; k < kFours; ++k)
        count_bytes(values.pick(words[u][k], plane), histogram);
  }
#pragma unroll 1
  for (std::uint32_t value = first + 4 * lane_id(); value < values.n; value += 128) {
    const std::uint32_t bytes = values.plane(value, plane);
    for (unsigned k = 0; k < 4 && value + k < values.n; ++k)
      increment_shared(histogram + (bytes >> (8 * k) & 255) * 4);
  }
  __syncwarp();
  if (kWidth == 1 && values.rotate) turn_histogram(smem->histogram);
}

}  // namespace snug::cuda
