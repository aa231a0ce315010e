// What kAuto and a policy decide on the current device, and the tuner that fills the table.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "gemm/cuda/linear_host.h"
#include "gemm/tuning.h"

namespace snug::gemm {
namespace {

using ULL = unsigned long long;

// Microseconds between two moments of a stream. Events that could not be created report
// their error when they are recorded.
class Timer {
 public:
  Timer() {
    for (cudaEvent_t& event : events_) (void)cudaEventCreate(&event);
  }
  Timer(const Timer&) = delete;
  ~Timer() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  Status start(cudaStream_t stream) { return from_cuda(cudaEventRecord(events_[0], stream)); }
  Status stop(cudaStream_t stream) { return from_cuda(cudaEventRecord(events_[1], stream)); }
  Result<double> us() const {
    float ms = 0;
    cudaError_t error = cudaEventSynchronize(events_[1]);
    if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, events_[0], events_[1]);
    if (error != cudaSuccess) return from_cuda(error);
    return 1e3 * ms;
  }

 private:
  cudaEvent_t events_[2] = {};
};

// The median of some runs of one plan, each with the weights out of the cache.
Result<double> time_plan(const Matrix& matrix, const LinearArgs& args, cuda::Target workspace,
                         const Plan& plan, cudaStream_t stream) {
  std::array<Timer, 9> timers;
  std::array<double, timers.size()> times;
  auto* scratch = static_cast<std::uint8_t*>(workspace.data) + kCounterBytes;
  const auto run = [&](Timer& timer) -> Status {
    Status s = from_cuda(cudaMemsetAsync(scratch, 1, workspace.num_bytes - kCounterBytes, stream));
    if (s.ok()) s = timer.start(stream);
    if (s.ok()) s = linear(matrix, args, workspace, plan, stream);
    return s.ok() ? timer.stop(stream) : s;
  };
  if (Status s = run(timers[0]); !s.ok()) return s;  // to warm up
  for (Timer& timer : timers)
    if (Status s = run(timer); !s.ok()) return s;
  for (std::size_t i = 0; i < timers.size(); ++i) {
    const auto us = timers[i].us();
    if (!us.ok()) return us.status();
    times[i] = *us;
  }
  std::ranges::nth_element(times, times.begin() + times.size() / 2);
  return times[times.size() / 2];
}

// The dense product of the same weights; 0 if the workspace cannot hold them.
Result<double> time_dense(const Matrix& matrix, const LinearArgs& args, cuda::Target workspace,
                          cudaStream_t stream) {
  constexpr int kRuns = 10;
  const std::uint64_t ld = align_up(matrix.k, 8), bytes = align_up(matrix.n * ld * 2, kAlign);
  if (!have_blas() || workspace.num_bytes < kCounterBytes + bytes + kBlasWorkspaceBytes) return 0.0;
  auto* dense = static_cast<std::uint8_t*>(workspace.data) + kCounterBytes;
  LinearParams p = params_of(matrix, args);
  // cuBLASLt cannot be told how the bias is aligned; to add it takes hardly any time.
  if (!is_aligned(p.bias, 16)) p.bias = nullptr;
  Timer timer;
  Status s = unpack(matrix, dense, ld, stream);
  for (int i = -2; i < kRuns && s.ok(); ++i) {
    if (i == 0) s = timer.start(stream);
    if (s.ok())
      s = blas_linear(p, dense, ld, static_cast<std::uint32_t>(matrix.n), dense + bytes, stream);
  }
  if (s.ok()) s = timer.stop(stream);
  if (!s.ok()) return s;
  const auto us = timer.us();
  if (!us.ok()) return us.status();
  return *us / kRuns;
}

void read_properties(int id, Device& device) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, id) != cudaSuccess) return;
  device.num_sms = properties.multiProcessorCount;
  device.major = properties.major;
  device.minor = properties.minor;
  device.max_smem = static_cast<std::uint32_t>(properties.sharedMemPerBlockOptin);
  std::snprintf(device.name, sizeof device.name, "%.63s", properties.name);
  device.has_blas = have_blas;
  int khz = 0, bits = 0;
  if (cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, id) == cudaSuccess &&
      cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, id) == cudaSuccess &&
      khz > 0 && bits > 0)
    device.memory_gb_s = 2e-6 * khz * bits / 8;
}

