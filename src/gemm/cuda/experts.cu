// experts(): checks arguments, lays out the workspace, launches the kernels of a layer.
#include <algorithm>

#include "gemm/cuda/experts_host.h"

namespace snug::gemm {
namespace {

constexpr std::uint32_t kMaxTopK = 16;

struct ExpertsWorkspace {
  std::uint64_t active = 0, num_active, pairs, x, h, parts, total;
  std::uint64_t x_units, h_units, part_units;  // pieces of 16 bytes in a row

  ExpertsWorkspace(std::uint64_t experts, std::uint64_t n, std::uint64_t k, std::uint64_t m,
                   std::uint32_t top_k) {
    const std::uint64_t num_pairs = m * top_k;
    x_units = align_up(k, kTileCols) / 8;
    h_units = align_up(n, kTileCols) / 8;
    part_units = align_up(k, 32) / 8;
    num_active = align_up(active + (experts + 1) * sizeof(ActiveExpert), kAlign);
    pairs = num_active + kAlign;
    x = align_up(pairs + num_pairs * 4, kAlign);
    h = align_up(x + m * x_units * 16, kAlign);
    parts = align_up(h + num_pairs * h_units * 16, kAlign);
    total = align_up(parts + num_pairs * part_units * 16, kAlign);
  }
};

Status check_banks(const Bank& gate_up, const Bank& down) {
  if (bank_bytes(gate_up.shape) == 0 || bank_bytes(down.shape) == 0)
    return usage("shape of a bank is out of range");
  if (gate_up.shape.parts != 2 || down.shape.parts != 1)
    return usage("gate_up needs two parts, down one");
  if (gate_up.shape.experts != down.shape.experts || gate_up.shape.kind != down.shape.kind)
    return usage("the banks differ in kind or number of experts");
  if (gate_up.shape.k != down.shape.n || gate_up.shape.n != 2 * down.shape.k)
    return usage("the shapes of gate_up and down do not match");
  for (const void* data : {gate_up.data, down.data})
    if (data == nullptr || !is_aligned(data, kAlign)) return usage("bank is not 256-byte aligned");
  return {};
}

Status check_args(const ExpertsArgs& args, std::uint64_t n, std::uint64_t k) {
  if (args.top_k == 0 || args.top_k > kMaxTopK)
    return usage("top_k is not 1 to 16", args.top_k, kMaxTopK);
  if (args.m == 0) return {};
  if (args.x == nullptr || args.y == nullptr) return usage("x or y is missing");
  if (args.ids == nullptr || args.weights == nullptr) return usage("ids or weights are missing");
  if (!is_aligned(args.x, 2) || !is_aligned(args.y, 2)) return usage("x or y is not aligned");
  if (args.m > 1 && (args.ldx < k || args.ldy < k))
    return usage("rows overlap: leading dimension", std::min(args.ldx, args.ldy), k);
  if (const std::uint64_t most = max_expert_rows(n, k, args.top_k); args.m > most)
    return usage("too many rows of x", args.m, most);
  if (args.m > 1 && args.ldx >= (std::uint64_t{1} << 35) / args.m)
    return usage("rows of x are too far apart: leading dimension", args.ldx);
  return {};
}

// One call: what its kernels share.
struct LayerCall {
  const Device& device;
  const Bank &gate_up, &down;
  const ExpertsArgs& args;
  ExpertsWorkspace offsets;
  ExpertsFit fit;
  std::uint8_t* base;
  cudaStream_t stream;
  BankParts banks[2];
  Routing routing;
  std::uint64_t n, k, ldx;
  std::uint32_t experts, num_pairs;

