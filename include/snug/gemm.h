// snug/gemm.h - linear layers that multiply straight from compressed weights.
//
// A BF16 matrix W of n rows (outputs) and k columns (inputs) is packed once, without loss, into a
// resident form of about 12.06 bits per weight: compressed, not quantised. `linear` then computes
// y = x W^T (+ bias) with BF16 in and out and FP32 sums. It restores the exact weights in
// registers, never in memory. docs/gemm.md has the layout.
//
// Memory:  nothing is allocated. Packed matrices and workspaces are device memory, 256-byte
//          aligned. A workspace is initialised once by init_workspace() and then serves one call at
//          a time: two streams need two workspaces.
// Streams: calls enqueue work and return; they can be captured into a CUDA graph. Only open() and
//          tune() wait. linear() may read weights while the kernel before it on the stream is still
//          running: open a matrix again after it was packed or written, and before it is used.
// Results: the same bits on every run, and from kFixed and kRaw matrices under the same plan. Row i
//          of y does not depend on the number of rows of x as long as the plan is the same
//          (explain() shows it).
// Trust:   open() checks a packed matrix; no access leaves the buffers given.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "snug/cuda.h"
#include "snug/status.h"

namespace snug::gemm {

using cuda::DeviceResult;
using cuda::Stream;

// How the weights of a packed matrix are stored.
enum class Kind : std::int32_t {
  kRaw = 0,    // 16 bits, in the order of kFixed: its twin for tests
  kFixed = 1,  // 12 bits, as the codec of that name: a raw byte and a 4-bit palette code
};

// A packed matrix in device memory, as filled in by open().
struct Matrix {
  const void* data = nullptr;
  std::uint64_t num_bytes = 0;  // bytes used of the buffer
  std::uint64_t n = 0, k = 0;
  Kind kind = Kind::kFixed;
  std::uint64_t num_escaped = 0;  // weights outside their strip's palette
};

inline constexpr std::size_t kHeaderBytes = 256;
inline constexpr std::size_t kAlign = 256;

// ---- packing ---------------------------------------------------------------

// The largest packed form; 0 if n or k is 0 or too large.
std::size_t packed_bound(std::uint64_t n, std::uint64_t k, Kind kind) noexcept;

// Packs w[n][k], whose rows start `ld` elements apart, in host memory. Returns the bytes used.
// kDstTooSmall although dst has packed_bound() bytes means that too many weights are outside their
// palettes: pack as kRaw, or leave the matrix dense.
Result<std::size_t> pack_host(const std::uint16_t* w, std::uint64_t ld, std::uint64_t n,
                              std::uint64_t k, Kind kind, std::span<std::byte> dst) noexcept;

// Restores the exact weights of a packed matrix in host memory: row i to w[i * ld]. kDstTooSmall if
// the header claims more than w holds.
Status unpack_host(std::span<const std::byte> packed, std::span<std::uint16_t> w,
                   std::uint64_t ld) noexcept;

// Checks the first kHeaderBytes of a packed matrix of num_bytes, in host memory.
Result<Matrix> inspect(std::span<const std::byte> header, std::uint64_t num_bytes) noexcept;

// Writes the same bytes as pack_host, on the GPU. `result` (device memory) gets the bytes used, or
// kDstTooSmall as above. w is 2-byte aligned.
std::size_t pack_workspace_bytes(std::uint64_t n, std::uint64_t k) noexcept;
Status pack(const void* w, std::uint64_t ld, std::uint64_t n, std::uint64_t k, Kind kind,
            cuda::Target dst, cuda::Target workspace, DeviceResult* result, Stream stream) noexcept;

// The same from a Snug frame of a BF16 tensor in device memory, 16-byte aligned.
std::size_t pack_frame_workspace_bytes(std::uint64_t n, std::uint64_t k) noexcept;
Status pack_frame(cuda::Source frame, std::uint64_t n, std::uint64_t k, Kind kind, cuda::Target dst,
                  cuda::Target workspace, DeviceResult* result, Stream stream) noexcept;

// Reads and checks the header of a packed matrix in device memory; waits for the stream.
Result<Matrix> open(const void* data, std::uint64_t num_bytes, Stream stream) noexcept;

// Restores the exact matrix to device memory, rows `ld` elements apart.
Status unpack(const Matrix& matrix, void* w, std::uint64_t ld, Stream stream) noexcept;

// ---- checksums -------------------------------------------------------------
//
// One 64-bit checksum for each strip of 16 rows. Together with the one in the header they cover all
// that a product reads. Save them beside the matrix, and verify it after loading, or at any time.
// CPU and GPU compute the same.

constexpr std::uint64_t num_strips(std::uint64_t n) noexcept { return n / 16 + (n % 16 != 0); }

// In host memory; `sums` has num_strips(n) elements. verify_host: kCorrupt with the number of the
// first damaged strip as block: its rows begin at 16 x block.
Status strip_sums_host(std::span<const std::byte> packed, std::span<std::uint64_t> sums) noexcept;
Status verify_host(std::span<const std::byte> packed, std::span<const std::uint64_t> sums) noexcept;

// In device memory. `result` (device memory) gets the bytes of the matrix, or kCorrupt as above.
Status strip_sums(const Matrix& matrix, std::uint64_t* sums, Stream stream) noexcept;
Status verify(const Matrix& matrix, const std::uint64_t* sums, DeviceResult* result,
              Stream stream) noexcept;

// ---- multiplying -----------------------------------------------------------

// Which kernel runs, and how it is divided. Zeros mean "choose for me".
enum class Kernel : std::int32_t {
  kAuto = 0,
  kGeneric = 1,  // any GPU from sm_80 on; any m
  kFewRows = 2,  // sm_90: m <= 16; x stays in shared memory, W streams past it
  kBatch = 3,    // sm_90: any m; wgmma with decoded weights as register operand
  kUnpack = 4,   // any m: restores a panel of weights, then calls cuBLASLt
};

struct Plan {
  Kernel kernel = Kernel::kAuto;
  // Parts that k is divided into (split-K). kBatch: 1; 2 or 4, added inside a thread block
  // cluster; or kStreamK.
  std::int32_t split_k = 0;
  std::int32_t warps = 0;   // kFewRows: warps that share a strip (16 rows of W): 8 or 16
  std::int32_t strips = 0;  // kBatch: strips in the tile of a thread block: 4, 8 or 12
  std::int32_t tile_m = 0;  // kBatch: rows of x in a tile: a multiple of 16, at most 256
};

// Divides only as many tiles of y as balance the load; partial sums go through the workspace.
inline constexpr std::int32_t kStreamK = -1;

// Bytes of a workspace for every m <= max_m and every plan that kAuto may choose. Ask again after
// tune() or load_tuning(): other plans may need more.
std::size_t linear_workspace_bytes(std::uint64_t n, std::uint64_t k, std::uint64_t max_m) noexcept;

// Initialises a workspace; once, before its first linear().
Status init_workspace(cuda::Target workspace, Stream stream) noexcept;

struct LinearArgs {
  const void* x = nullptr;  // [m][k] BF16, rows ldx elements apart
  std::uint64_t ldx = 0;
  std::uint64_t m = 0;
  const void* bias = nullptr;  // [n] BF16 or null
  void* y = nullptr;           // [m][n] BF16, rows ldy elements apart; must not overlap x
  std::uint64_t ldy = 0;
};

// y = x W^T + bias. Fastest where x is 16-byte aligned and ldx a multiple of 8.
Status linear(const Matrix& matrix, const LinearArgs& args, cuda::Target workspace,
              const Plan& plan, Stream stream) noexcept;

// ---- choosing --------------------------------------------------------------

enum class Policy : std::int32_t {
  kMemory = 0,  // always packed
  kSpeed = 1,   // dense where the packed product may be slower
};

struct Choice {
  bool packed = true;  // false: keep the dense matrix and its dense multiply
  Plan plan;           // complete, never kAuto
  float gain = 0;      // speed over cuBLAS, measured by tune() or expected; 0: unknown
};

// What linear() does for kAuto, and what the policy says, on the current device.
Choice choose(std::uint64_t n, std::uint64_t k, std::uint64_t m, Policy policy) noexcept;

// The same as one line of text.
std::string explain(std::uint64_t n, std::uint64_t k, std::uint64_t m, Policy policy);

// Measures every plan that fits on this device and keeps the best one for (n, k,
// bucket of m) in the process-wide table. Takes milliseconds and waits for the device.
Result<Choice> tune(const Matrix& matrix, const LinearArgs& args, cuda::Target workspace,
                    Stream stream) noexcept;

// The table as text, one line per entry, and back. Later lines override earlier ones.
std::string tuning_text();
Status load_tuning(const std::string& text);

// ---- updating -------------------------------------------------------------
//
// Applies a delta (snug/delta.h) to a packed matrix. The new matrix is written to another buffer
// and the old one is not changed. If the result is kOk, the new one is complete and has the hash
// that the delta names: open() it, then free the old one or keep it for a rollback.

// Room for the dense matrix and for packing; 0 if n or k is 0 or too large.
std::size_t apply_delta_workspace_bytes(std::uint64_t n, std::uint64_t k) noexcept;

// `delta` (device memory, 16-byte aligned) was made from the dense BF16 matrix, rows contiguous, in
// blocks of at most 2^14 elements. The new matrix is packed as `kind` into new_packed, which needs
// at most packed_bound() bytes. `result` (device memory) gets the bytes used, or an error.
// kWrongBase: the delta was made for another version. kDstTooSmall: as for pack_host.
Status apply_delta(const Matrix& matrix, cuda::Source delta, Kind kind, cuda::Target new_packed,
                   cuda::Target workspace, DeviceResult* result, const cuda::DeltaOptions& options,
                   Stream stream) noexcept;

}  // namespace snug::gemm
