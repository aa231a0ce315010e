// Which kernel for which shape: the tuning table, the rule where it is silent,
// and the tuner that fills it.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "gemm/cuda/choose.h"
#include "gemm/cuda/tuning.h"

namespace snug::gemm {
namespace {

// From here on, restoring the weights costs less than decoding them for every tile of x.
constexpr std::uint64_t kUnpackFrom = 8192;

Plan rule(const Device& device, std::uint64_t n, std::uint64_t k, std::uint64_t m, Kind kind) {
  Plan plan;
  if (!device.hopper()) {
    plan.kernel = m > 64 && have_blas() ? Kernel::kUnpack : Kernel::kGeneric;
    return plan;
  }
  const DecodeFit fit = fit_decode(device, n, k, m, kind, {});
  if (fit.splits != 0) {
    plan.kernel = Kernel::kDecode;
    plan.splits = static_cast<std::int32_t>(fit.splits);
    plan.warps = static_cast<std::int32_t>(fit.warps);
    return plan;
  }
  plan.kernel = m >= kUnpackFrom && have_blas() ? Kernel::kUnpack : Kernel::kBatch;
  return plan;
}

// Runs of one plan, the weights out of the cache each time; the median in microseconds.
double time_plan(const Matrix& matrix, const LinearArgs& args, cuda::Target workspace,
                 const Plan& plan, cudaStream_t stream, Status* status) {
  constexpr int kRuns = 9;
  std::vector<cudaEvent_t> events(2 * kRuns);
  for (auto& event : events) *status = status->ok() ? from_cuda(cudaEventCreate(&event)) : *status;
  auto* scratch = static_cast<std::uint8_t*>(workspace.data) + kCounterBytes;
  for (int i = -1; i < kRuns && status->ok(); ++i) {
    *status = from_cuda(cudaMemsetAsync(scratch, i, workspace.num_bytes - kCounterBytes, stream));
    if (i >= 0 && status->ok()) *status = from_cuda(cudaEventRecord(events[2 * i], stream));
    if (status->ok()) *status = linear(matrix, args, workspace, plan, stream);
    if (i >= 0 && status->ok()) *status = from_cuda(cudaEventRecord(events[2 * i + 1], stream));
  }
  if (status->ok()) *status = from_cuda(cudaStreamSynchronize(stream));
  std::vector<float> times(kRuns, 0.0f);
  for (int i = 0; i < kRuns && status->ok(); ++i)
    *status = from_cuda(cudaEventElapsedTime(&times[i], events[2 * i], events[2 * i + 1]));
  for (auto& event : events) cudaEventDestroy(event);
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return 1e3 * times[kRuns / 2];
}

// Clusters are for few tiles of y: all of them should run at once.
bool clusters_fit(const Device& device, std::uint64_t n, std::uint64_t m, const Plan& plan) {
  constexpr std::uint64_t kBlocks = 2;  // that share x
  const auto rows = kStripRows * kBlocks * static_cast<std::uint64_t>(plan.warps);
  const auto tokens = static_cast<std::uint64_t>(plan.columns);
  const std::uint64_t tiles = (n + rows - 1) / rows * ((m + tokens - 1) / tokens);
  return kBlocks * tiles * static_cast<std::uint64_t>(plan.splits) <=
         static_cast<std::uint64_t>(device.num_sms);
}

// The dense multiplication of the same weights, if the workspace can hold them.
double time_dense(const Matrix& matrix, const LinearArgs& args, cuda::Target workspace,
                  cudaStream_t stream, Status* status) {
  const std::uint64_t ld = align_up(matrix.k, 8), bytes = align_up(matrix.n * ld * 2, kAlign);
  if (!have_blas() || workspace.num_bytes < kCounterBytes + bytes + kBlasWorkspaceBytes) return 0;
  auto* dense = static_cast<std::uint8_t*>(workspace.data) + kCounterBytes;
  LinearParams p{};
  p.k = static_cast<std::uint32_t>(matrix.k);
  p.m = static_cast<std::uint32_t>(args.m);
  p.x = static_cast<const std::uint16_t*>(args.x);
  p.ldx = args.m > 1 ? args.ldx : ld;
  p.y = static_cast<std::uint16_t*>(args.y);
  p.ldy = args.m > 1 ? args.ldy : align_up(matrix.n, 8);
  *status = from_cuda(
      launch_unpack(matrix, 0, Layout(matrix.n, matrix.k, matrix.kind).strips, dense, ld, stream));
  cudaEvent_t events[2] = {};
  for (auto& event : events) *status = status->ok() ? from_cuda(cudaEventCreate(&event)) : *status;
  constexpr int kRuns = 10;
  for (int i = -2; i < kRuns && status->ok(); ++i) {
    if (i == 0) *status = from_cuda(cudaEventRecord(events[0], stream));
    if (status->ok())
      *status =
          blas_linear(p, dense, ld, static_cast<std::uint32_t>(matrix.n), dense + bytes, stream);
  }
  if (status->ok()) *status = from_cuda(cudaEventRecord(events[1], stream));
  if (status->ok()) *status = from_cuda(cudaStreamSynchronize(stream));
  float ms = 0;
  if (status->ok()) *status = from_cuda(cudaEventElapsedTime(&ms, events[0], events[1]));
  for (auto& event : events) cudaEventDestroy(event);
  return 1e3 * ms / kRuns;
}

}  // namespace

Plan complete_plan(const Device& device, std::uint64_t n, std::uint64_t k, std::uint64_t m,
                   Kind kind, const Plan& wish) noexcept {
  Plan plan = wish;
  if (plan.kernel == Kernel::kAuto) {
    TuningEntry entry;
    plan = rule(device, n, k, m, kind);
    // A table may come from elsewhere: it is believed only where its plan can run.
    if (find_tuning(device.name, n, k, m, &entry) &&
        (entry.plan.kernel != Kernel::kDecode ||
         fit_decode(device, n, k, m, kind, entry.plan).splits != 0) &&
        (entry.plan.kernel != Kernel::kBatch || (device.hopper() && batch_fits(entry.plan, k))) &&
        (entry.plan.kernel != Kernel::kUnpack || have_blas()))
      plan = entry.plan;
  }
  if (plan.kernel == Kernel::kBatch && plan.columns == 0)
    plan.columns = static_cast<std::int32_t>(batch_columns(m));
  if (plan.kernel == Kernel::kBatch && plan.warps == 0)
    plan.warps = plan.columns == 256 || n * k < 1 << 26 ? 8 : 12;
  return plan;
}

std::vector<Plan> candidates(const Device& device, std::uint64_t n, std::uint64_t k,
                             std::uint64_t m, Kind kind) {
  std::vector<Plan> plans;
  for (const int warps : {8, 16})
    for (const int splits : {1, 2, 3, 4, 6, 11}) {
      const Plan plan{Kernel::kDecode, splits, warps, 0};
      if (fit_decode(device, n, k, m, kind, plan).splits != 0) plans.push_back(plan);
    }
  const auto widest = static_cast<int>(batch_columns(m));
  if (device.hopper() && m > kMaxDecodeTokens / 2)
    for (const int columns : {widest / 2, widest})
      for (const int strips : {8, 12, 16})
        for (const int splits : {1, 2, 4})
          if (const Plan plan{Kernel::kBatch, splits, strips, columns};
              (columns == widest || widest == 256) && batch_fits(plan, k) &&
              (splits == 1 || clusters_fit(device, n, m, plan)))
            plans.push_back(plan);
  if (have_blas() && m > 64) plans.push_back({Kernel::kUnpack, 0, 0, 0});
  if (!device.hopper()) plans.push_back({Kernel::kGeneric, 0, 0, 0});
  return plans;
}

Choice choose(std::uint64_t n, std::uint64_t k, std::uint64_t m, Policy policy) noexcept {
  Choice choice;
  const Device& device = current_device();
  choice.plan = complete_plan(device, n, k, m, Kind::kNibble, {});
  TuningEntry entry;
  if (find_tuning(device.name, n, k, m, &entry)) choice.gain = entry.gain;
  if (policy == Policy::kSpeed)
    choice.packed = choice.gain != 0 ? choice.gain >= 1.0f : device.hopper() && m <= 64;
  return choice;
}

std::string explain(std::uint64_t n, std::uint64_t k, std::uint64_t m, Policy policy) {
  const Choice c = choose(n, k, m, policy);
  const Device& device = current_device();
  char line[320], gain[64];
  if (c.gain != 0)
    std::snprintf(gain, sizeof gain, "measured %.2fx of cuBLAS", static_cast<double>(c.gain));
  else
    std::snprintf(gain, sizeof gain, "not measured for this shape");
  int length = std::snprintf(
      line, sizeof line, "%llux%llu, m=%llu on %s: %s (%s policy; %s); kernel %s",
      static_cast<unsigned long long>(n), static_cast<unsigned long long>(k),
      static_cast<unsigned long long>(m), device.num_sms == 0 ? "no GPU" : device.name,
      c.packed ? "packed" : "dense", policy == Policy::kSpeed ? "speed" : "memory", gain,
      kernel_name(c.plan.kernel));
  if (c.plan.kernel == Kernel::kDecode)
    std::snprintf(line + length, sizeof line - length, ", k in %d part%s, %d warps", c.plan.splits,
                  c.plan.splits == 1 ? "" : "s", c.plan.warps);
  if (c.plan.kernel == Kernel::kBatch)
    std::snprintf(line + length, sizeof line - length, ", tiles of %d rows of W and %d of x%s",
                  16 * c.plan.warps, c.plan.columns,
                  c.plan.splits > 1 ? ", k cut in clusters" : "");
  return line;
}

Result<Choice> tune(const Matrix& matrix, const LinearArgs& args, cuda::Target workspace,
                    Stream stream) noexcept {
  const Device& device = current_device();
  if (device.num_sms == 0) return Status{Code::kNoDevice, "no usable GPU"};
  if (args.m == 0) return usage("nothing to measure: m is 0");
  Choice best;
  double best_us = 0;
  Status status = linear(matrix, args, workspace, {}, stream);
  for (const Plan& plan : candidates(device, matrix.n, matrix.k, args.m, matrix.kind)) {
    if (!status.ok()) return status;
    if (plan_workspace_bytes(device, matrix.n, matrix.k, args.m, matrix.kind, plan) >
        workspace.num_bytes)
      continue;
    const double us = time_plan(matrix, args, workspace, plan, stream, &status);
    if (status.ok() && (best_us == 0 || us < best_us)) best_us = us, best.plan = plan;
  }
  if (!status.ok()) return status;
  if (best_us == 0) return usage("workspace too small for any plan", workspace.num_bytes);
  const double dense_us = time_dense(matrix, args, workspace, stream, &status);
  if (!status.ok()) return status;
  best.gain = static_cast<float>(dense_us / best_us);
  TuningEntry entry{};
  std::memcpy(entry.device, device.name, sizeof entry.device);
  entry.n = matrix.n;
  entry.k = matrix.k;
  entry.m = m_bucket(args.m);
  entry.plan = best.plan;
  entry.gain = best.gain;
  remember_tuning(entry);
  return best;
}

}  // namespace snug::gemm