  LayerCall(const Device& d, const Bank& gate_up_, const Bank& down_, const ExpertsArgs& a,
            const ExpertsWorkspace& o, const ExpertsPlan& wish, void* workspace, cudaStream_t s)
      : device(d),
        gate_up(gate_up_),
        down(down_),
        args(a),
        offsets(o),
        base(static_cast<std::uint8_t*>(workspace)),
        stream(s),
        banks{parts_of(gate_up_), parts_of(down_)},
        routing{reinterpret_cast<ActiveExpert*>(base + o.active),
                reinterpret_cast<std::uint32_t*>(base + o.num_active),
                reinterpret_cast<std::uint32_t*>(base + o.pairs)},
        n(down_.shape.k),
        k(down_.shape.n),
        ldx(a.m > 1 ? a.ldx : align_up(k, 8)),
        experts(static_cast<std::uint32_t>(down_.shape.experts)),
        num_pairs(static_cast<std::uint32_t>(a.m * a.top_k)) {
    fit = fit_experts(d, gate_up_.shape, down_.shape, a.m, a.top_k, wish);
    // Many rows are gathered in pieces of 16 bytes.
    if (fit.many_rows && (!is_aligned(a.x, 16) || ldx % 8 != 0 || k % 8 != 0))
      fit = fit_experts(d, gate_up_.shape, down_.shape, a.m, a.top_k, {.kernel = kFewExpertRows});
    // Reading x as it is takes whole tiles, in pieces of 4 bytes.
    fit.local = fit.local && is_aligned(a.x, 4) && ldx % 2 == 0 && k % kTileCols == 0 &&
                a.m * ldx < std::uint64_t{1} << 32;
  }

  RouteShape shape() const { return {num_pairs, args.top_k, experts, fit.chunk_rows}; }

  cudaError_t route() const {
    if (fit.local && !fit.many_rows) return cudaSuccess;
    RouteParams p{};
    p.to = routing;
    p.ids = args.ids;
    p.shape = shape();
    p.result = args.result;
    p.x = static_cast<const std::uint16_t*>(args.x);
    p.ldx = ldx;
    p.m = static_cast<std::uint32_t>(args.m);
    p.k = static_cast<std::uint32_t>(k);
    p.x_pairs = is_aligned(args.x, 4) && ldx % 2 == 0;
    p.x_to = reinterpret_cast<uint4*>(base + offsets.x);
    p.x_units = static_cast<std::uint32_t>(offsets.x_units);
    return launch_route_experts(device, p, fit.many_rows, stream);
  }

  cudaError_t multiply(bool is_gate_up) const {
    ExpertsProduct p{};
    p.bank = banks[is_gate_up ? 0 : 1];
    p.routing = routing;
    p.shape = shape();
    p.row_units = static_cast<std::uint32_t>(is_gate_up ? offsets.x_units : offsets.h_units);
    p.rows = reinterpret_cast<const uint4*>(base + (is_gate_up ? offsets.x : offsets.h));
    p.per_row = is_gate_up ? args.top_k : 1;
    p.weights = args.weights;
    p.out = base + (is_gate_up ? offsets.h : offsets.parts);
    p.out_row_bytes = (is_gate_up ? offsets.h_units : offsets.part_units) * 16;
    p.items = is_gate_up ? p.bank.part_strips : (p.bank.strips + 1) / 2;
    if (!fit.many_rows) {
      p.ids = args.ids;
      p.x = static_cast<const std::uint32_t*>(args.x);
      p.x_row_pairs = static_cast<std::uint32_t>(ldx / 2);
      p.result = args.result;
      p.split = fit.split[is_gate_up ? 0 : 1];
      p.stages = fit.stages;
      return launch_few_expert_rows(device, p, down.shape.kind, is_gate_up, fit.local, stream);
    }
    p.items = (p.items + 7) / 8;
    p.present_units = p.row_units;
    if (is_gate_up) {
      p.rows = static_cast<const uint4*>(args.x);
      p.row_units = static_cast<std::uint32_t>(ldx / 8);
      p.present_units = static_cast<std::uint32_t>(k / 8);
    }
    return launch_many_expert_rows(device, p, down.shape.kind, is_gate_up, fit.chunk_rows, stream);
  }

