// gpu_gemm_bench [--json FILE] [--data DIR] [--weights gaussian|real] [--quick] [--grid]
// [--sweep] [--alone] [--tuning FILE] [--m LIST] [--shape NxK]...: linear layers on
// packed weights against the faster of cublasGemmEx and the best of 32 cuBLASLt
// heuristics, with weights that are not in the cache.
//
// Every time is the median of CUDA graph replays, divided by the calls in the
// graph; the calls rotate over copies of the weights that together are several
// times larger than the L2 cache. --grid takes the rows of gemm/grid.h, and without
// --shape its shapes, too; scripts/plot_results.py draws its JSON. --sweep times every
// plan and prints a tuning table; --alone leaves cuBLAS out; --m "" times nothing but
// packing and checksums.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "gemm/bench_matrices.cuh"
#include "gemm/cuda/linear_host.h"
#include "gemm/dense_peer.cuh"
#include "gemm/tuning.h"
#include "snug/gemm.h"

namespace snug::bench {
namespace {

using gemm::Kind;
using gemm::Plan;

// "warps" of the report: strips for the batch kernel, so that it stays comparable.
int width(const Plan& plan) { return plan.warps != 0 ? plan.warps : plan.strips; }

struct Packed {
  Buffer buffer;
  gemm::Matrix matrix;
};

Packed pack(const Buffer& w, Shape s, Kind kind, cudaStream_t stream) {
  Buffer workspace(gemm::pack_workspace_bytes(s.n, s.k)), result(sizeof(gemm::DeviceResult));
  Packed packed{Buffer(gemm::packed_bound(s.n, s.k, kind)), {}};
  check(gemm::pack(w.data(), s.k, s.n, s.k, kind, {packed.buffer.data(), packed.buffer.size()},
                   {workspace.data(), workspace.size()},
                   static_cast<gemm::DeviceResult*>(result.data()), stream));
  const auto opened = gemm::open(packed.buffer.data(), packed.buffer.size(), stream);
  check(opened.status());
  packed.matrix = *opened;
  return packed;
}

struct Row {
  std::string weights;
  Shape shape;
  int m;
  double us, twin_us, blas_us, bits, error, blas_error;
  Plan plan;
  bool same;
};

struct Options {
  bool quick = false, sweep = false, peers = true;
  std::string json, data, weights;  // weights: "gaussian", "real" or both
  std::vector<int> ms;
  std::vector<Shape> shapes;
};

std::vector<Row> run_shape(const Options& options, const Blas& blas, cudaStream_t stream, Shape s,
                           const std::string& kind, const Buffer& real, std::uint64_t real_rows,
                           std::uint64_t real_cols) {
  const std::size_t dense_bytes = s.n * s.k * 2;
  const int copies =
      static_cast<int>(std::clamp<std::size_t>((std::size_t{400} << 20) / dense_bytes + 1, 2, 12));
  std::vector<Buffer> dense;
  std::vector<Packed> packed, twin;
  for (int i = 0; i < copies; ++i) {
    dense.emplace_back(dense_bytes);
    if (kind == "gaussian")
      fill_gaussian<<<2048, 256, 0, stream>>>(dense[i].bf16(), s.n * s.k, 0.02f,
                                              i * (std::uint64_t{1} << 40));
    else
      fill_repeated<<<2048, 256, 0, stream>>>(dense[i].bf16(), s.n, s.k, real.bf16(), real_rows,
                                              real_cols, 977 * i);
    packed.push_back(pack(dense[i], s, Kind::kFixed, stream));
    twin.push_back(pack(dense[i], s, Kind::kRaw, stream));
  }
  const int max_m = *std::max_element(options.ms.begin(), options.ms.end());
  Buffer x(static_cast<std::size_t>(max_m) * s.k * 2), y(static_cast<std::size_t>(max_m) * s.n * 2);
  Buffer workspace(
      std::max<std::size_t>(gemm::linear_workspace_bytes(s.n, s.k, max_m), std::size_t{640} << 20));
  check(gemm::init_workspace({workspace.data(), workspace.size()}, stream));
  fill_gaussian<<<256, 256, 0, stream>>>(x.bf16(), max_m * s.k, 1.0f, 77);
  const auto& device = gemm::current_device();

  std::vector<Row> rows;
  for (const int m : options.ms) {
    const auto run = [&](const Packed& p, const Plan& plan) {
      return gemm::linear(p.matrix,
                          {x.data(), s.k, static_cast<std::uint64_t>(m), nullptr, y.data(), s.n},
                          {workspace.data(), workspace.size()}, plan, stream);
    };
    const auto time = [&](const std::vector<Packed>& list, const Plan& plan, int replays) {
      return graph_us(stream, copies, replays, [&](int i) { check(run(list[i % copies], plan)); });
    };
    const int replays = m >= 1024 ? 7 : 21;
    Row row{kind,
            s,
            m,
            0,
            0,
            0,
            8.0 * static_cast<double>(packed[0].matrix.num_bytes) / static_cast<double>(s.n * s.k),
            0,
            0,
            {},
            false};
    const gemm::Problem problem{s.n, s.k, static_cast<std::uint64_t>(m)};
    row.plan = gemm::complete_plan(device, problem, {}).plan;
    if (options.sweep) {
      double best = 0;
      for (const Plan& plan : gemm::candidates(device, problem)) {
        check(run(packed[0], plan));  // loads what the graph needs
        const double us = time(packed, plan, 5);
        std::printf("sweep %lux%lu m=%d %s splits=%d warps=%d columns=%d: %.2f us\n", s.n, s.k, m,
                    gemm::kernel_name(plan.kernel), plan.split_k, width(plan), plan.tile_m, us);
        if (best == 0 || us < best) best = us, row.plan = plan;
      }
    }
    // Equal to the twin, and close to the truth. The twin's tiles are larger: where
    // they leave too little room for the plan, both are compared with another one.
    const gemm::Problem raw_problem{s.n, s.k, problem.m, Kind::kRaw};
    Plan twin_plan = row.plan;
    if (twin_plan.kernel == gemm::Kernel::kFewRows &&
        gemm::fit_few_rows(device, raw_problem, twin_plan).split_k == 0)
      twin_plan =
          gemm::complete_plan(device, raw_problem, {.kernel = gemm::Kernel::kFewRows, .warps = 8})
              .plan;
    const auto result = [&](const Packed& p, const Plan& plan, int poison) {
      check(cudaMemsetAsync(y.data(), poison, y.size(), stream), "poison");
      check(run(p, plan));
      check(cudaStreamSynchronize(stream), "run");
      return fetch(y, m * s.n);
    };
    const auto ours = result(packed[0], row.plan, 0xA5);
    row.same = result(twin[0], twin_plan, 0x5A) == result(packed[0], twin_plan, 0xA5);
    const int checked = std::min(m, 64);
    const auto step = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, s.n / 512));
    const auto sampled = static_cast<std::uint32_t>((s.n + step - 1) / step);
    Buffer exact(sampled * checked * sizeof(double));
    reference<<<sampled, 32, 0, stream>>>(dense[0].bf16(), x.bf16(), s.k, checked, step,
                                          static_cast<double*>(exact.data()));
    std::vector<double> want(sampled * checked);
    check(cudaMemcpy(want.data(), exact.data(), exact.size(), cudaMemcpyDeviceToHost), "reference");
    row.error = relative_error(ours, want, s.n, checked, step);

