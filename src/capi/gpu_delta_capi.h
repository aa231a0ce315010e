// capi/gpu_delta_capi.h - conversions between snug/cuda.h and its C ABI.
#pragma once
#include "snug/cuda.h"
#include "snug/snug_gpu.h"

namespace snug::cuda::deltas {

static_assert(sizeof(snug_cuda_result) == sizeof(DeviceResult));

inline DeviceResult* cpp(snug_cuda_result* result) {
  return reinterpret_cast<DeviceResult*>(result);
}
inline Stream cpp(void* stream) { return static_cast<Stream>(stream); }

// Numbers out of range stay out of range, so that the calls refuse them.
inline DeltaOptions cpp(const snug_cuda_delta_options* given) {
  DeltaOptions out;
  if (given == nullptr) return out;
  out.dtype = static_cast<DType>(given->dtype < 0 || given->dtype > 255 ? 255 : given->dtype);
  out.log2_block = given->log2_block;
  out.host_result = cpp(given->host_result);
  return out;
}

}  // namespace snug::cuda::deltas
