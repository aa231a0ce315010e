// The C ABI of snug/cuda.h: codec and deltas.
#include <cuda_runtime_api.h>

#include "capi/gpu_convert.h"

namespace gpu = snug::cuda;
using gpu::DecodeOptions;
using gpu::EncodeOptions;
using snug::capi::call;
using snug::capi::cpp;
using snug::capi::cpp_options;

int snug_cuda_status(const snug_cuda_result* host_result, snug_status* status) {
  return call(status, [&] {
    const snug_cuda_result& r = snug::capi::deref(host_result);
    return gpu::to_status({r.num_bytes, r.code, r.reason, r.block});
  });
}

size_t snug_cuda_encode_workspace_bytes(size_t raw_bytes, const snug_cuda_options* options) {
  return gpu::encode_workspace_bytes(raw_bytes, cpp_options<EncodeOptions>(options));
}

size_t snug_cuda_decode_workspace_bytes(size_t raw_bytes, const snug_cuda_options* options) {
  return gpu::decode_workspace_bytes(raw_bytes, cpp_options<DecodeOptions>(options));
}

size_t snug_cuda_paged_workspace_bytes(size_t raw_bytes, size_t num_segments,
                                       const snug_cuda_options* options) {
  const auto o = cpp_options<EncodeOptions>(options);
  return gpu::paged_workspace_bytes(raw_bytes, num_segments, o.dtype, o.log2_block);
}

size_t snug_cuda_batch_workspace_bytes(size_t total_bytes, size_t num_items,
                                       const snug_cuda_options* options) {
  const auto o = cpp_options<EncodeOptions>(options);
  return gpu::batch_workspace_bytes(total_bytes, num_items, o.dtype, o.log2_block);
}

size_t snug_cuda_transcode_workspace_bytes(size_t raw_bytes, const snug_cuda_options* options) {
  return gpu::transcode_workspace_bytes(raw_bytes, cpp_options<EncodeOptions>(options));
}

int snug_cuda_encode(const void* src, size_t raw_bytes, void* frame, size_t frame_bytes,
                     void* workspace, size_t workspace_bytes, snug_cuda_result* result,
                     const snug_cuda_options* options, void* stream, snug_status* status) {
  return call(status, [&] {
    return gpu::encode({src, raw_bytes}, {frame, frame_bytes}, {workspace, workspace_bytes},
                       cpp(result), cpp_options<EncodeOptions>(options), cpp(stream));
  });
}

int snug_cuda_decode(const void* frame, size_t frame_bytes, void* dst, size_t dst_bytes,
                     void* workspace, size_t workspace_bytes, snug_cuda_result* result,
                     const snug_cuda_options* options, void* stream, snug_status* status) {
  return call(status, [&] {
    return gpu::decode({frame, frame_bytes}, {dst, dst_bytes}, {workspace, workspace_bytes},
                       cpp(result), cpp_options<DecodeOptions>(options), cpp(stream));
  });
}

int snug_cuda_encode_paged(const snug_segment* segments, size_t num_segments, size_t raw_bytes,
                           void* frame, size_t frame_bytes, void* workspace, size_t workspace_bytes,
                           snug_cuda_result* result, const snug_cuda_options* options, void* stream,
                           snug_status* status) {
  return call(status, [&] {
    return gpu::encode_paged(cpp(segments), num_segments, raw_bytes, {frame, frame_bytes},
                             {workspace, workspace_bytes}, cpp(result),
                             cpp_options<EncodeOptions>(options), cpp(stream));
  });
}

int snug_cuda_decode_paged(const void* frame, size_t frame_bytes, const snug_segment* segments,
                           size_t num_segments, size_t raw_bytes, void* workspace,
                           size_t workspace_bytes, snug_cuda_result* result,
                           const snug_cuda_options* options, void* stream, snug_status* status) {
  return call(status, [&] {
    return gpu::decode_paged({frame, frame_bytes}, cpp(segments), num_segments, raw_bytes,
                             {workspace, workspace_bytes}, cpp(result),
                             cpp_options<DecodeOptions>(options), cpp(stream));
  });
}