    row.us = time(packed, row.plan, replays);
    row.twin_us = time(twin, twin_plan, replays);
    if (options.peers) {
      row.blas_us = time_dense(blas, stream, s, m, dense, x, y, replays).best();
      check(cudaStreamSynchronize(stream), "run");
      static const auto gemm_ex = Blas::call<GemmEx>(blas.blas, "cublasGemmEx");
      const float one = 1, zero = 0;
      check(
          gemm_ex(blas.handle, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(s.n), m,
                  static_cast<int>(s.k), &one, dense[0].data(), CUDA_R_16BF, static_cast<int>(s.k),
                  x.data(), CUDA_R_16BF, static_cast<int>(s.k), &zero, y.data(), CUDA_R_16BF,
                  static_cast<int>(s.n), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
          "cublasGemmEx");
      check(cudaStreamSynchronize(stream), "run");
      row.blas_error = relative_error(fetch(y, m * s.n), want, s.n, checked, step);
    }
    rows.push_back(row);
    if (options.sweep) {
      gemm::TuningEntry entry{};
      std::memcpy(entry.device, device.name, sizeof entry.device);
      entry.n = s.n;
      entry.k = s.k;
      entry.m = gemm::m_bucket(m);
      entry.plan = row.plan;
      entry.gain = static_cast<float>(row.blas_us / row.us);
      gemm::remember_tuning(entry);
    }
    const double packed_bytes = static_cast<double>(packed[0].matrix.num_bytes);
    std::printf(
        "| %s | %lux%lu | %d | %.2f | %.0f | %.2f | %.0f | %.2f | **%.2fx** | %.3f | %s %d/%d/%d | "
        "%.2e | %.2e |%s\n",
        kind.c_str(), s.n, s.k, m, row.us, packed_bytes / row.us / 1e3, row.blas_us,
        static_cast<double>(dense_bytes) / row.blas_us / 1e3, row.twin_us, row.blas_us / row.us,
        row.bits, gemm::kernel_name(row.plan.kernel), row.plan.split_k, width(row.plan),
        row.plan.tile_m, row.error, row.blas_error, row.same ? "" : " DIFFERS FROM TWIN");
    std::fflush(stdout);
  }
  return rows;
}

void time_packing(cudaStream_t stream, double copy) {
  const Shape s{28672, 8192};
  const double bytes = static_cast<double>(s.n * s.k * 2);
  Buffer w(s.n * s.k * 2), workspace(gemm::pack_workspace_bytes(s.n, s.k)),
      result(sizeof(gemm::DeviceResult));
  fill_gaussian<<<2048, 256, 0, stream>>>(w.bf16(), s.n * s.k, 0.02f, 1);
  const Packed packed = pack(w, s, Kind::kFixed, stream);
  Buffer back(s.n * s.k * 2);
  const double pack_us = graph_us(stream, 1, 11, [&](int) {
    check(gemm::pack(w.data(), s.k, s.n, s.k, Kind::kFixed,
                     {packed.buffer.data(), packed.buffer.size()},
                     {workspace.data(), workspace.size()},
                     static_cast<gemm::DeviceResult*>(result.data()), stream));
  });
  const double unpack_us = graph_us(
      stream, 1, 11, [&](int) { check(gemm::unpack(packed.matrix, back.data(), s.k, stream)); });
  const double roofline = bytes * (1 + 12.07 / 16) / copy * 1e6;
  std::printf(
      "\nPacking %lux%lu: %.0f us, %.0f GB/s of weights, %.0f %% of the roofline; unpacking: %.0f "
      "us, %.0f GB/s, %.0f "
      "%%\n\n",
      s.n, s.k, pack_us, bytes / pack_us / 1e3, 100 * roofline / pack_us, unpack_us,
      bytes / unpack_us / 1e3, 100 * roofline / unpack_us);
}

// Checksums of packed matrices that are not in the cache, made and compared.
void time_checksums(cudaStream_t stream) {
  std::printf(
      "| checksums of N x K | us | GB/s of packed bytes | verified us | GB/s |\n"
      "|---|---|---|---|---|\n");
  for (const Shape s : {Shape{4096, 4096}, {14336, 4096}, {4096, 14336}, {28672, 8192}}) {
    const int copies = static_cast<int>((std::size_t{600} << 20) / (s.n * s.k * 2) + 2);
    Buffer w(s.n * s.k * 2), sums(8 * gemm::num_strips(s.n)), result(sizeof(gemm::DeviceResult));
    fill_gaussian<<<2048, 256, 0, stream>>>(w.bf16(), s.n * s.k, 0.02f, 1);
    std::vector<Packed> packed;
    for (int i = 0; i < copies; ++i) packed.push_back(pack(w, s, Kind::kFixed, stream));
    auto* list = static_cast<std::uint64_t*>(sums.data());
    auto* verdict = static_cast<gemm::DeviceResult*>(result.data());
    const double us = graph_us(stream, copies, 21, [&](int i) {
      check(gemm::strip_sums(packed[i % copies].matrix, list, stream));
    });
    const double verify_us = graph_us(stream, copies, 21, [&](int i) {
      check(gemm::verify(packed[i % copies].matrix, list, verdict, stream));
    });
    gemm::DeviceResult found;
    check(cudaMemcpy(&found, verdict, sizeof found, cudaMemcpyDeviceToHost), "result");
    check(snug::cuda::to_status(found));
    const double bytes = static_cast<double>(packed[0].matrix.num_bytes);
    std::printf("| %lux%lu | %.1f | %.0f | %.1f | %.0f |\n", s.n, s.k, us, bytes / us / 1e3,
                verify_us, bytes / verify_us / 1e3);
  }
  std::printf("\n");
}

// Bytes read and written per second by a copy of 1 GiB. Not in a graph, where the
// copy would go through a slower engine.
double copy_rate(cudaStream_t stream) {
  constexpr int kRuns = 21;
  const std::size_t n = std::size_t{1} << 30;
  Buffer a(n), b(n);
  check(cudaMemset(a.data(), 0x5A, n), "fill");
  std::vector<cudaEvent_t> events(kRuns + 1);
  for (auto& e : events) check(cudaEventCreate(&e), "event");
  for (auto& e : events) {
    check(cudaMemcpyAsync(b.data(), a.data(), n, cudaMemcpyDeviceToDevice, stream), "copy");
    check(cudaEventRecord(e, stream), "record");
  }
  check(cudaStreamSynchronize(stream), "run");
  std::vector<float> ms(kRuns);
  for (int i = 0; i < kRuns; ++i)
    check(cudaEventElapsedTime(&ms[i], events[i], events[i + 1]), "elapsed");
  for (auto& e : events) cudaEventDestroy(e);
  std::sort(ms.begin(), ms.end());
  return 2.0 * static_cast<double>(n) / ms[kRuns / 2] * 1e3;
}

void summarise(const std::vector<Row>& rows, const std::vector<int>& ms) {
  std::printf(
      "\n| M | geometric mean | worst | worst shape | decoded over raw twin "
      "|\n|---|---|---|---|---|\n");
  for (const int m : ms) {
    double log_sum = 0, twin_sum = 0, worst = 1e9;
    int count = 0;
    Shape at{};
    for (const Row& r : rows) {
      if (r.m != m) continue;
      const double gain = r.blas_us / r.us;
      log_sum += std::log(gain);
      twin_sum += std::log(r.twin_us / r.us);
      ++count;
      if (gain < worst) worst = gain, at = r.shape;
    }
    std::printf("| %d | %.3fx | %.3fx | %lux%lu | %.3fx |\n", m, std::exp(log_sum / count), worst,
                at.n, at.k, std::exp(twin_sum / count));
  }
}

}  // namespace
}  // namespace snug::bench

