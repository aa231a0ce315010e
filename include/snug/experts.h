// snug/experts.h - mixtures of experts that multiply straight from compressed weights.
//
// A bank holds the matrices of one projection of all experts of a layer, each packed as snug/gemm.h
// packs a matrix, in slots of equal size. `experts` computes a whole layer by routing: for each row
// of x the top-k experts' gate and up projections, SwiGLU, the down projection and the weighted
// sum. docs/experts.md has the layout and the order of sums.
//
// Memory:  nothing is allocated. Banks and workspaces are device memory, 256-byte aligned. A
//          workspace serves one call at a time.
// Streams: calls enqueue work and return. Ids and weights of the routing stay on the device; a
//          call can be captured into a CUDA graph. A slot may be replaced between replays.
// Results: the same bits on every run, and from kFixed and kRaw banks under the same plan.
// Trust:   packed bytes come from pack_bank() or were checked by inspect_bank(); no access leaves
//          the buffers given, whatever the ids are.
#pragma once
#include "snug/gemm.h"

namespace snug::gemm {

// E matrices of n rows and k columns.
struct BankShape {
  std::uint64_t experts = 0;
  std::uint64_t n = 0, k = 0;
  // 2: the rows are those of two matrices, gate and then up, of n / 2 rows each.
  std::uint32_t parts = 1;
  Kind kind = Kind::kFixed;

  bool operator==(const BankShape&) const = default;
};

// A bank in device memory: slot e begins at e * slot_bytes(shape).
struct Bank {
  const void* data = nullptr;
  BankShape shape;
};

// Bytes of a slot and of a bank; 0 if the shape is out of range.
std::size_t slot_bytes(const BankShape& shape) noexcept;
std::size_t bank_bytes(const BankShape& shape) noexcept;

// ---- packing ---------------------------------------------------------------

// Packs w[experts][n][k] in host memory. kDstTooSmall with the number of an expert as block: too
// many of its weights are outside their palettes for a slot. Pack the bank as kRaw.
Status pack_bank_host(const std::uint16_t* w, const BankShape& shape,
                      std::span<std::byte> bank) noexcept;

// Restores the exact weights of one expert of a bank in host memory; w has n * k elements.
Status unpack_expert_host(std::span<const std::byte> bank, const BankShape& shape,
                          std::uint64_t expert, std::span<std::uint16_t> w) noexcept;

// Checks the headers of all slots of a bank in host memory.
Status inspect_bank(std::span<const std::byte> bank, const BankShape& shape) noexcept;

// Packs `count` experts, w[count][n][k] in device memory, into the slots from `first` on. Writes
// the bytes of pack_bank_host. Each expert has a result of its own in results[count] (device
// memory): the bytes used of its slot, or kDstTooSmall as above.
std::size_t pack_bank_workspace_bytes(const BankShape& shape, std::uint64_t count) noexcept;
Status pack_bank(const void* w, const BankShape& shape, std::uint64_t first, std::uint64_t count,
                 cuda::Target bank, cuda::Target workspace, DeviceResult* results,
                 Stream stream) noexcept;

// Restores one expert to w[n][k] in device memory.
Status unpack_expert(const Bank& bank, std::uint64_t expert, void* w, Stream stream) noexcept;

// ---- a layer by routing ----------------------------------------------------

// What a layer computes. For each row i of x and each j < top_k, with e = ids[i][j]:
//   h = silu(gate_e x_i) * (up_e x_i),   y_i = sum over j of weights[i][j] * (down_e h)
// gate, up and h are rounded to BF16, and so is each weighted product before the sum.
struct ExpertsArgs {
  const void* x = nullptr;  // [m][k] BF16, rows ldx elements apart
  std::uint64_t ldx = 0;
  std::uint64_t m = 0;
  const std::int32_t* ids = nullptr;  // [m][top_k]; -1: no expert, adds nothing
  const float* weights = nullptr;     // [m][top_k]
  std::uint32_t top_k = 0;            // 1 to 16
  void* y = nullptr;                  // [m][k] BF16, rows ldy elements apart; must not overlap x
  std::uint64_t ldy = 0;
  // Device memory or null: gets kOk, or kUsage and the first row with an id outside of -1 to
  // experts - 1 as block. Such an id adds nothing. routing_status() reads it.
  DeviceResult* result = nullptr;
};

// The status of a layer's result that was copied to the host. cuda::to_status() would report kUsage
// as an error of packing.
Status routing_status(const DeviceResult& result) noexcept;

// How the work is divided. Zeros mean "choose for me".
struct ExpertsPlan {
  std::int32_t kernel = 0;  // 1: few rows (mma), 2: many rows (wgmma)
  std::int32_t split = 0;   // few rows: warps that share two strips: 1, 2, 4 or 8
  std::int32_t rows = 0;    // many rows: rows of an expert in a tile: 16, 32, 64, 96 or 128
};

// Serves every m <= max_m. 0 if a shape, top_k or max_m is out of range.
std::size_t experts_workspace_bytes(const BankShape& gate_up, const BankShape& down,
                                    std::uint32_t top_k, std::uint64_t max_m) noexcept;

// gate_up: 2 N x K in two parts; down: K x N. Both have the same experts.
Status experts(const Bank& gate_up, const Bank& down, const ExpertsArgs& args,
               cuda::Target workspace, const ExpertsPlan& plan, Stream stream) noexcept;

// ---- products by groups ----------------------------------------------------

// y_i = W_e x_i for each row i of x, where e is the expert of the row: one projection, as in
// grouped GEMM. Rows without an expert are not written.
struct GroupedArgs {
  const void* x = nullptr;  // [m][k] BF16, rows ldx elements apart
  std::uint64_t ldx = 0;
  std::uint64_t m = 0;
  void* y = nullptr;  // [m][n] BF16, rows ldy elements apart; must not overlap x
  std::uint64_t ldy = 0;
  // Either: the expert of each row, in any order; -1: none.
  const std::int32_t* ids = nullptr;  // [m]
  // Or: m is a multiple of the number of experts. Each has m / experts rows, of which the first
  // counts[e] are multiplied.
  const std::int32_t* counts = nullptr;  // [experts]
  // As in ExpertsArgs. A count out of range is reported with the first row of its expert, none of
  // whose rows are written.
  DeviceResult* result = nullptr;
};

// Serves every m <= max_m. 0 if the shape or max_m is out of range.
std::size_t grouped_workspace_bytes(const BankShape& shape, std::uint64_t max_m) noexcept;

// A bank of two parts has to have whole strips in each: n is a multiple of 32.
Status grouped(const Bank& bank, const GroupedArgs& args, cuda::Target workspace,
               const ExpertsPlan& plan, Stream stream) noexcept;

// ---- the reference ---------------------------------------------------------

// A layer on a CPU, from weights in host memory: w13[experts][2 N][K], w2[experts][K][N]. Sums
// are FP32 in the order of columns. Slow; for tests.
Status experts_host(const std::uint16_t* w13, const std::uint16_t* w2, std::uint64_t experts,
                    std::uint64_t n, std::uint64_t k, const ExpertsArgs& host_args) noexcept;

}  // namespace snug::gemm
