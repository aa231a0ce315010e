// gemm/cuda/experts_params.h - what the kernels of a mixture of experts are told.
#pragma once
#include "gemm/cuda/linear_params.h"
#include "gemm/experts_format.h"

namespace snug::gemm {

// Shared memory that a thread block can have on Hopper; the kernels fit with kMaxExperts.
inline constexpr std::uint32_t kMaxBlockSmem = 227 * 1024;

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

struct RouteShape {
  std::uint32_t num_pairs, top_k, experts, chunk_rows;
};

struct RouteParams {
  Routing to;
  const std::int32_t* ids;
  RouteShape shape;
  DeviceResult* result;
  // Few rows: x in the order of operand B of mma.
  const std::uint16_t* x;
  std::uint64_t ldx;
  std::uint32_t m, k;
  bool x_pairs;  // x can be read in pieces of 4 bytes
  uint4* x_to;
  std::uint32_t x_units;  // pieces of 16 bytes in a row of x_to
};

// The weighted sum of the products of each row.
struct SumParams {
  const std::int32_t* ids;
  const uint4* parts;  // [pair][part_units]
  std::uint64_t part_units;
  std::uint32_t m, k, top_k, experts;
  std::uint16_t* y;
  std::uint64_t ldy;
  bool y_wide;
  bool skip_empty;  // rows without an expert are not written
};

// One product of a layer: gate_up or down.
struct ExpertsProduct {
  BankParts bank;
  Routing routing;
  RouteShape shape;
  const uint4* rows;            // of x or h
  std::uint32_t row_units;      // pieces of 16 bytes in a row
  std::uint32_t present_units;  // many rows: pieces that a row has; zeros follow
  std::uint32_t per_row;        // pairs that share a row
  const float* weights;         // down: of pairs; null: all are 1
  bool alone;                   // a product of its own, right after routing
  std::uint8_t* out;
  std::uint64_t out_row_bytes;
  std::uint32_t items;  // of an expert and a chunk of its rows
  // Few rows. Thread blocks that route for themselves read ids, and x as it is, whose rows are
  // x_row_pairs times 4 bytes apart.
  const std::int32_t* ids;
  const std::uint32_t* x;
  std::uint32_t x_row_pairs;
  DeviceResult* result;
  std::uint32_t split, stages;
};

}  // namespace snug::gemm
