// gemm/cuda/experts_params.h - what the kernels of a mixture of experts are told.
#pragma once
#include "gemm/cuda/linear_params.h"
#include "gemm/experts_format.h"

namespace snug::gemm {

// Where the parts of every slot of a bank lie.
struct BankParts {
  const std::uint8_t* data;
  std::uint64_t slot_bytes, escapes, tiles, overflows;
  std::uint32_t strips, tiles_per_strip, part_strips, max_overflows;
};

// An expert that has rows. Its rows are divided into chunks that are multiplied on their own.
struct ActiveExpert {
  std::uint32_t expert, first_row, num_rows, first_chunk;
};

// What routing leaves to the kernels after it. A pair is (row of x, one of its top_k experts), with
// the number row * top_k + place. An entry behind the last active expert has the sums.
struct Routing {
  ActiveExpert* active;
  std::uint32_t* num_active;
  std::uint32_t* pairs;  // sorted by expert
};

struct RouteParams {
  Routing to;
  const std::int32_t* ids;
  std::uint32_t num_pairs, top_k, experts, chunk_rows;
  DeviceResult* result;
  // Few rows: x in the order of operand B of mma, and zeros behind the columns of h.
  const std::uint16_t* x;
  std::uint64_t ldx;
  std::uint32_t m, k;
  bool x_pairs;  // x can be read in pieces of 4 bytes
  uint4* x_to;
  std::uint32_t x_units;  // pieces of 16 bytes in a row of x_to; 0: leave x as it is
  uint4* h;
  std::uint32_t h_units, h_zeros;  // pieces of 16 bytes in a row of h, and at its end to clear
};

struct FewExpertRowsParams {
  BankParts bank;
  Routing routing;
  std::uint32_t experts;
  const uint4* rows;        // of x or h, in the order of operand B
  std::uint32_t row_units;  // pieces of 16 bytes in a row
  std::uint32_t per_row;    // pairs that share a row
  const float* weights;     // down: of pairs
  std::uint8_t* out;
  std::uint64_t out_row_bytes;
  std::uint32_t items;  // pairs of strips of an expert
  std::uint32_t split, stages;
};

struct ManyExpertRowsParams {
  BankParts bank;
  Routing routing;
  std::uint32_t experts;
  const uint4* rows;  // of x or h
  std::uint32_t row_units, per_row;
  std::uint32_t present_units;  // pieces of 16 bytes that a row has; zeros follow
  const float* weights;         // down: of pairs
  std::uint8_t* out;
  std::uint64_t out_row_bytes;
  std::uint32_t items;  // groups of sixteen strips of an expert
};

struct SumParams {
  const std::int32_t* ids;
  const uint4* parts;  // [pair][part_units]
  std::uint64_t part_units;
  std::uint32_t m, k, top_k, experts;
  std::uint16_t* y;
  std::uint64_t ldy;
  bool y_wide;
};

}  // namespace snug::gemm
