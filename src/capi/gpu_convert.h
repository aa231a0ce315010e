// capi/gpu_convert.h - conversions between snug/snug_gpu.h and the C++ headers behind it.
#pragma once
#include "capi/convert.h"
#include "snug/cuda.h"
#include "snug/gemm.h"
#include "snug/snug_gpu.h"

namespace snug::capi {

static_assert(sizeof(snug_cuda_result) == sizeof(cuda::DeviceResult));
static_assert(sizeof(snug_segment) == sizeof(cuda::Segment));
static_assert(sizeof(snug_cuda_item) == sizeof(cuda::BatchItem));
static_assert(SNUG_GEMM_HEADER_BYTES == gemm::kHeaderBytes && SNUG_GEMM_ALIGN == gemm::kAlign);

inline cuda::Stream cpp(void* stream) { return static_cast<cuda::Stream>(stream); }
inline cuda::DeviceResult* cpp(snug_cuda_result* result) {
  return reinterpret_cast<cuda::DeviceResult*>(result);
}
inline const cuda::Segment* cpp(const snug_segment* segments) {
  return reinterpret_cast<const cuda::Segment*>(segments);
}
inline const cuda::BatchItem* cpp(const snug_cuda_item* items) {
  return reinterpret_cast<const cuda::BatchItem*>(items);
}

template <class Options>
Options cpp_options(const snug_cuda_options* given) {
  if (given == nullptr) return {};
  return {to_enum<DType>(given->dtype), to_enum<Codec>(given->codec), given->log2_block,
          given->max_sms, cpp(given->host_result)};
}
inline cuda::DeltaOptions cpp(const snug_cuda_delta_options* given) {
  if (given == nullptr) return {};
  return {to_enum<DType>(given->dtype), given->log2_block, cpp(given->host_result)};
}

inline gemm::Matrix cpp(const snug_gemm_matrix* matrix) {
  const snug_gemm_matrix& m = deref(matrix);
  return {m.data, m.num_bytes, m.n, m.k, static_cast<gemm::Kind>(m.kind), m.num_escaped};
}
inline Status to_c(const Result<gemm::Matrix>& opened, snug_gemm_matrix& to) {
  const gemm::Matrix& m = *opened;
  if (opened)
    to = {m.data, m.num_bytes, m.n, m.k, m.num_escaped, static_cast<std::int32_t>(m.kind), 0};
  return opened.status();
}

}  // namespace snug::capi
