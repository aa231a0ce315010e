// linear(): checks arguments, lays out the workspace, runs the chosen kernel.
#include <algorithm>

#include "gemm/cuda/generic_gemm.cuh"
#include "gemm/cuda/linear_host.h"

namespace snug::gemm {
namespace {

// A panel of restored weights is large enough that its multiplication fills the GPU.
constexpr std::uint64_t kPanelBytes = std::uint64_t{128} << 20;
// Up to this many rows, x is copied to an aligned buffer for the batch kernel.
constexpr std::uint64_t kMaxCopiedTokens = 1024;

std::uint64_t panel_strips(std::uint64_t n, std::uint64_t k) {
  const std::uint64_t strips = (n + kStripRows - 1) / kStripRows,
                      strip_bytes = kStripRows * align_up(k, 8) * 2;
  return std::min(strips, std::max<std::uint64_t>(kPanelBytes / strip_bytes, 8));
}

// What a plan puts behind the counters: sums or a panel, then a copy of x.
struct WorkspaceLayout {
  std::uint64_t sums = kCounterBytes, x_copy, total;

  WorkspaceLayout(const Device& device, const Problem& p, const CompletePlan& c) {
    std::uint64_t bytes = 0, copied = 0;
    const std::uint64_t row_bytes = align_up(p.k, 8) * 2;
    if (c.plan.kernel == Kernel::kFewRows && c.fit.split_k > 1)
      bytes = Layout(p.n, p.k, p.kind).strips * few_rows_token_tiles(p.m) * c.fit.split_k * 512;
    if (c.plan.kernel == Kernel::kBatch) {
      if (c.plan.split_k == kStreamK)  // each SM leaves at most one tile of sums
        bytes = static_cast<std::uint64_t>(device.num_sms) * kStripRows *
                static_cast<std::uint32_t>(c.plan.strips * c.plan.tile_m) * 4;
      copied = std::min(p.m, kMaxCopiedTokens) * row_bytes;
    }
    if (c.plan.kernel == Kernel::kUnpack)
      bytes = panel_strips(p.n, p.k) * kStripRows * row_bytes + kBlasWorkspaceBytes;
    x_copy = align_up(sums + bytes, kAlign);
    total = align_up(x_copy + copied, kAlign);
  }
};

// Copies x to rows of a multiple of 16 bytes, as TMA needs them.
__global__ void copy_rows(const std::uint16_t* x, std::uint64_t ldx, std::uint32_t k,
                          std::uint16_t* to, std::uint64_t ld) {
  for (std::uint64_t col = blockIdx.x * blockDim.x + threadIdx.x; col < k;
       col += std::uint64_t{gridDim.x} * blockDim.x)
    to[blockIdx.y * ld + col] = x[blockIdx.y * ldx + col];
}

Status check_args(const Matrix& matrix, const LinearArgs& args, cuda::Target workspace) {
  if (Status s = check_matrix(matrix); !s.ok()) return s;
  if (args.m >= kMaxDim) return usage("too many rows of x", args.m);
  if (args.m != 0 && (args.x == nullptr || args.y == nullptr)) return usage("x or y is missing");
  if (args.m > 1 && args.ldx < matrix.k)
    return usage("rows of x overlap: leading dimension", args.ldx, matrix.k);
  if (args.m > 1 && args.ldy < matrix.n)
    return usage("rows of y overlap: leading dimension", args.ldy, matrix.n);
  if (!is_aligned(args.x, 2) || !is_aligned(args.y, 2) || !is_aligned(args.bias, 2))
    return usage("x, y or bias is not 2-byte aligned");
  return check_workspace(workspace.data, workspace.num_bytes, kCounterBytes);
}

Status run_batch(const Device& device, LinearParams p, Kind kind, const Plan& plan,
                 std::uint8_t* x_copy, cudaStream_t stream) {
  if (!is_aligned(p.x, 16) || p.ldx % 8 != 0) {
    const std::uint64_t ld = align_up(p.k, 8);
    auto* copy = reinterpret_cast<std::uint16_t*>(x_copy);
    copy_rows<<<dim3((p.k + 1023) / 1024, p.m), 256, 0, stream>>>(p.x, p.ldx, p.k, copy, ld);
    if (Status s = from_cuda(cudaGetLastError()); !s.ok()) return s;
    p.x = copy;
    p.ldx = ld;
  }
  return from_cuda(launch_batch(device, p, kind, plan, stream));
}

Status run_unpack(const Matrix& matrix, LinearParams p, std::uint8_t* panel, cudaStream_t stream) {
  const std::uint64_t per_panel = panel_strips(matrix.n, matrix.k), ld = align_up(matrix.k, 8);
  std::uint8_t* const blas_workspace = panel + per_panel * kStripRows * ld * 2;
  const LinearParams whole = p;
  for (std::uint64_t strip = 0; strip < p.strips; strip += per_panel) {
    const std::uint64_t count = std::min(per_panel, p.strips - strip), row = strip * kStripRows;
    if (cudaError_t error = launch_unpack(matrix, strip, count, matrix.n, panel, ld, stream);
        error != cudaSuccess)
      return from_cuda(error);
    p.y = whole.y + row;
    p.bias = whole.bias == nullptr ? nullptr : whole.bias + row;
    const auto rows =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(count * kStripRows, matrix.n - row));
    if (Status s = blas_linear(p, panel, ld, rows, blas_workspace, stream); !s.ok()) return s;
  }
  return {};
}

}  // namespace