// Expected times are about 6 % off: where a gain of less than this is expected, there may be none.
constexpr float kSure = 1.05f;

}  // namespace

const Device& current_device() noexcept {
  constexpr int kMaxDevices = 64;
  static Device devices[kMaxDevices];
  static std::once_flag known[kMaxDevices];
  static const Device none;
  int id = 0;
  if (cudaGetDevice(&id) != cudaSuccess || id >= kMaxDevices) return none;
  std::call_once(known[id], read_properties, id, std::ref(devices[id]));
  return devices[id];
}

Choice choose(std::uint64_t n, std::uint64_t k, std::uint64_t m, Policy policy) noexcept {
  const Device& device = current_device();
  const CompletePlan& complete = auto_plan(device, {n, k, m});
  Choice choice{true, complete.plan, complete.gain};
  if (policy == Policy::kSpeed) choice.packed = choice.gain >= (complete.measured ? 1.0f : kSure);
  return choice;
}

std::string explain(std::uint64_t n, std::uint64_t k, std::uint64_t m, Policy policy) {
  const Choice c = choose(n, k, m, policy);
  const Device& device = current_device();
  char line[320], gain[64] = "no estimate for this GPU";
  if (c.gain != 0)
    std::snprintf(gain, sizeof gain, "%s %.2fx of cuBLAS",
                  auto_plan(device, {n, k, m}).measured ? "measured" : "expected",
                  static_cast<double>(c.gain));
  std::snprintf(line, sizeof line, "%llux%llu, m=%llu on %s: %s (%s policy; %s); kernel %s", ULL{n},
                ULL{k}, ULL{m}, device.num_sms == 0 ? "no GPU" : device.name,
                c.packed ? "packed" : "dense", policy == Policy::kSpeed ? "speed" : "memory", gain,
                kernel_name(c.plan.kernel));
  std::string text = line;
  if (c.plan.split_k > 1) text += ", split-K " + std::to_string(c.plan.split_k);
  if (c.plan.split_k == kStreamK) text += ", stream-K";
  if (c.plan.kernel == Kernel::kFewRows) text += ", " + std::to_string(c.plan.warps) + " warps";
  if (c.plan.kernel == Kernel::kBatch)
    text += ", tiles of " + std::to_string(16 * c.plan.strips) + " rows of W and " +
            std::to_string(c.plan.tile_m) + " of x";
  return text;
}

Result<Choice> tune(const Matrix& matrix, const LinearArgs& args, cuda::Target workspace,
                    Stream stream) noexcept {
  const Device& device = current_device();
  const Problem problem{matrix.n, matrix.k, args.m, matrix.kind};
  if (device.num_sms == 0) return Status{Code::kNoDevice, "no usable GPU"};
  if (args.m == 0) return usage("nothing to measure: m is 0");
  if (Status s = linear(matrix, args, workspace, {}, stream); !s.ok()) return s;
  Choice best;
  double best_us = 0;
  for (const Plan& plan : candidates(device, problem)) {
    const CompletePlan complete = complete_plan(device, problem, plan);
    if (plan_workspace_bytes(device, problem, complete) > workspace.num_bytes) continue;
    const auto us = time_plan(matrix, args, workspace, plan, stream);
    if (!us.ok()) return us.status();
    if (best_us == 0 || *us < best_us) best_us = *us, best.plan = plan;
  }
  if (best_us == 0) return usage("workspace too small for any plan", workspace.num_bytes);
  const auto dense_us = time_dense(matrix, args, workspace, stream);
  if (!dense_us.ok()) return dense_us.status();
  best.gain = static_cast<float>(*dense_us / best_us);
  TuningEntry entry{{}, matrix.n, matrix.k, m_bucket(args.m), best.plan, best.gain};
  std::memcpy(entry.device, device.name, sizeof entry.device);
  remember_tuning(entry);
  return best;
}

}  // namespace snug::gemm
