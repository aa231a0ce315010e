// gemm/dense_peer.cuh - what packed weights are measured against: cuBLAS on the dense ones,
// timed in the same way.
#pragma once
#include <cublasLt.h>
#include <cublas_v2.h>
#include <dlfcn.h>

#include <algorithm>
#include <functional>

#include "gemm/bench_matrices.cuh"
#include "gemm/grid.h"

namespace snug::bench {

inline void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::fprintf(stderr, "gpu_gemm_bench: %s: cuBLAS status %d\n", what, static_cast<int>(status));
  std::exit(1);
}

// Median microseconds of one of `calls` calls in a replayed graph.
inline double graph_us(cudaStream_t stream, int calls, int replays,
                       const std::function<void(int)>& call) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < calls; ++i) call(i);
  check(cudaStreamEndCapture(stream, &graph), "end of capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  check(cudaGraphDestroy(graph), "destroy");
  std::vector<cudaEvent_t> events(replays + 1);
  for (auto& e : events) check(cudaEventCreate(&e), "event");
  check(cudaGraphLaunch(exec, stream), "replay");
  check(cudaEventRecord(events[0], stream), "record");
  for (int i = 0; i < replays; ++i) {
    check(cudaGraphLaunch(exec, stream), "replay");
    check(cudaEventRecord(events[i + 1], stream), "record");
  }
  check(cudaStreamSynchronize(stream), "run");
  std::vector<float> ms(replays);
  for (int i = 0; i < replays; ++i)
    check(cudaEventElapsedTime(&ms[i], events[i], events[i + 1]), "elapsed");
  for (auto& e : events) cudaEventDestroy(e);
  cudaGraphExecDestroy(exec);
  std::sort(ms.begin(), ms.end());
  return 1e3 * ms[replays / 2] / calls;
}

struct Blas {
  void *blas, *lt;
  cublasHandle_t handle;
  cublasLtHandle_t lt_handle;
  Buffer workspace{64 << 20};

  Blas() {
    blas = open({"libcublas.so.13", "libcublas.so.12", "libcublas.so"});
    lt = open({"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"});
    check(call<decltype(&cublasCreate_v2)>(blas, "cublasCreate_v2")(&handle), "create");
    check(call<decltype(&cublasLtCreate)>(lt, "cublasLtCreate")(&lt_handle), "create");
  }
  static void* open(std::initializer_list<const char*> names) {
    for (const char* name : names)
      if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
    std::fprintf(stderr, "gpu_gemm_bench: %s not found: there is nothing to compare with\n",
                 *names.begin());
    std::exit(1);
  }
  template <class F>
  static F call(void* library, const char* name) {
    const auto f = reinterpret_cast<F>(dlsym(library, name));
    if (f == nullptr) std::fprintf(stderr, "gpu_gemm_bench: no %s\n", name), std::exit(1);
    return f;
  }
};

// The header overloads this one, so its type needs a name.
using GemmEx = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int,
                                  int, const void*, const void*, cudaDataType, int, const void*,
                                  cudaDataType, int, const void*, void*, cudaDataType, int,
                                  cublasComputeType_t, cublasGemmAlgo_t);

struct DenseTimes {
  double gemm_ex = 0, lt = 0;
  double best() const { return std::min(gemm_ex, lt); }
};

inline DenseTimes time_dense(const Blas& blas, cudaStream_t stream, Shape s, int m,
                             const std::vector<Buffer>& w, const Buffer& x, const Buffer& y,
                             int replays) {
  DenseTimes times;
  const float one = 1, zero = 0;
  const int n = static_cast<int>(s.n), k = static_cast<int>(s.k),
            copies = static_cast<int>(w.size());
  static const auto set_stream =
      Blas::call<decltype(&cublasSetStream_v2)>(blas.blas, "cublasSetStream_v2");
  static const auto set_workspace =
      Blas::call<decltype(&cublasSetWorkspace_v2)>(blas.blas, "cublasSetWorkspace_v2");
  static const auto gemm_ex = Blas::call<GemmEx>(blas.blas, "cublasGemmEx");
  check(set_stream(blas.handle, stream), "stream");
  check(set_workspace(blas.handle, blas.workspace.data(), blas.workspace.size()), "workspace");
  const auto run_ex = [&](int i) {
    check(gemm_ex(blas.handle, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &one, w[i % copies].data(),
                  CUDA_R_16BF, k, x.data(), CUDA_R_16BF, k, &zero, y.data(), CUDA_R_16BF, n,
                  CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
          "cublasGemmEx");
  };
  run_ex(0);
  times.gemm_ex = graph_us(stream, copies, replays, run_ex);

#define LT(name) Blas::call<decltype(&name)>(blas.lt, #name)
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t lw, lx, ly;
  cublasLtMatmulPreference_t preference;
  const cublasOperation_t transposed = CUBLAS_OP_T;
  const std::size_t workspace_bytes = blas.workspace.size();
  check(LT(cublasLtMatmulDescCreate)(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "desc");
  check(LT(cublasLtMatmulDescSetAttribute)(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                           sizeof transposed),
        "desc");
  check(LT(cublasLtMatrixLayoutCreate)(&lw, CUDA_R_16BF, k, n, k), "layout");
  check(LT(cublasLtMatrixLayoutCreate)(&lx, CUDA_R_16BF, k, m, k), "layout");
  check(LT(cublasLtMatrixLayoutCreate)(&ly, CUDA_R_16BF, n, m, n), "layout");
  check(LT(cublasLtMatmulPreferenceCreate)(&preference), "preference");
  check(
      LT(cublasLtMatmulPreferenceSetAttribute)(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &workspace_bytes, sizeof workspace_bytes),
      "preference");
  cublasLtMatmulHeuristicResult_t found[32];
  int count = 0;
  check(LT(cublasLtMatmulAlgoGetHeuristic)(blas.lt_handle, desc, lw, lx, ly, ly, preference, 32,
                                           found, &count),
        "heuristic");
  static const auto matmul = LT(cublasLtMatmul);
  const auto run_lt = [&](int algo, int i) {
    return matmul(blas.lt_handle, desc, &one, w[i % copies].data(), lw, x.data(), lx, &zero,
                  y.data(), ly, y.data(), ly, &found[algo].algo, blas.workspace.data(),
                  workspace_bytes, stream);
  };
  int best = -1;
  double best_us = 0;
  for (int algo = 0; algo < count; ++algo) {
    if (run_lt(algo, 0) != CUBLAS_STATUS_SUCCESS) continue;
    const double us =
        graph_us(stream, copies, 3, [&](int i) { check(run_lt(algo, i), "cublasLtMatmul"); });
    if (best < 0 || us < best_us) best = algo, best_us = us;
  }
  times.lt = best < 0 ? times.gemm_ex : graph_us(stream, copies, replays, [&](int i) {
    check(run_lt(best, i), "cublasLtMatmul");
  });
  LT(cublasLtMatmulPreferenceDestroy)(preference);
  for (const auto layout : {lw, lx, ly}) LT(cublasLtMatrixLayoutDestroy)(layout);
  LT(cublasLtMatmulDescDestroy)(desc);
#undef LT
  return times;
}

}  // namespace snug::bench