LinearParams params_of(const Matrix& matrix, const LinearArgs& args) noexcept {
  const Layout layout(matrix.n, matrix.k, matrix.kind);
  LinearParams p{};
  static_cast<PackedParts&>(p) = parts_of(matrix);
  p.strips = static_cast<std::uint32_t>(layout.strips);
  p.tiles_per_strip = static_cast<std::uint32_t>(layout.tiles_per_strip);
  p.n = static_cast<std::uint32_t>(matrix.n);
  p.k = static_cast<std::uint32_t>(matrix.k);
  p.m = static_cast<std::uint32_t>(args.m);
  p.x = static_cast<const std::uint16_t*>(args.x);
  p.ldx = args.m > 1 ? args.ldx : align_up(matrix.k, 8);
  p.bias = static_cast<const __nv_bfloat16*>(args.bias);
  p.y = static_cast<std::uint16_t*>(args.y);
  p.ldy = args.m > 1 ? args.ldy : align_up(matrix.n, 8);
  p.x_aligned = is_aligned(args.x, 16) && p.ldx % 8 == 0 && p.k % 8 == 0;
  p.y_pairs = is_aligned(args.y, 4) && p.ldy % 2 == 0;
  p.y_wide = is_aligned(args.y, 16) && p.ldy % 8 == 0;
  return p;
}

Status check_matrix(const Matrix& matrix) noexcept {
  if (packed_bound(matrix.n, matrix.k, matrix.kind) == 0)
    return usage("matrix shape or kind out of range");
  if (matrix.data == nullptr || !is_aligned(matrix.data, kAlign))
    return usage("packed matrix is not 256-byte aligned");
  const Layout layout(matrix.n, matrix.k, matrix.kind);
  if (matrix.num_bytes < layout.overflows ||
      matrix.num_bytes > layout.overflows + kOverflowBytes * layout.max_overflows)
    return usage("size of the packed matrix does not match its shape", matrix.num_bytes,
                 layout.overflows);
  return {};
}

