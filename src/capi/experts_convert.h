// capi/experts_convert.h - conversions between snug/snug_experts.h and snug/experts.h.
#pragma once
#include "capi/gpu_convert.h"
#include "snug/experts.h"
#include "snug/snug_experts.h"

namespace snug::capi {

inline gemm::BankShape cpp(const snug_experts_shape* shape) {
  const snug_experts_shape& s = deref(shape);
  return {s.experts, s.n, s.k, s.parts, static_cast<gemm::Kind>(s.kind)};
}

// 0 for a shape that is missing, as for one that is out of range.
inline gemm::BankShape shape_or_none(const snug_experts_shape* shape) {
  return shape == nullptr ? gemm::BankShape{} : cpp(shape);
}

}  // namespace snug::capi
