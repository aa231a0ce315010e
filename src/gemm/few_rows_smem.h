// gemm/few_rows_smem.h - shared memory of the few-rows kernel: barriers, sums, rings, x.
#pragma once
#include "gemm/tile_format.h"

namespace snug::gemm {

// Rows of x that the kernel holds, by eights: the width of an mma.
constexpr std::uint32_t few_rows_token_tiles(std::uint64_t m) { return m <= 8 ? 1 : 2; }

// Offsets and sizes in bytes.
struct FewRowsSmem {
  static constexpr std::uint32_t kMaxStages = 8, kMaxXChunks = 16;

  std::uint32_t tile_bytes, ring_warps;
  std::uint32_t adders;  // warps that add, each with a buffer and a barrier of its own
  std::uint32_t threads;
  std::uint32_t sum_bytes;  // of one strip
  std::uint32_t full, sum_full, sum_empty, x_full, sums, rings;

  // warps: those that stream weights.
  constexpr FewRowsSmem(std::uint32_t token_tiles, std::uint32_t warps, Kind kind)
      : tile_bytes(tile_bytes_of(kind)),
        ring_warps(warps),
        adders(token_tiles == 1 ? 4 : 3),
        threads((warps + adders) * 32),
        sum_bytes(warps * token_tiles * 512),
        full(0),
        sum_full(full + 8 * warps * kMaxStages),
        sum_empty(sum_full + 8 * adders),
        x_full(sum_empty + 8 * adders),
        sums((x_full + 8 * kMaxXChunks + 127) / 128 * 128),
        rings(sums + adders * sum_bytes) {}

  // Rows lie 16 bytes off a multiple of 128, so that eight of them hit all banks.
  static constexpr std::uint32_t row_bytes(std::uint32_t tiles) {
    return tiles * kTileCols * 2 + 16;
  }
  constexpr std::uint32_t rows(std::uint32_t stages) const {
    return rings + ring_warps * stages * tile_bytes;
  }
  constexpr std::uint32_t bytes(std::uint32_t stages, std::uint32_t m, std::uint32_t tiles) const {
    return rows(stages) + m * row_bytes(tiles);
  }
  // The most stages that fit beside x.
  constexpr std::uint32_t stages(std::uint32_t max_smem, std::uint32_t m,
                                 std::uint32_t tiles) const {
    // The longest rows take more bytes than 32 bits can count.
    if (std::uint64_t{m} * tiles * kTileCols * 2 > max_smem) return 0;
    std::uint32_t stages = kMaxStages;
    while (stages > 0 && bytes(stages, m, tiles) > max_smem) --stages;
    return stages;
  }
};

}  // namespace snug::gemm
