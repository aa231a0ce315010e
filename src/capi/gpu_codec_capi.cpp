// The C ABI of the GPU codecs: nothing but conversions.
#include <cuda_runtime_api.h>

#include "snug/cuda.h"
#include "snug/snug_gpu.h"

namespace {

namespace gpu = snug::cuda;

static_assert(sizeof(snug_cuda_result) == sizeof(gpu::DeviceResult));
static_assert(sizeof(snug_cuda_segment) == sizeof(gpu::Segment));
static_assert(sizeof(snug_cuda_item) == sizeof(gpu::BatchItem));

gpu::DeviceResult* cpp(snug_cuda_result* result) {
  return reinterpret_cast<gpu::DeviceResult*>(result);
}
const gpu::Segment* cpp(const snug_cuda_segment* segments) {
  return reinterpret_cast<const gpu::Segment*>(segments);
}

const gpu::BatchItem* cpp(const snug_cuda_item* items) {
  return reinterpret_cast<const gpu::BatchItem*>(items);
}
gpu::Stream cpp(void* stream) { return static_cast<gpu::Stream>(stream); }

// Numbers out of range stay out of range, so that the calls refuse them.
template <class Options>
Options options_of(const snug_cuda_options* given) {
  Options out;
  if (given == nullptr) return out;
  const snug_cuda_options& o = *given;
  out.dtype = static_cast<snug::DType>(o.dtype < 0 || o.dtype > 255 ? 255 : o.dtype);
  out.codec = static_cast<snug::Codec>(o.codec < 0 || o.codec > 255 ? 255 : o.codec);
  out.log2_block = o.log2_block;
  out.max_sms = o.max_sms;
  out.host_result = cpp(o.host_result);
  return out;
}

int code(const snug::Status& status) { return static_cast<int>(status.code); }

}  // namespace

extern "C" {

const char* snug_cuda_reason(const snug_cuda_result* result) {
  if (result == nullptr) return "the result is NULL";
  return gpu::to_status({result->num_bytes, result->code, result->reason, result->block}).what;
}

size_t snug_cuda_encode_workspace(size_t raw_bytes, const snug_cuda_options* options) {
  return gpu::encode_workspace_bytes(raw_bytes, options_of<gpu::EncodeOptions>(options));
}

size_t snug_cuda_decode_workspace(size_t raw_bytes, const snug_cuda_options* options) {
  return gpu::decode_workspace_bytes(raw_bytes, options_of<gpu::DecodeOptions>(options));
}

size_t snug_cuda_paged_workspace(size_t raw_bytes, size_t num_segments,
                                 const snug_cuda_options* options) {
  const auto o = options_of<gpu::EncodeOptions>(options);
  return gpu::paged_workspace_bytes(raw_bytes, num_segments, o.dtype, o.log2_block);
}

size_t snug_cuda_batch_workspace(size_t total_bytes, size_t num_items,
                                 const snug_cuda_options* options) {
  const auto o = options_of<gpu::EncodeOptions>(options);
  return gpu::batch_workspace_bytes(total_bytes, num_items, o.dtype, o.log2_block);
}

size_t snug_cuda_transcode_workspace(size_t raw_bytes, const snug_cuda_options* options) {
  return gpu::transcode_workspace_bytes(raw_bytes, options_of<gpu::EncodeOptions>(options));
}

int snug_cuda_encode(const void* src, size_t raw_bytes, void* frame, size_t frame_bytes,
                     void* workspace, size_t workspace_bytes, snug_cuda_result* result,
                     const snug_cuda_options* options, void* stream) {
  return code(gpu::encode({src, raw_bytes}, {frame, frame_bytes}, {workspace, workspace_bytes},
                          cpp(result), options_of<gpu::EncodeOptions>(options), cpp(stream)));
}

int snug_cuda_decode(const void* frame, size_t frame_bytes, void* dst, size_t dst_bytes,
                     void* workspace, size_t workspace_bytes, snug_cuda_result* result,
                     const snug_cuda_options* options, void* stream) {
  return code(gpu::decode({frame, frame_bytes}, {dst, dst_bytes}, {workspace, workspace_bytes},
                          cpp(result), options_of<gpu::DecodeOptions>(options), cpp(stream)));
}

int snug_cuda_encode_paged(const snug_cuda_segment* segments, size_t num_segments, size_t raw_bytes,
                           void* frame, size_t frame_bytes, void* workspace, size_t workspace_bytes,
                           snug_cuda_result* result, const snug_cuda_options* options,
                           void* stream) {
  return code(gpu::encode_paged(cpp(segments), num_segments, raw_bytes, {frame, frame_bytes},
                                {workspace, workspace_bytes}, cpp(result),
                                options_of<gpu::EncodeOptions>(options), cpp(stream)));
}

int snug_cuda_decode_paged(const void* frame, size_t frame_bytes, const snug_cuda_segment* segments,
                           size_t num_segments, size_t raw_bytes, void* workspace,
                           size_t workspace_bytes, snug_cuda_result* result,
                           const snug_cuda_options* options, void* stream) {
  return code(gpu::decode_paged({frame, frame_bytes}, cpp(segments), num_segments, raw_bytes,
                                {workspace, workspace_bytes}, cpp(result),
                                options_of<gpu::DecodeOptions>(options), cpp(stream)));
}

uint64_t snug_cuda_capture_id(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  if (cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(stream), &status, &id) != cudaSuccess)
    return 0;
  return status == cudaStreamCaptureStatusActive ? id + 1 : 0;  // should ids start at 0
}

int snug_cuda_encode_batch(const snug_cuda_item* items, size_t num_items, size_t total_bytes,
                           void* workspace, size_t workspace_bytes, snug_cuda_result* results,
                           const snug_cuda_options* options, void* stream) {
  return code(gpu::encode_batch(cpp(items), num_items, total_bytes, {workspace, workspace_bytes},
                                cpp(results), options_of<gpu::EncodeOptions>(options),
                                cpp(stream)));
}

int snug_cuda_decode_batch(const snug_cuda_item* items, size_t num_items, size_t total_bytes,
                           void* workspace, size_t workspace_bytes, snug_cuda_result* results,
                           const snug_cuda_options* options, void* stream) {
  return code(gpu::decode_batch(cpp(items), num_items, total_bytes, {workspace, workspace_bytes},
                                cpp(results), options_of<gpu::DecodeOptions>(options),
                                cpp(stream)));
}

int snug_cuda_transcode(const void* frame, size_t frame_bytes, void* tensor, size_t tensor_bytes,
                        void* new_frame, size_t new_frame_bytes, void* workspace,
                        size_t workspace_bytes, snug_cuda_result* result,
                        const snug_cuda_options* options, void* stream) {
  return code(gpu::transcode({frame, frame_bytes}, {tensor, tensor_bytes},
                             {new_frame, new_frame_bytes}, {workspace, workspace_bytes},
                             cpp(result), options_of<gpu::EncodeOptions>(options), cpp(stream)));
}

}  // extern "C"
