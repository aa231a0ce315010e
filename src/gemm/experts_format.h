// gemm/experts_format.h - a bank of experts: equal slots, each a packed matrix.
#pragma once
#include "gemm/tile_format.h"
#include "snug/experts.h"

namespace snug::gemm {

inline constexpr std::uint64_t kMaxExperts = 512;

// Offsets in a slot, and its size. They depend on the shape alone, so that a slot can be replaced
// while a CUDA graph that reads the bank exists.
struct SlotLayout {
  std::uint64_t part_strips;    // strips of one part: gate and up are padded on their own
  std::uint64_t n;              // rows of the packed matrix, with this padding
  Layout matrix;                // of the packed matrix
  std::uint64_t max_overflows;  // that a slot has room for
  std::uint64_t num_bytes;

  SNUG_HD explicit SlotLayout(const BankShape& s)
      : part_strips((s.n / s.parts + kStripRows - 1) / kStripRows),
        n(s.parts == 1 ? s.n : part_strips * kStripRows * s.parts),
        matrix(n, s.k, s.kind) {
    // One tile in 256, a quarter of a percent of the slot: trained weights need none.
    max_overflows = s.kind == Kind::kRaw ? 0 : 1 + matrix.strips * matrix.tiles_per_strip / 256;
    num_bytes = align_up(matrix.overflows + max_overflows * kOverflowBytes, kAlign);
  }
};

}  // namespace snug::gemm
