// The C ABI of the GPU codecs: nothing but conversions.
#include "snug/cuda.h"
#include "snug/snug_cuda.h"

namespace {

namespace gpu = snug::cuda;

static_assert(sizeof(snug_cuda_result) == sizeof(gpu::DeviceResult));
static_assert(sizeof(snug_cuda_segment) == sizeof(gpu::Segment));

gpu::DeviceResult* cpp(snug_cuda_result* result) { return reinterpret_cast<gpu::DeviceResult*>(result); }
const gpu::Segment* cpp(const snug_cuda_segment* segments) { return reinterpret_cast<const gpu::Segment*>(segments); }

// Numbers out of range stay out of range, so that the calls refuse them.
template <class Options>
Options options_of(const snug_cuda_options& o) {
  Options out;
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
  return gpu::to_status({result->num_bytes, result->code, result->reason, result->block}).what;
}

size_t snug_cuda_encode_workspace(size_t raw_bytes, const snug_cuda_options* options) {
  return gpu::encode_workspace_bytes(raw_bytes, options_of<gpu::EncodeOptions>(*options));
}

size_t snug_cuda_decode_workspace(size_t raw_bytes, const snug_cuda_options* options) {
  return gpu::decode_workspace_bytes(raw_bytes, options_of<gpu::DecodeOptions>(*options));
}

size_t snug_cuda_paged_workspace(size_t raw_bytes, size_t num_segments, const snug_cuda_options* options) {
  const auto o = options_of<gpu::EncodeOptions>(*options);
  return gpu::paged_workspace_bytes(raw_bytes, num_segments, o.dtype, o.log2_block);
}

int snug_cuda_encode(const void* src, size_t raw_bytes, void* frame, size_t frame_bytes, void* workspace,
                     size_t workspace_bytes, snug_cuda_result* result, const snug_cuda_options* options,
                     void* stream) {
  return code(gpu::encode({src, raw_bytes}, {frame, frame_bytes}, {workspace, workspace_bytes}, cpp(result),
                          options_of<gpu::EncodeOptions>(*options), static_cast<gpu::Stream>(stream)));
}

int snug_cuda_decode(const void* frame, size_t frame_bytes, void* dst, size_t dst_bytes, void* workspace,
                     size_t workspace_bytes, snug_cuda_result* result, const snug_cuda_options* options,
                     void* stream) {
  return code(gpu::decode({frame, frame_bytes}, {dst, dst_bytes}, {workspace, workspace_bytes}, cpp(result),
                          options_of<gpu::DecodeOptions>(*options), static_cast<gpu::Stream>(stream)));
}

int snug_cuda_encode_paged(const snug_cuda_segment* segments, size_t num_segments, size_t raw_bytes, void* frame,
                           size_t frame_bytes, void* workspace, size_t workspace_bytes, snug_cuda_result* result,
                           const snug_cuda_options* options, void* stream) {
  return code(gpu::encode_paged(cpp(segments), num_segments, raw_bytes, {frame, frame_bytes},
                                {workspace, workspace_bytes}, cpp(result), options_of<gpu::EncodeOptions>(*options),
                                static_cast<gpu::Stream>(stream)));
}

int snug_cuda_decode_paged(const void* frame, size_t frame_bytes, const snug_cuda_segment* segments,
                           size_t num_segments, size_t raw_bytes, void* workspace, size_t workspace_bytes,
                           snug_cuda_result* result, const snug_cuda_options* options, void* stream) {
  return code(gpu::decode_paged({frame, frame_bytes}, cpp(segments), num_segments, raw_bytes,
                                {workspace, workspace_bytes}, cpp(result), options_of<gpu::DecodeOptions>(*options),
                                static_cast<gpu::Stream>(stream)));
}

}  // extern "C"
