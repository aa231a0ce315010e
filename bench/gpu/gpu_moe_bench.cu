// gpu_moe_bench [SHAPE or ""] [M,M,...] [SPLIT] [KERNEL] [ROWS]: a whole layer of a mixture of
// experts from packed banks and from their raw twins: microseconds, bytes of weights a second,
// equal bits, and the error against FP64 for few rows. Weights are read from memory: calls with
// different routings follow each other in one CUDA graph. bench/gemm/moe_peers.py has vLLM's kernel
// beside it.
#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>

#include "gemm/bench_matrices.cuh"
#include "snug/experts.h"

namespace snug::bench {
namespace {

struct LayerShape {
  const char* name;
  std::uint64_t experts, n, k;
  std::uint32_t top_k;
};
constexpr LayerShape kShapes[] = {
    {"Qwen3-30B-A3B", 128, 768, 2048, 8},
    {"Qwen3-30B-A3B/2", 128, 384, 2048, 8},
    {"Qwen3.5-35B-A3B", 256, 512, 2048, 8},
    {"Qwen3.5-35B-A3B/2", 256, 256, 2048, 8},
    {"GLM-4.5-Air", 128, 1408, 4096, 8},
    {"GLM-4.5-Air/2", 128, 704, 4096, 8},
    {"Mixtral", 8, 14336, 4096, 2},
    {"Mixtral/2", 8, 7168, 4096, 2},
    {"tiny", 12, 72, 200, 3},  // for the memory checker; only by its name
};
constexpr int kCalls = 12;  // of one graph, each with a routing of its own

// Distinct experts for every row; Zipf: expert i has the weight 1 / (i + 1).
std::vector<std::int32_t> make_ids(const LayerShape& s, std::uint64_t m, bool zipf,
                                   std::mt19937& random) {
  std::vector<double> weights(s.experts, 1.0);
  if (zipf)
    for (std::uint64_t i = 0; i < s.experts; ++i) weights[i] = 1.0 / static_cast<double>(i + 1);
  std::shuffle(weights.begin(), weights.end(), random);
  std::vector<std::int32_t> ids;
  std::uniform_real_distribution<double> uniform(1e-12, 1.0);
  std::vector<std::pair<double, std::int32_t>> keys(s.experts);
  for (std::uint64_t row = 0; row < m; ++row) {
    for (std::uint64_t e = 0; e < s.experts; ++e)
      keys[e] = {-std::log(uniform(random)) / weights[e], static_cast<std::int32_t>(e)};
    std::partial_sort(keys.begin(), keys.begin() + s.top_k, keys.end());
    for (std::uint32_t j = 0; j < s.top_k; ++j) ids.push_back(keys[j].second);
  }
  return ids;
}

// FP64 throughout: one warp for an element of h, or of y.
__global__ void reference_h(const std::uint16_t* w13, const std::uint16_t* x,
                            const std::int32_t* ids, std::uint32_t n, std::uint32_t k,
                            std::uint32_t top_k, double* h) {
  const std::uint64_t pair = blockIdx.y, i = blockIdx.x;
  const std::uint16_t* gate = w13 + (std::uint64_t(ids[pair]) * 2 * n + i) * k;
  double sums[2] = {};
  for (std::uint32_t c = threadIdx.x; c < k; c += 32)
    for (int part = 0; part < 2; ++part)
      sums[part] += double(__uint_as_float(gate[std::uint64_t(part) * n * k + c] << 16)) *
                    __uint_as_float(x[pair / top_k * k + c] << 16);
  for (int d = 16; d != 0; d /= 2)
    for (double& sum : sums) sum += __shfl_xor_sync(~0u, sum, d);
  if (threadIdx.x == 0) h[pair * n + i] = sums[0] / (1 + exp(-sums[0])) * sums[1];
}
__global__ void reference_y(const std::uint16_t* w2, const double* h, const std::int32_t* ids,
                            const float* weights, std::uint32_t n, std::uint32_t k,
                            std::uint32_t top_k, double* y) {
  const std::uint64_t row = blockIdx.y, i = blockIdx.x;
  double sum = 0;
  for (std::uint32_t j = 0; j < top_k; ++j)
    for (std::uint32_t c = threadIdx.x; c < n; c += 32)
      sum += weights[row * top_k + j] * h[(row * top_k + j) * n + c] *
             __uint_as_float(w2[(std::uint64_t(ids[row * top_k + j]) * k + i) * n + c] << 16);
  for (int d = 16; d != 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (threadIdx.x == 0) y[row * k + i] = sum;
}

struct Layer {
  LayerShape shape;
  Buffer w13, w2;
  gemm::Bank banks[2][2];  // [kind][gate_up, down]
  std::vector<Buffer> memory;
  double pack_gb_s = 0;

  explicit Layer(const LayerShape& s)
      : shape(s), w13(s.experts * 2 * s.n * s.k * 2), w2(s.experts * s.n * s.k * 2) {
    fill_gaussian<<<1024, 256>>>(w13.bf16(), w13.size() / 2, 0.02f, 1);
    fill_gaussian<<<1024, 256>>>(w2.bf16(), w2.size() / 2, 0.02f, 2);
    for (const gemm::Kind kind : {gemm::Kind::kRaw, gemm::Kind::kFixed}) {
      pack(w13, {s.experts, 2 * s.n, s.k, 2, kind}, 0);
      pack(w2, {s.experts, s.k, s.n, 1, kind}, 1);
    }
  }

  void pack(const Buffer& w, const gemm::BankShape& bank, int which) {
    memory.emplace_back(gemm::bank_bytes(bank));
    void* const data = memory.back().data();
    const Buffer workspace(gemm::pack_bank_workspace_bytes(bank, bank.experts));
    const Buffer results(bank.experts * sizeof(gemm::DeviceResult));
    cudaEvent_t begin, end;
    cudaEventCreate(&begin), cudaEventCreate(&end);
    float ms = 0;
    for (int i = 0; i < 2; ++i) {
      cudaEventRecord(begin);
      check(gemm::pack_bank(w.data(), bank, 0, bank.experts, {data, memory.back().size()},
                            {workspace.data(), workspace.size()},
                            static_cast<gemm::DeviceResult*>(results.data()), nullptr));
      cudaEventRecord(end);
      check(cudaEventSynchronize(end), "pack");
      cudaEventElapsedTime(&ms, begin, end);
    }
    if (bank.kind == gemm::Kind::kFixed && which == 0)
      pack_gb_s = static_cast<double>(w.size()) / ms * 1e-6;
    std::vector<gemm::DeviceResult> host(bank.experts);
    check(cudaMemcpy(host.data(), results.data(), results.size(), cudaMemcpyDefault), "results");
    for (const auto& r : host) check(cuda::to_status(r));
    banks[static_cast<int>(bank.kind)][which] = {data, bank};
  }
};

struct Cell {
  const Layer& layer;
  std::uint64_t m;
  Buffer x, y, ids, weights, workspace, result;
  std::vector<std::int32_t> host_ids;
  double experts = 0;  // with rows, on average
  gemm::ExpertsPlan plan;

  Cell(const Layer& l, std::uint64_t rows, bool zipf, const gemm::ExpertsPlan& wish)
      : layer(l),
        m(rows),
        x(m * l.shape.k * 2),
        y(m * l.shape.k * 2),
        ids(kCalls * m * l.shape.top_k * 4),
        weights(m * l.shape.top_k * 4),
        workspace(gemm::experts_workspace_bytes(l.banks[1][0].shape, l.banks[1][1].shape,
                                                l.shape.top_k, m)),
        result(sizeof(gemm::DeviceResult)) {
    plan = wish;
    std::mt19937 random(static_cast<unsigned>(m) * 2 + zipf);
    for (int call = 0; call < kCalls; ++call) {
      const auto some = make_ids(l.shape, m, zipf, random);
      std::vector<std::int32_t> sorted = some;
      std::sort(sorted.begin(), sorted.end());
      experts += static_cast<double>(std::unique(sorted.begin(), sorted.end()) - sorted.begin());
      host_ids.insert(host_ids.end(), some.begin(), some.end());
    }
    experts /= kCalls;
    std::vector<float> w(m * l.shape.top_k);
    for (float& v : w) v = std::uniform_real_distribution<float>(0.05f, 0.3f)(random);
    check(cudaMemcpy(ids.data(), host_ids.data(), ids.size(), cudaMemcpyDefault), "ids");
    check(cudaMemcpy(weights.data(), w.data(), weights.size(), cudaMemcpyDefault), "weights");
    fill_gaussian<<<256, 256>>>(x.bf16(), x.size() / 2, 1.0f, 7);
    check(cudaDeviceSynchronize(), "fill");
  }
  void run(int kind, int call, cudaStream_t stream) const {
    gemm::ExpertsArgs args;
    args.x = x.data();
    args.ldx = args.ldy = layer.shape.k;
    args.m = m;
    args.ids = static_cast<const std::int32_t*>(ids.data()) +
               static_cast<std::uint64_t>(call) * m * layer.shape.top_k;
    args.weights = static_cast<const float*>(weights.data());
    args.top_k = layer.shape.top_k;
    args.y = y.data();
    args.result = static_cast<gemm::DeviceResult*>(result.data());
    check(gemm::experts(layer.banks[kind][0], layer.banks[kind][1], args,
                        {workspace.data(), workspace.size()}, plan, stream));
  }
  std::vector<std::uint16_t> output(int kind) const {
    check(cudaMemset(y.data(), 0xA5, y.size()), "poison");
    run(kind, 0, nullptr);
    check(cudaDeviceSynchronize(), "run");
    std::vector<std::uint16_t> host(m * layer.shape.k);
    check(cudaMemcpy(host.data(), y.data(), y.size(), cudaMemcpyDefault), "y");
    return host;
  }
  double microseconds(int kind) const {
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int call = 0; call < kCalls; ++call) run(kind, call, stream);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check(cudaStreamEndCapture(stream, &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    cudaEvent_t begin, end;
    cudaEventCreate(&begin), cudaEventCreate(&end);
    std::vector<float> times;
    for (int i = 0; i < 7; ++i) {
      cudaEventRecord(begin, stream);
      cudaGraphLaunch(exec, stream);
      cudaEventRecord(end, stream);
      check(cudaEventSynchronize(end), "time");
      float ms;
      cudaEventElapsedTime(&ms, begin, end);
      if (i >= 2) times.push_back(ms);
    }
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph), cudaStreamDestroy(stream);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2] * 1000.0 / kCalls;
  }
  double relative_error(const std::vector<std::uint16_t>& got) const {
    const auto n = static_cast<std::uint32_t>(layer.shape.n),
               k = static_cast<std::uint32_t>(layer.shape.k);
    const std::uint32_t top_k = layer.shape.top_k;
    const Buffer h(m * top_k * n * 8), truth(m * k * 8);
    const auto* id = static_cast<const std::int32_t*>(ids.data());
    reference_h<<<dim3(n, static_cast<unsigned>(m * top_k)), 32>>>(
        layer.w13.bf16(), x.bf16(), id, n, k, top_k, static_cast<double*>(h.data()));
    reference_y<<<dim3(k, static_cast<unsigned>(m)), 32>>>(
        layer.w2.bf16(), static_cast<double*>(h.data()), id,
        static_cast<const float*>(weights.data()), n, k, top_k, static_cast<double*>(truth.data()));
    std::vector<double> want(m * k);
    check(cudaMemcpy(want.data(), truth.data(), truth.size(), cudaMemcpyDefault), "reference");
    double off = 0, norm = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      const std::uint32_t bits = static_cast<std::uint32_t>(got[i]) << 16;
      float v;
      std::memcpy(&v, &bits, 4);
      off += (v - want[i]) * (v - want[i]);
      norm += want[i] * want[i];
    }
    return std::sqrt(off / norm);
  }
};

}  // namespace
}  // namespace snug::bench

