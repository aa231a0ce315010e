// gemm/cuda/linear_params.h - what every kernel is told. Plain data, for the host too.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "gemm/tile_format.h"

namespace snug::gemm {

// The upper bytes of tiles whose escapes do not fit.
struct Overflows {
  const std::uint8_t* bytes;
  std::uint32_t count;
};

// Where the parts of a packed matrix lie.
struct PackedParts {
  const std::uint8_t* tiles;
  const uint2* palettes;
  const uint4* escapes;  // kEscapeWords a tile
  Overflows overflows;
};

struct LinearParams : PackedParts {
  std::uint32_t strips, tiles_per_strip;
  std::uint32_t n, k, m;
  const std::uint16_t* x;
  std::uint64_t ldx;
  const __nv_bfloat16* bias;
  std::uint16_t* y;
  std::uint64_t ldy;
  bool x_aligned;  // rows of x can be copied in pieces of 16 bytes
  bool y_pairs;    // y can be written in pieces of 4 bytes
  bool y_wide;     // of 16 bytes
  std::uint32_t split_k, max_split_tiles;
  std::uint32_t stages;     // tiles in flight per warp
  float4* partials;         // sums of the parts of k
  std::uint32_t* counters;  // of the parts that have arrived; zero between calls
};

}  // namespace snug::gemm