int main(int argc, char** argv) {
  using namespace snug::bench;
  namespace gemm = snug::gemm;
  Options options;
  options.ms = {1, 4, 8, 16, 32, 64, 128, 2048};
  bool grid = false;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--json" && i + 1 < argc)
      options.json = argv[++i];
    else if (arg == "--data" && i + 1 < argc)
      options.data = argv[++i];
    else if (arg == "--weights" && i + 1 < argc)
      options.weights = argv[++i];
    else if (arg == "--quick")
      options.quick = true;
    else if (arg == "--grid")
      grid = true;
    else if (arg == "--alone")
      options.peers = false;
    else if (arg == "--tuning" && i + 1 < argc) {
      std::ifstream file(argv[++i]);
      check(gemm::load_tuning(std::string(std::istreambuf_iterator<char>(file), {})));
    } else if (arg == "--sweep")
      options.sweep = true;
    else if (arg == "--m" && i + 1 < argc) {
      options.ms.clear();
      for (const char* p = argv[++i]; *p != '\0'; p += *p == ',')
        options.ms.push_back(static_cast<int>(std::strtol(p, const_cast<char**>(&p), 10)));
    } else if (Shape s; arg == "--shape" && i + 1 < argc &&
                        std::sscanf(argv[i + 1], "%lux%lu", &s.n, &s.k) == 2) {
      options.shapes.push_back(s);
      ++i;
    } else {
      std::fprintf(stderr,
                   "usage: gpu_gemm_bench [--json FILE] [--data DIR] [--weights gaussian|real] "
                   "[--quick] [--grid] [--sweep] [--alone] [--tuning FILE] [--m 1,8,...] "
                   "[--shape NxK]...\n");
      return 2;
    }
  }
  if (grid) options.ms.assign(std::begin(kGridRows), std::end(kGridRows));
  if (grid && options.shapes.empty())
    options.shapes.assign(std::begin(kGridShapes), std::end(kGridShapes));
  if (options.shapes.empty() && options.quick)
    options.shapes = {{4096, 4096}, {14336, 4096}, {4096, 14336}, {28672, 8192}};
  if (options.shapes.empty())
    options.shapes = {{4096, 4096},  {6144, 4096},  {14336, 4096}, {28672, 4096},
                      {4096, 14336}, {8192, 8192},  {10240, 8192}, {28672, 8192},
                      {57344, 8192}, {8192, 28672}, {128256, 4096}};
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0), "no device");
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  const Blas blas;
  const double copy = copy_rate(stream);
  std::printf("%s, %d SMs; copy of 1 GiB: %.0f GB/s read and written\n", device.name,
              device.multiProcessorCount, copy / 1e9);
  time_packing(stream, copy);
  time_checksums(stream);
  if (options.ms.empty()) return 0;
  RealRows real;
  if (!options.data.empty()) real = file_data(options.data + "/model-00001-of-00002.safetensors");
  Buffer real_device(real.values.size() * 2);
  if (!real.values.empty())
    check(cudaMemcpy(real_device.data(), real.values.data(), real.values.size() * 2,
                     cudaMemcpyHostToDevice),
          "upload");

  const bool swept = options.sweep;
  for (const std::string kind : {"gaussian", "real"}) {
    if ((kind == "real" && real.values.empty()) ||
        (!options.weights.empty() && options.weights != kind))
      continue;
    options.sweep &= kind == "gaussian";  // the second run uses what the first one found
    std::printf(
        "| weights | N x K | M | us | GB/s | cuBLAS us | GB/s | twin us | speed-up | bits | plan | "
        "error | cuBLAS "
        "error |\n");
    std::printf("|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    std::vector<Row> rows;
    for (const Shape s : options.shapes)
      for (const Row& r : run_shape(options, blas, stream, s, kind, real_device,
                                    real.cols == 0 ? 0 : real.values.size() / real.cols, real.cols))
        rows.push_back(r);
    summarise(rows, options.ms);
    if (options.json.empty()) continue;
    std::FILE* json = std::fopen(options.json.c_str(), kind == "gaussian" ? "w" : "a");
    if (json == nullptr) return std::perror(options.json.c_str()), 1;
    for (const Row& r : rows)
      std::fprintf(
          json,
          "{\"device\": \"%s\", \"weights\": \"%s\", \"n\": %lu, \"k\": %lu, \"m\": %d, "
          "\"us\": %.3f, \"twin_us\": "
          "%.3f, "
          "\"cublas_us\": %.3f, \"bits\": %.4f, \"error\": %.4e, \"cublas_error\": %.4e, "
          "\"same_as_twin\": %s, \"faster_packed\": %s, "
          "\"kernel\": \"%s\", \"splits\": %d, \"warps\": %d, \"columns\": %d}\n",
          device.name, r.weights.c_str(), r.shape.n, r.shape.k, r.m, r.us, r.twin_us, r.blas_us,
          r.bits, r.error, r.blas_error, r.same ? "true" : "false",
          gemm::choose(r.shape.n, r.shape.k, static_cast<std::uint64_t>(r.m), gemm::Policy::kSpeed)
                  .packed
              ? "true"
              : "false",
          gemm::kernel_name(r.plan.kernel), r.plan.split_k, width(r.plan), r.plan.tile_m);
    std::fclose(json);
  }
  if (swept) std::printf("\nTuning table:\n%s", gemm::tuning_text().c_str());
  return 0;
}