int main(int argc, char** argv) {
  using namespace snug::bench;
  const std::string wanted = argc > 1 ? argv[1] : "";
  std::vector<std::uint64_t> ms;
  if (argc > 2)
    for (char* at = argv[2]; *at != 0; at += *at == ',') ms.push_back(std::strtoull(at, &at, 10));
  else
    ms = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096};
  snug::gemm::ExpertsPlan plan;
  if (argc > 3) plan.split = std::atoi(argv[3]);
  if (argc > 4) plan.kernel = std::atoi(argv[4]);
  if (argc > 5) plan.rows = std::atoi(argv[5]);
  bool all_equal = true;
  for (const LayerShape& shape : kShapes) {
    if (wanted.empty() ? shape.k < 1024 : wanted != shape.name) continue;
    const Layer layer(shape);
    const double expert_bytes =
        static_cast<double>(snug::gemm::slot_bytes(layer.banks[1][0].shape) +
                            snug::gemm::slot_bytes(layer.banks[1][1].shape));
    std::printf("%s: packed at %.0f GB/s\n", shape.name, layer.pack_gb_s);
    for (const bool zipf : {false, true})
      for (const std::uint64_t m : ms) {
        const Cell cell(layer, m, zipf, plan);
        const auto raw = cell.output(0), packed = cell.output(1);
        const bool equal = raw == packed;
        all_equal &= equal;
        const double us = cell.microseconds(1), raw_us = cell.microseconds(0);
        std::printf("%-18s %s M %5llu: %8.1f us, raw twin %8.1f us, %5.1f experts, %5.0f GB/s%s",
                    shape.name, zipf ? "zipf   " : "uniform", static_cast<unsigned long long>(m),
                    us, raw_us, cell.experts, cell.experts * expert_bytes / us * 1e-3,
                    equal ? "" : ", NOT EQUAL");
        if (m <= 8) std::printf(", error %.2e", cell.relative_error(packed));
        std::printf("\n");
        std::fflush(stdout);
      }
  }
  return all_equal ? 0 : 1;
}
