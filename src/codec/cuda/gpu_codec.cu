// The host side of snug/cuda.h: checks arguments, lays out the workspace,
// launches. Nothing here waits for the device.
#include <cuda_runtime.h>

#include "codec/cuda/frame/workspace.cuh"
#include "codec/cuda/kernels.cuh"
#include "gpu/status.h"
#include "snug/codec.h"

namespace snug::cuda {
namespace {

// Multiprocessors to use, or 0 where there is no device.
int sm_count(int max_sms) {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
    return 0;
  return max_sms > 0 && max_sms < count ? max_sms : count;
}

std::uint64_t blocks_of(std::uint64_t raw_bytes, DType dtype, int log2_block) {
  return blocks_in(raw_bytes / width_of(dtype), static_cast<unsigned>(log2_block));
}

// The block size that frame::make_header settles on.
int settle_log2_block(std::size_t raw_bytes, DType dtype, Codec codec, int log2_block) {
  if (log2_block == 0) log2_block = default_log2_block(raw_bytes, dtype, codec);
  return width_of(dtype) == 1 && log2_block <= frame::kMinLog2Block ? frame::kMinLog2Block + 1
                                                                    : log2_block;
}

struct Call {
  BatchItem single{};
  const BatchItem* items = nullptr;
  std::uint64_t num_items = 1;
  const Segment* segments = nullptr;
  std::uint64_t num_segments = 0;
  std::uint64_t num_blocks = 0;
  DType dtype;
  Codec codec = Codec::kRaw;
  int log2_block = 0;
  int max_sms = 0;
  const DeviceResult* upstream = nullptr;
  DeviceResult* host_result = nullptr;
};

// Upper bound of the blocks of many tensors: each may end in a partial one.
std::uint64_t batch_blocks(std::uint64_t total_bytes, std::uint64_t num_items, DType dtype,
                           int log2_block) {
  return blocks_of(total_bytes, dtype, log2_block) + num_items;
}

WorkspaceLayout layout_of(const Call& call, bool encodes, int num_sms) {
  const std::uint64_t slots =
      encodes ? encode_slots(call.dtype, call.codec, call.log2_block, call.num_blocks, num_sms) : 0;
  const auto most_ctas = static_cast<std::uint64_t>(num_sms);
  return {call.num_items,
          call.num_blocks,
          call.num_segments,
          slots * (encodes ? encode_scratch_bytes(call.dtype, call.codec, call.log2_block) : 0),
          slots > most_ctas ? slots : most_ctas,
          encodes};
}

Status enqueue(const Call& call, bool decodes, Target workspace, DeviceResult* result,
               Stream stream) {
  const int num_sms = sm_count(call.max_sms);
  if (num_sms == 0) return {Code::kNoDevice, "no usable GPU"};
  const WorkspaceLayout layout = layout_of(call, !decodes, num_sms);
  if (Status s = check_workspace(workspace.data, workspace.num_bytes, layout.total); !s.ok())
    return s;
  if (!is_aligned(call.single.frame, frame::kAlign)) return usage("frame is not 16-byte aligned");
  if (result == nullptr) return usage("no place for the result");
  auto* base = static_cast<std::uint8_t*>(workspace.data);
  Work work{};
  work.single = call.single;
  work.items = call.items;
  work.num_items = static_cast<std::uint32_t>(call.num_items);
  work.first_block = reinterpret_cast<std::uint64_t*>(base + layout.first_block);
  work.segments = call.segments;
  work.segment_starts = reinterpret_cast<std::uint64_t*>(base + layout.segment_starts);
  work.num_segments = static_cast<std::uint32_t>(call.num_segments);
  work.dtype = call.dtype;
  work.codec = call.codec;
  work.log2_block = static_cast<std::uint32_t>(call.log2_block);
  work.ticket = reinterpret_cast<unsigned*>(base + layout.ticket);
  work.states = reinterpret_cast<ItemState*>(base + layout.states);
  work.sizes = reinterpret_cast<unsigned long long*>(base + layout.sizes);
  work.head_sums = reinterpret_cast<unsigned long long*>(base + layout.head_sums);
  work.results = result;
  work.scratch = base + layout.scratch;
  work.scratch_bytes = decodes ? 0 : encode_scratch_bytes(call.dtype, call.codec, call.log2_block);
  work.errors = reinterpret_cast<unsigned long long*>(base + layout.errors);
  work.upstream = call.upstream;

  const bool direct = call.items == nullptr && call.segments == nullptr &&
                      reinterpret_cast<std::uintptr_t>(call.single.tensor) % 16 == 0;
  cudaError_t error = cudaSuccess;
  if (!decodes || call.items != nullptr || call.segments != nullptr) {
    const std::uint64_t num_vecs = layout.zeroed / 16, ctas = num_vecs / kPrepareThreads + 1;
    prepare_kernel<<<static_cast<unsigned>(ctas < 64 ? ctas : 64), kPrepareThreads, 0, stream>>>(
        work, reinterpret_cast<uint4*>(base), num_vecs,
        reinterpret_cast<std::uint64_t*>(base + layout.first_block),
        reinterpret_cast<std::uint64_t*>(base + layout.segment_starts), decodes, call.num_blocks);
    error = cudaGetLastError();
  }
  if (error == cudaSuccess)
    error = decodes ? launch_decode(work, direct, call.num_blocks, num_sms, stream)
                    : launch_encode(work, direct, call.num_blocks, num_sms, stream);
  if (error == cudaSuccess && call.host_result != nullptr)
    error = cudaMemcpyAsync(call.host_result, result, sizeof(DeviceResult) * call.num_items,
                            cudaMemcpyDeviceToHost, stream);
  return from_cuda(error);
}

Status check_encode(const EncodeOptions& o, std::size_t raw_bytes) {
  if (elem_bytes(o.dtype) == 0) return usage("not a dtype", static_cast<std::uint64_t>(o.dtype));
  if (static_cast<int>(o.codec) >= kNumCodecs)
    return usage("not a codec", static_cast<std::uint64_t>(o.codec));
  if (o.log2_block != 0 &&
      (o.log2_block < frame::kMinLog2Block || o.log2_block > frame::kMaxLog2Block))
    return usage("log2_block must be 0 or 12 to 17", static_cast<std::uint64_t>(o.log2_block));
  if (raw_bytes > frame::kMaxRawBytes)
    return usage("tensor too large", raw_bytes, frame::kMaxRawBytes);
  return {};
}

// What a call with these options (of encode or decode) is about.
template <class Options>
Call make_call(const Options& o, std::size_t raw_bytes) {
  Call call;
  call.dtype = o.dtype;
  call.codec = o.codec;
  // A hint of decode that cannot be one is none; encode has refused such a number.
  const bool known = o.log2_block >= frame::kMinLog2Block && o.log2_block <= frame::kMaxLog2Block;
  call.log2_block = settle_log2_block(raw_bytes, o.dtype, o.codec, known ? o.log2_block : 0);
  call.max_sms = o.max_sms;
  call.num_blocks = blocks_of(raw_bytes, o.dtype, call.log2_block);
  call.host_result = o.host_result;
  return call;
}

// A workspace is asked for with the SMs of the current device in mind.
std::size_t workspace_of(const Call& call, bool encodes) {
  const int num_sms = sm_count(call.max_sms);
  return layout_of(call, encodes, num_sms > 0 ? num_sms : 132).total;
}

// The most that bytes_with(options) asks for with any codec, for callers who do not say which.
// Raw needs no more than the others.
template <class BytesWith>
std::size_t most_of_codecs(DType dtype, int log2_block, BytesWith bytes_with) {
  EncodeOptions o;
  o.dtype = dtype;
  o.log2_block = log2_block;
  o.codec = Codec::kFixed;
  const std::size_t fixed = bytes_with(o);
  o.codec = Codec::kEntropy;
  const std::size_t entropy = bytes_with(o);
  return fixed > entropy ? fixed : entropy;
}

constexpr const char* kReasonTexts[kNumReasons] = {
    "",
    "frame shorter than its header",
    "not a Snug frame",
    "frame version not known to this Snug; update it",
    "header field out of range",
    "frame holds another dtype",
    "frame is cut short",
    "tensor does not fit",
    "frame does not fit",
    "header checksum does not match",
    "block index not valid",
    "checksum does not match",
    "block layout not valid",
    "entropy-coded data not valid",
    "batch larger than total_bytes",
    "the frame to transcode could not be decoded",
    "frame is not 16-byte aligned",
    "the tensor is another version than the delta was made for",
    "result differs from the target: hash does not match",
    "the delta holds a frame: decode that"};

}  // namespace

Status to_status(const DeviceResult& result) noexcept {
  // Packing a matrix reports these two with a code alone.
  if (result.reason == kReasonNone && result.code == static_cast<std::uint32_t>(Code::kDstTooSmall))
    return {Code::kDstTooSmall, "too many weights outside of their palettes; pack as raw"};
  if (result.reason == kReasonNone && result.code == static_cast<std::uint32_t>(Code::kUsage))
    return {Code::kUsage, "the frame holds a tensor of another size", kNowhere, kNowhere,
            result.block};
  Status status{static_cast<Code>(result.code)};
  status.what = result.reason < kNumReasons ? kReasonTexts[result.reason] : "unknown reason";
  status.block = result.block;
  return status;
}

int default_log2_block(std::size_t raw_bytes, DType dtype, Codec codec) noexcept {
  const std::size_t elems = raw_bytes / width_of(dtype);
  int log2_block = elems >= std::size_t{1} << 25   ? 14
                   : elems >= std::size_t{1} << 21 ? 13
                                                   : 12 + (width_of(dtype) == 1);
  if (codec == Codec::kFixed && elems >= std::size_t{1} << 22) log2_block = 15;
  // Shared memory holds no more of a block that is not entropy-coded.
  while (codec != Codec::kEntropy && width_of(dtype) << log2_block > 64 * 1024) --log2_block;
  return log2_block;
}

std::size_t encode_workspace_bytes(std::size_t raw_bytes, const EncodeOptions& o) noexcept {
  if (!check_encode(o, raw_bytes).ok()) return 0;
  return workspace_of(make_call(o, raw_bytes), true);
}

std::size_t decode_workspace_bytes(std::size_t raw_bytes, const DecodeOptions& o) noexcept {
  return workspace_of(make_call(o, raw_bytes), false);
}

Status encode(Source src, Target frame, Target workspace, DeviceResult* result,
              const EncodeOptions& o, Stream stream) noexcept {
  if (Status s = check_encode(o, src.num_bytes); !s.ok()) return s;
  Call call = make_call(o, src.num_bytes);
  call.single = {const_cast<void*>(src.data), src.num_bytes, frame.data, frame.num_bytes};
  return enqueue(call, false, workspace, result, stream);
}

Status decode(Source frame, Target dst, Target workspace, DeviceResult* result,
              const DecodeOptions& o, Stream stream) noexcept {
  if (elem_bytes(o.dtype) == 0) return usage("not a dtype", static_cast<std::uint64_t>(o.dtype));
  Call call = make_call(o, dst.num_bytes);
  call.single = {dst.data, dst.num_bytes, const_cast<void*>(frame.data), frame.num_bytes};
  return enqueue(call, true, workspace, result, stream);
}

std::size_t paged_workspace_bytes(std::size_t raw_bytes, std::size_t num_segments, DType dtype,
                                  int log2_block) noexcept {
  return most_of_codecs(dtype, log2_block, [&](const EncodeOptions& o) -> std::size_t {
    if (!check_encode(o, raw_bytes).ok()) return 0;
    Call call = make_call(o, raw_bytes);
    call.num_segments = num_segments;
    return workspace_of(call, true);
  });
}

Status encode_paged(const Segment* segments, std::size_t num_segments, std::size_t raw_bytes,
                    Target frame, Target workspace, DeviceResult* result, const EncodeOptions& o,
                    Stream stream) noexcept {
  if (Status s = check_encode(o, raw_bytes); !s.ok()) return s;
  Call call = make_call(o, raw_bytes);
  call.single = {nullptr, raw_bytes, frame.data, frame.num_bytes};
  call.segments = segments;
  call.num_segments = num_segments;
  return enqueue(call, false, workspace, result, stream);
}

Status decode_paged(Source frame, const Segment* segments, std::size_t num_segments,
                    std::size_t raw_bytes, Target workspace, DeviceResult* result,
                    const DecodeOptions& o, Stream stream) noexcept {
  if (elem_bytes(o.dtype) == 0) return usage("not a dtype", static_cast<std::uint64_t>(o.dtype));
  Call call = make_call(o, raw_bytes);
  call.single = {nullptr, raw_bytes, const_cast<void*>(frame.data), frame.num_bytes};
  call.segments = segments;
  call.num_segments = num_segments;
  return enqueue(call, true, workspace, result, stream);
}

std::size_t batch_workspace_bytes(std::size_t total_bytes, std::size_t num_items, DType dtype,
                                  int log2_block) noexcept {
  return most_of_codecs(dtype, log2_block, [&](const EncodeOptions& o) -> std::size_t {
    if (log2_block == 0 || !check_encode(o, total_bytes).ok()) return 0;
    Call call = make_call(o, total_bytes);
    call.num_items = num_items;
    call.num_blocks = batch_blocks(total_bytes, num_items, dtype, call.log2_block);
    return workspace_of(call, true);
  });
}

Status encode_batch(const BatchItem* items, std::size_t num_items, std::size_t total_bytes,
                    Target workspace, DeviceResult* results, const EncodeOptions& o,
                    Stream stream) noexcept {
  if (Status s = check_encode(o, total_bytes); !s.ok()) return s;
  if (o.log2_block == 0) return usage("a batch needs log2_block");
  if (num_items == 0 || num_items > 0xFFFFFFFFu)
    return usage("number of items out of range", num_items);
  Call call = make_call(o, total_bytes);
  call.items = items;
  call.num_items = num_items;
  call.num_blocks = batch_blocks(total_bytes, num_items, o.dtype, call.log2_block);
  return enqueue(call, false, workspace, results, stream);
}

Status decode_batch(const BatchItem* items, std::size_t num_items, std::size_t total_bytes,
                    Target workspace, DeviceResult* results, const DecodeOptions& o,
                    Stream stream) noexcept {
  if (elem_bytes(o.dtype) == 0) return usage("not a dtype", static_cast<std::uint64_t>(o.dtype));
  if (num_items == 0 || num_items > 0xFFFFFFFFu)
    return usage("number of items out of range", num_items);
  Call call = make_call(o, total_bytes);
  call.items = items;
  call.num_items = num_items;
  call.num_blocks = batch_blocks(total_bytes, num_items, o.dtype, call.log2_block);
  return enqueue(call, true, workspace, results, stream);
}

std::size_t transcode_workspace_bytes(std::size_t raw_bytes, const EncodeOptions& o) noexcept {
  if (!check_encode(o, raw_bytes).ok()) return 0;
  DecodeOptions d;
  d.dtype = o.dtype;
  return 256 + align256(workspace_of(make_call(d, raw_bytes), false)) +
         workspace_of(make_call(o, raw_bytes), true);
}

Status transcode(Source frame, Target tensor, Target new_frame, Target workspace,
                 DeviceResult* result, const EncodeOptions& o, Stream stream) noexcept {
  if (Status s = check_encode(o, tensor.num_bytes); !s.ok()) return s;
  DecodeOptions d;
  d.dtype = o.dtype;
  d.max_sms = o.max_sms;
  const std::size_t needed = transcode_workspace_bytes(tensor.num_bytes, o);
  if (workspace.num_bytes < needed)
    return usage("workspace too small", workspace.num_bytes, needed);
  auto* between = static_cast<DeviceResult*>(workspace.data);
  auto* base = static_cast<std::uint8_t*>(workspace.data) + 256;
  const std::uint64_t decode_bytes = align256(workspace_of(make_call(d, tensor.num_bytes), false));
  if (Status s = decode(frame, tensor, {base, decode_bytes}, between, d, stream); !s.ok()) return s;
  Call call = make_call(o, tensor.num_bytes);
  call.single = {tensor.data, tensor.num_bytes, new_frame.data, new_frame.num_bytes};
  call.upstream = between;
  return enqueue(call, false, {base + decode_bytes, workspace.num_bytes - 256 - decode_bytes},
                 result, stream);
}

}  // namespace snug::cuda
