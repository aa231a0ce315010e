// The C ABI of deltas on the GPU: nothing but conversions.
#include "capi/gpu_delta_capi.h"

namespace {

namespace gpu = snug::cuda;
using gpu::deltas::cpp;

int code(const snug::Status& status) { return static_cast<int>(status.code); }

}  // namespace

extern "C" {

size_t snug_cuda_delta_encode_workspace(size_t raw_bytes, const snug_cuda_delta_options* options) {
  return gpu::delta_encode_workspace_bytes(raw_bytes, cpp(options));
}

size_t snug_cuda_delta_apply_workspace(size_t raw_bytes, const snug_cuda_delta_options* options) {
  return gpu::delta_apply_workspace_bytes(raw_bytes, cpp(options));
}

int snug_cuda_delta_encode(const void* base, const void* next, size_t raw_bytes, void* delta,
                           size_t delta_bytes, void* workspace, size_t workspace_bytes,
                           snug_cuda_result* result, const snug_cuda_delta_options* options,
                           void* stream) {
  return code(gpu::delta_encode({base, raw_bytes}, {next, raw_bytes}, {delta, delta_bytes},
                                {workspace, workspace_bytes}, cpp(result), cpp(options),
                                cpp(stream)));
}

int snug_cuda_delta_apply(const void* delta, size_t delta_bytes, void* tensor, size_t tensor_bytes,
                          void* workspace, size_t workspace_bytes, snug_cuda_result* result,
                          const snug_cuda_delta_options* options, void* stream) {
  return code(gpu::delta_apply({delta, delta_bytes}, {tensor, tensor_bytes},
                               {workspace, workspace_bytes}, cpp(result), cpp(options),
                               cpp(stream)));
}

int snug_cuda_delta_apply_to(const void* delta, size_t delta_bytes, const void* base, void* target,
                             size_t raw_bytes, void* workspace, size_t workspace_bytes,
                             snug_cuda_result* result, const snug_cuda_delta_options* options,
                             void* stream) {
  return code(gpu::delta_apply_to({delta, delta_bytes}, {base, raw_bytes}, {target, raw_bytes},
                                  {workspace, workspace_bytes}, cpp(result), cpp(options),
                                  cpp(stream)));
}

int snug_cuda_tensor_hash(const void* tensor, size_t num_bytes, uint64_t* hash, void* workspace,
                          size_t workspace_bytes, void* stream) {
  return code(
      gpu::tensor_hash({tensor, num_bytes}, hash, {workspace, workspace_bytes}, cpp(stream)));
}

}  // extern "C"