int snug_cuda_encode_batch(const snug_cuda_item* items, size_t num_items, size_t total_bytes,
                           void* workspace, size_t workspace_bytes, snug_cuda_result* results,
                           const snug_cuda_options* options, void* stream, snug_status* status) {
  return call(status, [&] {
    return gpu::encode_batch(cpp(items), num_items, total_bytes, {workspace, workspace_bytes},
                             cpp(results), cpp_options<EncodeOptions>(options), cpp(stream));
  });
}

int snug_cuda_decode_batch(const snug_cuda_item* items, size_t num_items, size_t total_bytes,
                           void* workspace, size_t workspace_bytes, snug_cuda_result* results,
                           const snug_cuda_options* options, void* stream, snug_status* status) {
  return call(status, [&] {
    return gpu::decode_batch(cpp(items), num_items, total_bytes, {workspace, workspace_bytes},
                             cpp(results), cpp_options<DecodeOptions>(options), cpp(stream));
  });
}

int snug_cuda_transcode(const void* frame, size_t frame_bytes, void* tensor, size_t tensor_bytes,
                        void* new_frame, size_t new_frame_bytes, void* workspace,
                        size_t workspace_bytes, snug_cuda_result* result,
                        const snug_cuda_options* options, void* stream, snug_status* status) {
  return call(status, [&] {
    return gpu::transcode({frame, frame_bytes}, {tensor, tensor_bytes},
                          {new_frame, new_frame_bytes}, {workspace, workspace_bytes}, cpp(result),
                          cpp_options<EncodeOptions>(options), cpp(stream));
  });
}

uint64_t snug_cuda_capture_id(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  if (cudaStreamGetCaptureInfo(cpp(stream), &status, &id) != cudaSuccess) return 0;
  return status == cudaStreamCaptureStatusActive ? id + 1 : 0;  // in case ids start at 0
}

size_t snug_cuda_delta_encode_workspace_bytes(size_t raw_bytes,
                                              const snug_cuda_delta_options* options) {
  return gpu::delta_encode_workspace_bytes(raw_bytes, cpp(options));
}

size_t snug_cuda_delta_apply_workspace_bytes(size_t raw_bytes,
                                             const snug_cuda_delta_options* options) {
  return gpu::delta_apply_workspace_bytes(raw_bytes, cpp(options));
}

int snug_cuda_delta_encode(const void* base, const void* next, size_t raw_bytes, void* delta,
                           size_t delta_bytes, void* workspace, size_t workspace_bytes,
                           snug_cuda_result* result, const snug_cuda_delta_options* options,
                           void* stream, snug_status* status) {
  return call(status, [&] {
    return gpu::delta_encode({base, raw_bytes}, {next, raw_bytes}, {delta, delta_bytes},
                             {workspace, workspace_bytes}, cpp(result), cpp(options), cpp(stream));
  });
}

int snug_cuda_delta_apply(const void* delta, size_t delta_bytes, void* tensor, size_t tensor_bytes,
                          void* workspace, size_t workspace_bytes, snug_cuda_result* result,
                          const snug_cuda_delta_options* options, void* stream,
                          snug_status* status) {
  return call(status, [&] {
    return gpu::delta_apply({delta, delta_bytes}, {tensor, tensor_bytes},
                            {workspace, workspace_bytes}, cpp(result), cpp(options), cpp(stream));
  });
}

int snug_cuda_delta_apply_to(const void* delta, size_t delta_bytes, const void* base, void* target,
                             size_t raw_bytes, void* workspace, size_t workspace_bytes,
                             snug_cuda_result* result, const snug_cuda_delta_options* options,
                             void* stream, snug_status* status) {
  return call(status, [&] {
    return gpu::delta_apply_to({delta, delta_bytes}, {base, raw_bytes}, {target, raw_bytes},
                               {workspace, workspace_bytes}, cpp(result), cpp(options),
                               cpp(stream));
  });
}

int snug_cuda_tensor_hash(const void* tensor, size_t num_bytes, uint64_t* hash, void* workspace,
                          size_t workspace_bytes, void* stream, snug_status* status) {
  return call(status, [&] {
    return gpu::tensor_hash({tensor, num_bytes}, hash, {workspace, workspace_bytes}, cpp(stream));
  });
}
