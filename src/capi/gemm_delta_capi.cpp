// The C ABI of deltas of packed matrices: nothing but conversions.
#include "capi/gemm_capi.h"
#include "capi/gpu_delta_capi.h"
#include "snug/gemm.h"
#include "snug/snug_gpu.h"

namespace gemm = snug::gemm;
using snug::cuda::deltas::cpp;

extern "C" {

size_t snug_gemm_delta_workspace(uint64_t n, uint64_t k) {
  return gemm::apply_delta_workspace_bytes(n, k);
}

int snug_gemm_apply_delta(const snug_gemm_matrix* matrix, const void* delta, size_t delta_bytes,
                          int kind, void* new_packed, size_t new_packed_bytes, void* workspace,
                          size_t workspace_bytes, snug_cuda_result* result,
                          const snug_cuda_delta_options* options, void* stream,
                          snug_status* status) {
  if (matrix == nullptr) return snug::capi::report(snug::capi::kNull, status);
  return snug::capi::report(
      gemm::apply_delta(gemm::cpp_matrix(*matrix), {delta, delta_bytes},
                        static_cast<gemm::Kind>(kind), {new_packed, new_packed_bytes},
                        {workspace, workspace_bytes}, cpp(result), cpp(options), cpp(stream)),
      status);
}

}  // extern "C"
