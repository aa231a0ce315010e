// grouped(): one projection of rows that each have an expert.
#include <algorithm>

#include "gemm/cuda/experts_host.h"

namespace snug::gemm {
namespace {

struct GroupedWorkspace {
  std::uint64_t active = 0, num_active, pairs, ids, x, parts, total;
  std::uint64_t x_units, part_units;  // pieces of 16 bytes in a row

  GroupedWorkspace(const BankShape& shape, std::uint64_t m) {
    x_units = align_up(shape.k, kTileCols) / 8;
    part_units = align_up(shape.n, 32) / 8;
    num_active = align_up(active + (shape.experts + 1) * sizeof(ActiveExpert), kAlign);
    pairs = num_active + kAlign;
    ids = align_up(pairs + m * 4, kAlign);
    x = align_up(ids + m * 4, kAlign);
    parts = align_up(x + m * x_units * 16, kAlign);
    total = align_up(parts + m * part_units * 16, kAlign);
  }
};

Status check(const Bank& bank, const GroupedArgs& args) {
  const BankShape& s = bank.shape;
  if (bank_bytes(s) == 0) return usage("shape of a bank is out of range");
  if (s.parts != 1 && s.n % (2 * kStripRows) != 0)
    return usage("a grouped product with a bank of two parts takes a multiple of 32 rows", s.n);
  if (bank.data == nullptr || !is_aligned(bank.data, kAlign))
    return usage("bank is not 256-byte aligned");
  if (args.m == 0) return {};
  if (args.x == nullptr || args.y == nullptr) return usage("x or y is missing");
  if ((args.ids == nullptr) == (args.counts == nullptr)) return usage("give either ids or counts");
  if (args.counts != nullptr && args.m % s.experts != 0)
    return usage("rows are not a multiple of the experts", args.m, s.experts);
  if (!is_aligned(args.x, 2) || !is_aligned(args.y, 2)) return usage("x or y is not aligned");
  if (args.m > 1 && (args.ldx < s.k || args.ldy < s.n))
    return usage("rows of x or y overlap: leading dimension", std::min(args.ldx, args.ldy));
  if (const std::uint64_t most = max_expert_rows(s.n, s.k, 1); args.m > most)
    return usage("too many rows of x", args.m, most);
  if (args.m > 1 && args.ldx >= (std::uint64_t{1} << 35) / args.m)
    return usage("rows of x are too far apart: leading dimension", args.ldx);
  return {};
}

// One call: what its kernels share.
struct GroupedCall {
  const Device& device;
  const Bank& bank;
  const GroupedArgs& args;
  GroupedWorkspace offsets;
  std::uint8_t* base;
  cudaStream_t stream;
  std::uint32_t m, experts;
  std::uint64_t ldx;
  ExpertsFit fit;
  Routing routing;
  const std::int32_t* ids;

  GroupedCall(const Device& d, const Bank& b, const GroupedArgs& a, const GroupedWorkspace& o,
              const ExpertsPlan& wish, void* workspace, cudaStream_t s)
      : device(d),
        bank(b),
        args(a),
        offsets(o),
        base(static_cast<std::uint8_t*>(workspace)),
        stream(s),
        m(static_cast<std::uint32_t>(a.m)),
        experts(static_cast<std::uint32_t>(b.shape.experts)),
        ldx(a.m > 1 ? a.ldx : align_up(b.shape.k, 8)),
        fit(fit_experts(d, b.shape, b.shape, a.m, 1, wish)),
        routing{reinterpret_cast<ActiveExpert*>(base + o.active),
                reinterpret_cast<std::uint32_t*>(base + o.num_active),
                reinterpret_cast<std::uint32_t*>(base + o.pairs)},
        ids(a.ids != nullptr ? a.ids : reinterpret_cast<const std::int32_t*>(base + o.ids)) {
    // Many rows are gathered in pieces of 16 bytes.
    if (fit.many_rows && (!is_aligned(a.x, 16) || ldx % 8 != 0 || b.shape.k % 8 != 0))
      fit = fit_experts(d, b.shape, b.shape, a.m, 1, {.kernel = kFewExpertRows});
  }