cudaError_t launch_generic(const LinearParams& params, Kind kind, cudaStream_t stream) noexcept {
  constexpr std::uint32_t kMaxGridY = 65535;
  LinearParams p = params;
  // Many rows of x take several launches: the grid's second dimension is limited.
  for (std::uint32_t done = 0; done < params.m; done += kMaxGridY * kGenericTokens) {
    p.m = std::min(params.m - done, kMaxGridY * kGenericTokens);
    p.x = params.x + done * params.ldx;
    p.y = params.y + done * params.ldy;
    const dim3 grid(p.strips, (p.m + kGenericTokens - 1) / kGenericTokens);
    if (kind == Kind::kRaw)
      generic_gemm<Kind::kRaw><<<grid, kGenericWarps * 32, 0, stream>>>(p);
    else
      generic_gemm<Kind::kFixed><<<grid, kGenericWarps * 32, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

std::uint64_t plan_workspace_bytes(const Device& device, const Problem& problem,
                                   const CompletePlan& complete) noexcept {
  return WorkspaceLayout(device, problem, complete).total;
}

std::size_t linear_workspace_bytes(std::uint64_t n, std::uint64_t k, std::uint64_t max_m) noexcept {
  if (packed_bound(n, k, Kind::kFixed) == 0) return 0;
  max_m = std::min(max_m, kMaxDim - 1);  // linear() takes no more
  const Device& device = current_device();
  std::uint64_t bytes = kCounterBytes;
  // Each of the few rows may have a plan of its own. Beyond them, needs grow with m within
  // the range of a kernel, so that its largest m is enough.
  const auto allow = [&](const Problem& problem, const Plan& plan) {
    bytes = std::max(bytes,
                     plan_workspace_bytes(device, problem, complete_plan(device, problem, plan)));
  };
  // No tile of the batch kernel has more sums than these.
  if (device.hopper() && max_m > kMaxFewRows / 2)
    allow({n, k, max_m}, {.kernel = Kernel::kBatch,
                          .split_k = kStreamK,
                          .strips = max_m > kMaxNarrowRows ? kWideStrips : 12,
                          .tile_m = max_m > kMaxNarrowRows ? 256 : kMaxNarrowRows});
  for (std::uint64_t m = 1;; m = m < kMaxFewRows ? m + 1 : std::min(2 * m, max_m)) {
    for (const Kind kind : {Kind::kFixed, Kind::kRaw}) allow({n, k, m, kind}, {});
    if (m >= max_m) return bytes;
  }
}

Status init_workspace(cuda::Target workspace, Stream stream) noexcept {
  if (Status s = check_workspace(workspace.data, workspace.num_bytes, kCounterBytes); !s.ok())
    return s;
  return from_cuda(cudaMemsetAsync(workspace.data, 0, kCounterBytes, stream));
}

Status linear(const Matrix& matrix, const LinearArgs& args, cuda::Target workspace,
              const Plan& wish, Stream stream) noexcept {
  if (Status s = check_args(matrix, args, workspace); !s.ok()) return s;
  if (args.m == 0) return {};
  const Device& device = current_device();
  if (device.num_sms == 0) return {Code::kNoDevice, "no usable GPU"};
  if (device.major < 8)
    return {Code::kNoDevice, "linear needs a GPU of compute capability 8.0 or later"};
  const Problem problem{matrix.n, matrix.k, args.m, matrix.kind};
  const CompletePlan complete = wish.kernel == Kernel::kAuto ? auto_plan(device, problem)
                                                             : complete_plan(device, problem, wish);
  const Plan& plan = complete.plan;
  const WorkspaceLayout offsets(device, problem, complete);
  if (workspace.num_bytes < offsets.total)
    return usage("workspace too small", workspace.num_bytes, offsets.total);
  auto* base = static_cast<std::uint8_t*>(workspace.data);
  LinearParams p = params_of(matrix, args);
  p.partials = reinterpret_cast<float4*>(base + offsets.sums);
  p.counters = reinterpret_cast<std::uint32_t*>(base);
  switch (plan.kernel) {
    case Kernel::kGeneric: return from_cuda(launch_generic(p, matrix.kind, stream));
    case Kernel::kFewRows:
      if (complete.fit.split_k == 0)
        return usage("the few-rows kernel does not fit this shape on this GPU");
      return from_cuda(launch_few_rows(device, p, matrix.kind, complete.fit, stream));
    case Kernel::kBatch:
      if (!device.hopper()) return usage("the batch kernel needs a Hopper GPU");
      if (!batch_fits(plan, matrix.k)) return usage("the batch kernel has no such tile");
      if (args.m > kMaxCopiedTokens && (!is_aligned(args.x, 16) || p.ldx % 8 != 0))
        return from_cuda(launch_generic(p, matrix.kind, stream));
      return run_batch(device, p, matrix.kind, plan, base + offsets.x_copy, stream);
    case Kernel::kUnpack:
      if (!have_blas()) return {Code::kNoDevice, "cuBLASLt could not be loaded"};
      // cuBLASLt cannot be told how the bias is aligned.
      if (!is_aligned(args.bias, 16)) return from_cuda(launch_generic(p, matrix.kind, stream));
      return run_unpack(matrix, p, base + offsets.sums, stream);
    default: return usage("not a kernel", static_cast<std::uint64_t>(plan.kernel));
  }
}

}  // namespace snug::gemm
