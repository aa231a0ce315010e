// cuBLASLt for many rows of x, loaded at run time: Snug neither links nor needs it.
#include "gemm/cuda/linear_host.h"
#include "gpu/relaxed_capture.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <dlfcn.h>

#include <mutex>

namespace snug::gemm {
namespace {

struct BlasLt {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  bool ok = false;

  BlasLt() {
    void* library = nullptr;
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"})
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    ok = true;
    load(library, "cublasLtCreate", create);
    load(library, "cublasLtMatmul", matmul);
    load(library, "cublasLtMatmulDescCreate", desc_create);
    load(library, "cublasLtMatmulDescDestroy", desc_destroy);
    load(library, "cublasLtMatmulDescSetAttribute", desc_set);
    load(library, "cublasLtMatrixLayoutCreate", layout_create);
    load(library, "cublasLtMatrixLayoutDestroy", layout_destroy);
    load(library, "cublasLtMatmulPreferenceCreate", preference_create);
    load(library, "cublasLtMatmulPreferenceDestroy", preference_destroy);
    load(library, "cublasLtMatmulPreferenceSetAttribute", preference_set);
    load(library, "cublasLtMatmulAlgoGetHeuristic", heuristic);
  }
  template <class F>
  void load(void* library, const char* name, F& function) {
    function = reinterpret_cast<F>(dlsym(library, name));
    ok &= function != nullptr;
  }
};

const BlasLt& blas() {
  static const BlasLt library;
  return library;
}

// One handle per device, made on first use and kept.
cublasLtHandle_t handle() {
  static std::mutex mutex;
  static cublasLtHandle_t handles[64] = {};
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device < 0 || device >= 64) return nullptr;
  const std::lock_guard lock(mutex);
  if (handles[device] == nullptr) {
    const cuda::RelaxedCapture relaxed;  // the first product may be one of a graph
    if (blas().create(&handles[device]) != CUBLAS_STATUS_SUCCESS) handles[device] = nullptr;
  }
  return handles[device];
}

// The descriptors of one multiplication.
struct Matmul {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

  Matmul(const LinearParams& p, std::uint64_t ldw, std::uint32_t n) {
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(blas().desc_create(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    check(blas().desc_set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    if (p.bias != nullptr) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      const void* bias = p.bias;
      check(blas().desc_set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
      check(blas().desc_set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    }
    // Column-major for cuBLAS: y^T = W x^T.
    check(blas().layout_create(&w, CUDA_R_16BF, p.k, n, static_cast<std::int64_t>(ldw)));
    check(blas().layout_create(&x, CUDA_R_16BF, p.k, p.m, static_cast<std::int64_t>(p.ldx)));
    check(blas().layout_create(&y, CUDA_R_16BF, n, p.m, static_cast<std::int64_t>(p.ldy)));
    const std::size_t workspace = kBlasWorkspaceBytes;
    check(blas().preference_create(&preference));
    check(blas().preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                sizeof workspace));
    // Unless told otherwise, cuBLASLt takes addresses for multiples of 256. That of w is one.
    allow(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.x);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      allow(attribute, p.y);
  }
  ~Matmul() {
    if (preference != nullptr) blas().preference_destroy(preference);
    for (const auto layout : {w, x, y})
      if (layout != nullptr) blas().layout_destroy(layout);
    if (desc != nullptr) blas().desc_destroy(desc);
  }
  void check(cublasStatus_t s) {
    if (status == CUBLAS_STATUS_SUCCESS) status = s;
  }
  void allow(cublasLtMatmulPreferenceAttributes_t attribute, const void* address) {
    std::uint32_t alignment = 256;
    while (!is_aligned(address, alignment)) alignment /= 2;
    check(blas().preference_set(preference, attribute, &alignment, sizeof alignment));
  }
};

}  // namespace

bool have_blas() noexcept { return blas().ok; }

Status blas_linear(const LinearParams& params, const void* w, std::uint64_t ldw, std::uint32_t n,
                   void* workspace, cudaStream_t stream) noexcept {
  const cublasLtHandle_t lt = have_blas() ? handle() : nullptr;
  if (lt == nullptr) return {Code::kNoDevice, "cuBLASLt could not be loaded"};
  Matmul matmul(params, ldw, n);
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  if (matmul.status == CUBLAS_STATUS_SUCCESS)
    matmul.check(blas().heuristic(lt, matmul.desc, matmul.w, matmul.x, matmul.y, matmul.y,
                                  matmul.preference, 1, &best, &found));
  if (matmul.status == CUBLAS_STATUS_SUCCESS && found == 0)
    matmul.status = CUBLAS_STATUS_NOT_SUPPORTED;
  const float one = 1.0f, zero = 0.0f;
  if (matmul.status == CUBLAS_STATUS_SUCCESS)
    matmul.check(blas().matmul(lt, matmul.desc, &one, w, matmul.w, params.x, matmul.x, &zero,
                               params.y, matmul.y, params.y, matmul.y, &best.algo, workspace,
                               kBlasWorkspaceBytes, stream));
  if (matmul.status == CUBLAS_STATUS_SUCCESS) return {};
  return {Code::kNoDevice, "cuBLASLt refused the multiplication", kNowhere, kNowhere,
          static_cast<std::uint64_t>(matmul.status)};
}

}  // namespace snug::gemm

#else  // no cuBLASLt headers where this was built

namespace snug::gemm {

bool have_blas() noexcept { return false; }

Status blas_linear(const LinearParams&, const void*, std::uint64_t, std::uint32_t, void*,
                   cudaStream_t) noexcept {
  return {Code::kNoDevice, "built without cuBLASLt"};
}

}  // namespace snug::gemm

#endif
