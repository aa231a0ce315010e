// codec/cuda/encode_entropy_any/raw_planes.cuh - the raw planes of a block: straight from the
// tensor to the frame, once the block's place is known.
#pragma once
#include "codec/cuda/encode_entropy_any/plane_sample.cuh"

namespace snug::cuda {

// Writes the planes that `plane_modes` leaves raw; returns checksum terms.
template <class Access, int kWidth>
__device__ __noinline__ std::uint64_t write_raw_planes(BlockValues<Access, kWidth> values,
                                                       std::uint32_t plane_modes,
                                                       std::uint8_t* payload) {
  const auto part = static_cast<std::uint32_t>(align16(values.n));
  std::uint64_t sum = 0;
  // Eight values a lane; all loads of a batch are under way before the first store.
  constexpr std::uint32_t kBatch = 16 / kWidth;
  std::uint32_t first = 0;
#pragma unroll 1
  for (; first + kBatch * 256 <= values.n; first += kBatch * 256) {
    std::uint32_t low[kBatch][kWidth], high[kBatch][kWidth];
#pragma unroll
    for (std::uint32_t u = 0; u < kBatch; ++u) {
      const std::uint32_t value = first + u * 256 + 8 * lane_id();
      if constexpr (kWidth == 2) {
        const uint4 v = values.src.peek16(values.pos + 2 * std::uint64_t{value});
        low[u][0] = v.x, low[u][1] = v.y, high[u][0] = v.z, high[u][1] = v.w;
      } else {
        values.load_whole(value, low[u]);
        values.load_whole(value + 4, high[u]);
      }
    }
#pragma unroll
    for (std::uint32_t u = 0; u < kBatch; ++u) {
      values.turn(low[u]);
      values.turn(high[u]);
      std::uint32_t at = first + u * 256 + 8 * lane_id();
      std::uint32_t factor = checksum_factor(at / 4);
#pragma unroll
      for (unsigned p = 0; p < kWidth; ++p) {
        if ((plane_modes >> (2 * p) & 3) != 0) continue;
        const uint2 bytes = {plane_of<kWidth>(low[u], p), plane_of<kWidth>(high[u], p)};
        __stcs(reinterpret_cast<uint2*>(payload + at), bytes);
        sum = mad_wide(bytes.x, factor, sum);
        sum = mad_wide(bytes.y, factor + kNextFactor, sum);
        at += part;
        factor += part / 4 * frame::kChecksumStep;
      }
    }
  }
#pragma unroll 1
  for (std::uint32_t value = first + 4 * lane_id(); value < part; value += 128) {
    std::uint32_t words[kWidth];
    values.load(value, words);
    values.turn(words);
    std::uint32_t at = value;
#pragma unroll
    for (unsigned p = 0; p < kWidth; ++p) {
      if ((plane_modes >> (2 * p) & 3) != 0) continue;
      const std::uint32_t bytes = plane_of<kWidth>(words, p);
      __stcs(reinterpret_cast<std::uint32_t*>(payload + at), bytes);
      sum += checksum_term(bytes, at / 4);
      at += part;
    }
  }
  return sum;
}

}  // namespace snug::cuda
