// cuda/plane_sample.cuh - how a warp reads a block of any type: its values, planes of
// them, and what it counts before it chooses modes and tables.
#pragma once
#include "codec/sample.h"
#include "cuda/plane_merge.cuh"
#include "cuda/plane_section.cuh"

namespace snug::cuda {

template <class Access, int kWidth>
struct BlockValues {
  Access src;
  std::uint64_t pos;
  std::uint32_t n;
  bool rotate;

  // Four values from `value` on, rotated; those past the end are zero.
  __device__ __forceinline__ void load(std::uint32_t value, std::uint32_t (&words)[kWidth]) const {
    const std::uint64_t at = pos + std::uint64_t{value} * kWidth;
    if (value + 4 <= n) {
      load_four<kWidth>(src, at, words);
    } else {
      const Words<kWidth> some = load_some<kWidth>(
          src, at, value < n ? static_cast<std::int32_t>((n - value) * kWidth) : 0);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) words[i] = some.w[i];
    }
    if (rotate) rotate_ahead<kWidth>(words);
  }
  // The same where all four are there: no branch keeps loads from running together.
  __device__ __forceinline__ void load_whole(std::uint32_t value,
                                             std::uint32_t (&words)[kWidth]) const {
    load_four<kWidth>(src, pos + std::uint64_t{value} * kWidth, words);
    if (rotate) rotate_ahead<kWidth>(words);
  }
  __device__ __forceinline__ std::uint32_t plane(std::uint32_t value, unsigned p) const {
    std::uint32_t words[kWidth];
    load(value, words);
    return plane_of<kWidth>(words, p);
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
  for (std::uint32_t i = num_bytes / 16 * 16 + lane_id(); i < num_bytes; i += kWarp)
    same &= src.load_byte(pos + i) == static_cast<std::uint8_t>(first[i % 8 / 4] >> (i % 4 * 8));
#pragma unroll 1
  for (std::uint32_t base = 0; base < num_bytes / 16; base += kWarp) {
    if (base + lane_id() < num_bytes / 16) {
      const uint4 v = src.peek16(pos + 16 * std::uint64_t{base + lane_id()});
      same &= v.x == first[0] && v.y == first[1] && v.z == first[0] && v.w == first[1];
    }
    if (!__all_sync(kAll, same)) return false;
  }
  return __all_sync(kAll, same);
}

// Counts the sampled values: top bytes, and the nibbles of the planes below.
template <class Access, int kWidth>
__device__ __noinline__ void take_sample(BlockValues<Access, kWidth> values, PlaneSmem* smem) {
  const std::uint32_t histogram = shared_address(smem->histogram),
                      nibbles = shared_address(smem->nibbles);
  for (unsigned i = lane_id(); i < 256; i += kWarp) store_shared(histogram + 4 * i, 0u);
  for (unsigned i = lane_id(); i < 7 * 32; i += kWarp) store_shared(nibbles + 4 * i, 0u);
  __syncwarp();
  const auto stride = static_cast<std::uint32_t>(codec::sample_stride(values.n));
  for (std::uint32_t i = lane_id(); i / 4 * stride * 16 < values.n; i += kWarp) {
    const std::uint32_t run = i / 4, at = (run * stride + run % stride) * 16 + i % 4 * 4;
    if (at >= values.n) continue;
    const std::uint32_t here = min(values.n - at, 4u);
    std::uint32_t words[kWidth];
    values.load(at, words);
    const std::uint32_t top = plane_of<kWidth>(words, kWidth - 1);
    for (std::uint32_t k = 0; k < here; ++k) count_shared(histogram + (top >> (8 * k) & 255) * 4);
    if constexpr (kWidth > 1) {
      if (run % 4 != 0) continue;
#pragma unroll
      for (int p = 0; p < kWidth - 1; ++p) {
        const std::uint32_t bytes = plane_of<kWidth>(words, static_cast<unsigned>(p)),
                            counts = nibbles + 128 * static_cast<unsigned>(p);
        for (std::uint32_t k = 0; k < here; ++k) {
          count_shared(counts + (bytes >> (8 * k) & 15) * 4);
          count_shared(counts + 64 + (bytes >> (8 * k + 4) & 15) * 4);
        }
      }
    }
  }
  __syncwarp();
}

// Exact counts of one plane.
template <class Access, int kWidth>
__device__ __noinline__ void count_plane(BlockValues<Access, kWidth> values, unsigned plane,
                                         PlaneSmem* smem) {
  const std::uint32_t histogram = shared_address(smem->histogram);
  for (unsigned i = lane_id(); i < 256; i += kWarp) store_shared(histogram + 4 * i, 0u);
  __syncwarp();
  // The histogram is aligned: an address is one logical operation.
  const auto count = [&](std::uint32_t bytes) {
    count_shared((bytes << 2 & 0x3FC) | histogram);
    count_shared((bytes >> 6 & 0x3FC) | histogram);
    count_shared((bytes >> 14 & 0x3FC) | histogram);
    count_shared((bytes >> 22 & 0x3FC) | histogram);
  };
  constexpr std::uint32_t kUnroll = kWidth == 1 ? 8 : 16 / kWidth;
  std::uint32_t first = 0;
#pragma unroll 1
  for (; first + kUnroll * 128 <= values.n; first += kUnroll * 128) {
    std::uint32_t words[kUnroll][kWidth];
#pragma unroll
    for (std::uint32_t u = 0; u < kUnroll; ++u)
      values.load_whole(first + u * 128 + 4 * lane_id(), words[u]);
#pragma unroll
    for (std::uint32_t u = 0; u < kUnroll; ++u) count(plane_of<kWidth>(words[u], plane));
  }
#pragma unroll 1
  for (std::uint32_t value = first + 4 * lane_id(); value < values.n; value += 128) {
    const std::uint32_t bytes = values.plane(value, plane);
    for (unsigned k = 0; k < 4 && value + k < values.n; ++k)
      count_shared(histogram + (bytes >> (8 * k) & 255) * 4);
  }
  __syncwarp();
}

}  // namespace snug::cuda