  cudaError_t sum() const {
    const std::uint64_t ldy = args.m > 1 ? args.ldy : align_up(k, 8);
    const SumParams p{.ids = args.ids,
                      .parts = reinterpret_cast<const uint4*>(base + offsets.parts),
                      .part_units = offsets.part_units,
                      .m = static_cast<std::uint32_t>(args.m),
                      .k = static_cast<std::uint32_t>(k),
                      .top_k = args.top_k,
                      .experts = experts,
                      .y = static_cast<std::uint16_t*>(args.y),
                      .ldy = ldy,
                      .y_wide = is_aligned(args.y, 16) && ldy % 8 == 0,
                      .skip_empty = false};
    return launch_sum_experts(device, p, stream);
  }
};

}  // namespace

std::uint64_t max_expert_rows(std::uint64_t n, std::uint64_t k, std::uint32_t top_k) noexcept {
  return ((std::uint64_t{1} << 35) - 1) / (align_up(std::max(n, k), kTileCols) * top_k);
}

Status check_experts_plan(const ExpertsPlan& plan) noexcept {
  const auto is_one_of = [](std::int32_t v, std::initializer_list<std::int32_t> known) {
    return std::find(known.begin(), known.end(), v) != known.end();
  };
  if (!is_one_of(plan.kernel, {0, kFewExpertRows, kManyExpertRows}))
    return usage("not a kernel of experts", static_cast<std::uint64_t>(plan.kernel));
  if (!is_one_of(plan.split, {0, 1, 2, 4, 8}))
    return usage("split is not 1, 2, 4 or 8", static_cast<std::uint64_t>(plan.split));
  if (!is_one_of(plan.rows, {0, 16, 32, 64, 96, 128}))
    return usage("rows are not 16, 32, 64, 96 or 128", static_cast<std::uint64_t>(plan.rows));
  return {};
}

BankParts parts_of(const Bank& bank) noexcept {
  const SlotLayout slot(bank.shape);
  return {.data = static_cast<const std::uint8_t*>(bank.data),
          .slot_bytes = slot.num_bytes,
          .escapes = slot.matrix.escapes,
          .tiles = slot.matrix.tiles,
          .overflows = slot.matrix.overflows,
          .strips = static_cast<std::uint32_t>(slot.matrix.strips),
          .tiles_per_strip = static_cast<std::uint32_t>(slot.matrix.tiles_per_strip),
          .part_strips = static_cast<std::uint32_t>(slot.part_strips),
          .max_overflows = static_cast<std::uint32_t>(slot.max_overflows)};
}

std::size_t experts_workspace_bytes(const BankShape& gate_up, const BankShape& down,
                                    std::uint32_t top_k, std::uint64_t max_m) noexcept {
  if (bank_bytes(gate_up) == 0 || bank_bytes(down) == 0) return 0;
  if (top_k == 0 || top_k > kMaxTopK || max_m > max_expert_rows(down.k, down.n, top_k)) return 0;
  return ExpertsWorkspace(gate_up.experts, down.k, down.n, max_m, top_k).total;
}

Status experts(const Bank& gate_up, const Bank& down, const ExpertsArgs& args,
               cuda::Target workspace, const ExpertsPlan& wish, Stream stream) noexcept {
  if (Status s = check_banks(gate_up, down); !s.ok()) return s;
  const std::uint64_t experts = down.shape.experts, n = down.shape.k, k = down.shape.n;
  if (Status s = check_args(args, n, k); !s.ok()) return s;
  if (Status s = check_experts_plan(wish); !s.ok()) return s;
  const ExpertsWorkspace offsets(experts, n, k, args.m, args.top_k);
  if (Status s = cuda::check_workspace(workspace.data, workspace.num_bytes, offsets.total); !s.ok())
    return s;
  const Device& device = current_device();
  if (!device.hopper()) return {Code::kNoDevice, "experts need a Hopper GPU"};
  if (args.m == 0) {
    if (args.result == nullptr) return {};
    return from_cuda(cudaMemsetAsync(args.result, 0, sizeof *args.result, stream));  // kOk
  }
  const LayerCall call(device, gate_up, down, args, offsets, wish, workspace.data, stream);
  // A kernel that follows one that was not launched would read what nobody wrote.
  cudaError_t error = call.route();
  if (error == cudaSuccess) error = call.multiply(true);
  if (error == cudaSuccess) error = call.multiply(false);
  if (error == cudaSuccess) error = call.sum();
  return from_cuda(error);
}

}  // namespace snug::gemm
