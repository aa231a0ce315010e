// capi/gemm_capi.h - conversions between snug/gemm.h and its C ABI.
#pragma once
#include "capi/convert.h"
#include "snug/gemm.h"
#include "snug/snug_gpu.h"

namespace snug::gemm {

inline snug_gemm_matrix capi_matrix(const Matrix& m) {
  return {m.data, m.num_bytes, m.n, m.k, m.num_escaped, static_cast<std::int32_t>(m.kind), 0};
}

inline Matrix cpp_matrix(const snug_gemm_matrix& m) {
  return {m.data, m.num_bytes, m.n, m.k, static_cast<Kind>(m.kind), m.num_escaped};
}

}  // namespace snug::gemm
