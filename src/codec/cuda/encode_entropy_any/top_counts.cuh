// codec/cuda/encode_entropy_any/top_counts.cuh - samples and counts a block's top bytes in one
// pass.
#pragma once
#include "codec/cuda/encode_entropy_any/plane_sample.cuh"

namespace snug::cuda {

// Whether counts of a part of a block look like those of noise.
__device__ __forceinline__ bool looks_like_noise(const PlaneSmem* smem, u32 total) {
  u32 most = 0;
#pragma unroll
  for (unsigned i = 0; i < 256; i += kWarpSize)
    most = max(most, smem->histogram[i + lane_id()] + smem->list[i + lane_id()]);
  return __reduce_max_sync(kAllLanes, most) < total / 256 * 4;
}

// take_sample, and also counts the top bytes that are not sampled, in smem->list: byte mode needs
// the counts of all, and saves one pass over the block. False, without counts, if the start of the
// block looks like noise, or the block is the last one of a tensor.
template <class Access, int kWidth>
__device__ __noinline__ bool count_top(BlockValues<Access, kWidth> values, PlaneSmem* smem,
                                       bool& constant) {
  static_assert(kWidth <= 2);
  const unsigned lane = lane_id();
  const u32 histogram = shared_address(smem->histogram);
  if (!has_even_sample(values.n)) return false;
#pragma unroll
  for (unsigned i = 0; i < 512; i += 4 * kWarpSize)
    store_shared(histogram + 4 * (i + 4 * lane), uint4{});
  if (kWidth > 1) store_shared(shared_address(smem->nibbles) + 4 * lane, 0u);
  __syncwarp();
  const auto stride = static_cast<u32>(codec::sample_stride(values.n));
  const unsigned log2_stride = 31 - static_cast<unsigned>(__clz(static_cast<int>(stride)));
  constexpr u32 kBatch = 4, kVecValues = 16 / kWidth;
  u32 first[kWidth], differs = 0;
  // All loads of a batch are issued before the first count.
#pragma unroll 1
  for (u32 base = 0; base < values.n; base += kBatch * kVecValues * kWarpSize) {
    uint4 v[kBatch];
#pragma unroll
    for (u32 u = 0; u < kBatch; ++u)
      v[u] = values.src.peek16(values.pos + kWidth * base + 16 * (u * kWarpSize + lane));
    if (base == 0) {
      first[0] = v[0].x;
      first[kWidth - 1] = v[0].y;
    }
#pragma unroll
    for (u32 u = 0; u < kBatch; ++u) {
      differs |= (v[u].x ^ first[0]) | (v[u].y ^ first[kWidth - 1]) | (v[u].z ^ first[0]) |
                 (v[u].w ^ first[kWidth - 1]);
      const u32 run = (base + kVecValues * (u * kWarpSize + lane)) / codec::kRun;
      const bool sampled = ((run ^ run >> log2_stride) & (stride - 1)) == 0;
      const u32 counts = histogram + (sampled ? 0 : 1024);
      const u32 all[4] = {v[u].x, v[u].y, v[u].z, v[u].w};
#pragma unroll
      for (int i = 0; i < 4; i += kWidth) {
        u32 words[kWidth];
#pragma unroll
        for (int k = 0; k < kWidth; ++k) words[k] = all[i + k];
        count_bytes(values.pick(words, kWidth - 1), counts);
      }
    }
    if (base == 0) {
      __syncwarp();
      const bool is_noise = looks_like_noise(smem, kBatch * kVecValues * kWarpSize);
      __syncwarp();
      if (is_noise) return false;
    }
  }
  sample_planes_below(values, stride, smem);
  __syncwarp();
  if (kWidth == 1 && values.rotate) turn_histogram(smem->histogram);
  constant = may_be_constant<kWidth>(first, differs);
  return true;
}

// Adds the counts of the other values to those of the sampled ones.
__device__ __forceinline__ void add_other_counts(bool rotated, PlaneSmem* smem) {
#pragma unroll
  for (unsigned i = 0; i < 256; i += kWarpSize) {
    const unsigned byte = i + lane_id();
    smem->histogram[byte] += smem->list[rotated ? byte / 2 + byte % 2 * 128 : byte];
  }
  __syncwarp();
}

}  // namespace snug::cuda
