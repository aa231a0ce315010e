// gemm/cuda/pack_params.cuh - what the packing kernels are told, and their launch: one matrix, or a
// bank of them.
#pragma once
#include <cuda_runtime.h>

#include "gemm/tile_format.h"
#include "snug/cuda.h"

namespace snug::gemm {

struct PackParams {
  const std::uint16_t* w;
  std::uint64_t ld, n, k;
  // Rows come in parts of part_n rows, each padded to part_strips strips; row_end: of the part that
  // is being packed.
  std::uint64_t part_n, part_strips, row_end;
  bool pairs;  // w can be read in pieces of 4 bytes
  std::uint8_t* dst;
  std::uint64_t max_overflows;
  Kind kind;
  // Per strip: escaped weights; overflows, which become the number of the first one.
  std::uint64_t *strip_escaped, *strip_overflows;
  std::uint8_t* tile_overflows;
  DeviceResult* result;
  const DeviceResult* upstream = nullptr;  // of decoding the frame that w came from
  std::uint64_t upstream_bytes = 0;        // expected
  // Matrices of a bank lie so far apart, in elements and in bytes.
  std::uint64_t w_stride = 0, dst_stride = 0;
};

// For the matrix of this thread block, which is in row blockIdx.y of the grid.
__device__ __forceinline__ PackParams of_matrix(PackParams p) {
  const std::uint64_t matrix = blockIdx.y;
  const Layout layout(p.n, p.k, p.kind);
  p.w += matrix * p.w_stride;
  p.dst += matrix * p.dst_stride;
  p.strip_escaped += matrix * layout.strips;
  p.strip_overflows += matrix * (layout.strips + 1);
  p.tile_overflows += matrix * layout.strips * layout.tiles_per_strip;
  p.result += matrix;
  return p;
}
// For a strip of it: rows are counted with the padding of the parts before it.
__device__ __forceinline__ PackParams of_strip(PackParams p, std::uint64_t strip) {
  p = of_matrix(p);
  const std::uint64_t part = strip / p.part_strips, padded = p.part_strips * kStripRows;
  p.w -= part * (padded - p.part_n) * p.ld;
  p.row_end = part * padded + p.part_n;
  return p;
}

// Packs `count` matrices. `pairs`, `max_overflows` and strides hold for all of them.
cudaError_t enqueue_pack(const PackParams& p, std::uint32_t count, cudaStream_t stream) noexcept;

// Offsets in the workspace of packing `count` matrices.
struct PackWorkspace {
  std::uint64_t escapes = 0, overflows, tiles, total;

  PackWorkspace(std::uint64_t n, std::uint64_t k, std::uint64_t count = 1) {
    const Layout layout(n, k, Kind::kFixed);
    overflows = align_up(escapes + count * layout.strips * 8, kAlign);
    tiles = align_up(overflows + count * (layout.strips + 1) * 8, kAlign);
    total = align_up(tiles + count * layout.strips * layout.tiles_per_strip, kAlign);
  }
};

}  // namespace snug::gemm