  RouteShape shape() const { return {m, 1, experts, fit.chunk_rows}; }

  cudaError_t make_ids() const {
    if (args.counts == nullptr) return cudaSuccess;
    return launch_ids_of_counts(args.counts, m / experts, m, const_cast<std::int32_t*>(ids),
                                stream);
  }
  cudaError_t route() const {
    RouteParams p{};
    p.to = routing;
    p.ids = ids;
    p.shape = shape();
    p.result = args.result;
    p.x = static_cast<const std::uint16_t*>(args.x);
    p.ldx = ldx;
    p.m = m;
    p.k = static_cast<std::uint32_t>(bank.shape.k);
    p.x_pairs = is_aligned(args.x, 4) && ldx % 2 == 0;
    p.x_to = reinterpret_cast<uint4*>(base + offsets.x);
    p.x_units = static_cast<std::uint32_t>(offsets.x_units);
    return launch_route_experts(device, p, fit.many_rows, stream);
  }
  cudaError_t multiply() const {
    ExpertsProduct p{};
    p.bank = parts_of(bank);
    p.routing = routing;
    p.shape = shape();
    p.alone = true;
    p.rows = reinterpret_cast<const uint4*>(base + offsets.x);
    p.row_units = static_cast<std::uint32_t>(offsets.x_units);
    p.per_row = 1;
    p.out = base + offsets.parts;
    p.out_row_bytes = offsets.part_units * 16;
    p.items = (p.bank.strips + 1) / 2;
    if (!fit.many_rows) {
      p.split = fit.split[1];
      p.stages = fit.stages;
      return launch_few_expert_rows(device, p, bank.shape.kind, false, false, stream);
    }
    p.items = (p.items + 7) / 8;
    p.rows = static_cast<const uint4*>(args.x);
    p.row_units = static_cast<std::uint32_t>(ldx / 8);
    p.present_units = static_cast<std::uint32_t>(bank.shape.k / 8);
    return launch_many_expert_rows(device, p, bank.shape.kind, false, fit.chunk_rows, stream);
  }
  cudaError_t store() const {
    const std::uint64_t n = bank.shape.n, ldy = args.m > 1 ? args.ldy : align_up(n, 8);
    const SumParams p{.ids = ids,
                      .parts = reinterpret_cast<const uint4*>(base + offsets.parts),
                      .part_units = offsets.part_units,
                      .m = m,
                      .k = static_cast<std::uint32_t>(n),
                      .top_k = 1,
                      .experts = experts,
                      .y = static_cast<std::uint16_t*>(args.y),
                      .ldy = ldy,
                      .y_wide = is_aligned(args.y, 16) && ldy % 8 == 0,
                      .skip_empty = true};
    return launch_sum_experts(device, p, stream);
  }
};

}  // namespace

std::size_t grouped_workspace_bytes(const BankShape& shape, std::uint64_t max_m) noexcept {
  if (bank_bytes(shape) == 0 || max_m > max_expert_rows(shape.n, shape.k, 1)) return 0;
  return GroupedWorkspace(shape, max_m).total;
}

Status grouped(const Bank& bank, const GroupedArgs& args, cuda::Target workspace,
               const ExpertsPlan& wish, Stream stream) noexcept {
  if (Status s = check(bank, args); !s.ok()) return s;
  if (Status s = check_experts_plan(wish); !s.ok()) return s;
  const GroupedWorkspace offsets(bank.shape, args.m);
  if (Status s = cuda::check_workspace(workspace.data, workspace.num_bytes, offsets.total); !s.ok())
    return s;
  const Device& device = current_device();
  if (!device.hopper()) return {Code::kNoDevice, "experts need a Hopper GPU"};
  if (args.m == 0) {
    if (args.result == nullptr) return {};
    return from_cuda(cudaMemsetAsync(args.result, 0, sizeof *args.result, stream));  // kOk
  }
  const GroupedCall call(device, bank, args, offsets, wish, workspace.data, stream);
  cudaError_t error = call.make_ids();
  if (error == cudaSuccess) error = call.route();
  if (error == cudaSuccess) error = call.multiply();
  if (error == cudaSuccess) error = call.store();
  return from_cuda(error);
}

}  // namespace snug::gemm
