// The host side of snug/cuda.h: checks arguments, selects the kernel, lays out the workspace and
// launches. Nothing here waits for the device.
#include <cuda_runtime.h>

#include <type_traits>

#include "codec/cuda/frame/workspace.cuh"
#include "codec/cuda/select_kernel.h"
#include "gpu/status.h"
#include "snug/codec.h"

namespace snug::cuda {
namespace {

// Multiprocessors to use, or 0 where there is no device. Their number bounds that of the thread
// blocks that leave an error each.
unsigned sm_count(int max_sms) {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
    return 0;
  const auto most = static_cast<unsigned>(max_sms > 0 && max_sms < count ? max_sms : count);
  return most < kMaxErrors ? most : kMaxErrors;
}

// The block size that frame::make_header settles on.
int settle_log2_block(std::size_t raw_bytes, DType dtype, Codec codec, int log2_block) {
  if (log2_block == 0) log2_block = default_log2_block(raw_bytes, dtype, codec);
  return width_of(dtype) == 1 && log2_block <= frame::kMinLog2Block ? frame::kMinLog2Block + 1
                                                                    : log2_block;
}

struct Call {
  Operation operation;
  DType dtype;
  Codec codec;
  int log2_block;
  int max_sms;
  DeviceResult* host_result;
  u64 num_blocks;
  u64 num_items = 1;
  bool is_batch = false;
  BatchItem single{};
  const BatchItem* items = nullptr;
  const Segment* segments = nullptr;
  u64 num_segments = 0;
  const DeviceResult* upstream = nullptr;
};

// A call with these options on one tensor, or on num_items tensors of raw_bytes in all.
template <class Options>
Call make_call(const Options& o, std::size_t raw_bytes, u64 num_items = 0) {
  // A block size that decode cannot expect counts as not given; encode has refused it.
  const bool known = o.log2_block >= frame::kMinLog2Block && o.log2_block <= frame::kMaxLog2Block;
  Call call{std::is_same_v<Options, EncodeOptions> ? Operation::kEncode : Operation::kDecode,
            o.dtype,
            o.codec,
            settle_log2_block(raw_bytes, o.dtype, o.codec, known ? o.log2_block : 0),
            o.max_sms,
            o.host_result,
            0};
  call.num_blocks =
      blocks_in(raw_bytes / width_of(o.dtype), static_cast<unsigned>(call.log2_block));
  if (num_items != 0) {
    call.is_batch = true;
    call.num_items = num_items;
    call.num_blocks += num_items;  // each may end in a partial one
  }
  if (call.num_blocks == 0) call.num_blocks = 1;
  return call;
}

// What a call needs of the device.
struct Plan {
  const Kernel& kernel;
  EncodeSlots slots;
  u64 num_slots;
  WorkspaceLayout layout;
};

Plan plan_call(const Call& call, unsigned num_sms) {
  const Kernel& kernel =
      select_kernel(call.operation, call.dtype, call.codec, call.is_batch, call.log2_block);
  EncodeSlots slots{};
  if (kernel.slots != nullptr) slots = kernel.slots(call.dtype, call.codec, call.log2_block);
  const u64 most = u64{num_sms} * slots.per_sm,
            num_slots = call.num_blocks < most ? call.num_blocks : most;
  return {kernel, slots, num_slots,
          WorkspaceLayout(call.num_items, call.num_blocks, call.num_segments, num_slots,
                          slots.scratch_bytes)};
}

Status enqueue(const Call& call, Target workspace, DeviceResult* result, Stream stream) {
  const unsigned num_sms = sm_count(call.max_sms);
  if (num_sms == 0) return {Code::kNoDevice, "no usable GPU"};
  const auto [kernel, slots, num_slots, layout] = plan_call(call, num_sms);
  if (Status s = check_workspace(workspace.data, workspace.num_bytes, layout.total); !s.ok())
    return s;
  if (!is_aligned(call.single.frame, frame::kAlign)) return usage("frame is not 16-byte aligned");
  if (result == nullptr) return usage("no place for the result");
  auto* base = static_cast<u8*>(workspace.data);
  auto* first_block = reinterpret_cast<u64*>(base + layout.first_block);
  auto* segment_starts = reinterpret_cast<u64*>(base + layout.segment_starts);
  const auto counters = [&](u64 offset) {
    return reinterpret_cast<unsigned long long*>(base + offset);
  };
  const Work work{.single = call.single,
                  .items = call.items,
                  .num_items = static_cast<u32>(call.num_items),
                  .first_block = first_block,
                  .segments = call.segments,
                  .segment_starts = segment_starts,
                  .num_segments = static_cast<u32>(call.num_segments),
                  .dtype = call.dtype,
                  .codec = call.codec,
                  .log2_block = static_cast<u32>(call.log2_block),
                  .ticket = reinterpret_cast<unsigned*>(base + layout.ticket),
                  .states = reinterpret_cast<ItemState*>(base + layout.states),
                  .results = result,
                  .sizes = counters(layout.sizes),
                  .head_sums = counters(layout.head_sums),
                  .scratch = base + layout.scratch,
                  .scratch_bytes = slots.scratch_bytes,
                  .errors = counters(layout.errors),
                  .upstream = call.upstream};
  const bool in_one_piece = call.items == nullptr && call.segments == nullptr,
             decodes = call.operation == Operation::kDecode;
  cudaError_t error = cudaSuccess;
  if (!decodes || !in_one_piece) {
    const u64 num_vecs = layout.zeroed / 16, ctas = num_vecs / kPrepareThreads + 1;
    prepare_kernel<<<static_cast<unsigned>(ctas < 64 ? ctas : 64), kPrepareThreads, 0, stream>>>(
        work, reinterpret_cast<uint4*>(base), num_vecs, first_block, segment_starts, decodes,
        call.num_blocks);
    error = cudaGetLastError();
  }
  const bool direct = in_one_piece && is_aligned(call.single.tensor, 16);
  if (error == cudaSuccess)
    error = kernel.launch({work, direct, call.num_blocks, num_slots, num_sms, stream});
  if (error == cudaSuccess && call.host_result != nullptr)
    error = cudaMemcpyAsync(call.host_result, result, sizeof(DeviceResult) * call.num_items,
                            cudaMemcpyDeviceToHost, stream);
  return from_cuda(error);
}

Status check(const EncodeOptions& o, std::size_t raw_bytes) {
  if (elem_bytes(o.dtype) == 0) return usage("not a dtype", static_cast<u64>(o.dtype));
  if (static_cast<int>(o.codec) >= kNumCodecs)
    return usage("not a codec", static_cast<u64>(o.codec));
  if (o.log2_block != 0 &&
      (o.log2_block < frame::kMinLog2Block || o.log2_block > frame::kMaxLog2Block))
    return usage("log2_block must be 0 or 12 to 17", static_cast<u64>(o.log2_block));
  if (raw_bytes > frame::kMaxRawBytes)
    return usage("tensor too large", raw_bytes, frame::kMaxRawBytes);
  return {};
}

Status check(const DecodeOptions& o, std::size_t) {
  if (elem_bytes(o.dtype) == 0) return usage("not a dtype", static_cast<u64>(o.dtype));
  return {};
}

template <class Options>
Status enqueue_paged(const Segment* segments, std::size_t num_segments, const BatchItem& item,
                     Target workspace, DeviceResult* result, const Options& o, Stream stream) {
  if (Status s = check(o, item.tensor_bytes); !s.ok()) return s;
  Call call = make_call(o, item.tensor_bytes);
  call.single = item;
  call.segments = segments;
  call.num_segments = num_segments;
  return enqueue(call, workspace, result, stream);
}

template <class Options>
Status enqueue_batch(const BatchItem* items, std::size_t num_items, std::size_t total_bytes,
                     Target workspace, DeviceResult* results, const Options& o, Stream stream) {
  if (num_items == 0 || num_items > 0xFFFFFFFFu)
    return usage("number of items out of range", num_items);
  Call call = make_call(o, total_bytes, num_items);
  call.items = items;
  return enqueue(call, workspace, results, stream);
}

// Sized for the current device.
std::size_t workspace_of(const Call& call) {
  const unsigned num_sms = sm_count(call.max_sms);
  return plan_call(call, num_sms > 0 ? num_sms : 132).layout.total;
}

// The most that bytes_with(options) asks for with any codec, for callers who do not name one. Raw
// needs no more than the others.
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
  const auto code = static_cast<Code>(result.code);
  // Packed matrices report these with a code alone.
  if (result.reason == kReasonNone && code == Code::kDstTooSmall)
    return {code, "too many weights outside of their palettes; pack as raw"};
  if (result.reason == kReasonNone && code == Code::kUsage)
    return {code, "the frame holds a tensor of another size", kNowhere, kNowhere, result.block};
  if (result.reason == kReasonNone && code == Code::kCorrupt)
    return {code, "16 rows, from row 16 x block on, do not match their checksum", result.block};
  return {code, result.reason < kNumReasons ? kReasonTexts[result.reason] : "unknown reason",
          result.block};
}

int default_log2_block(std::size_t raw_bytes, DType dtype, Codec codec) noexcept {
  const std::size_t elems = raw_bytes / width_of(dtype);
  int log2_block = elems >= std::size_t{1} << 25   ? 14
                   : elems >= std::size_t{1} << 21 ? 13
                                                   : 12 + (width_of(dtype) == 1);
  if (codec == Codec::kFixed && elems >= std::size_t{1} << 22) log2_block = 15;
  while (codec != Codec::kEntropy && width_of(dtype) << log2_block > kMaxRingBlock) --log2_block;
  return log2_block;
}

std::size_t encode_workspace_bytes(std::size_t raw_bytes, const EncodeOptions& o) noexcept {
  return check(o, raw_bytes).ok() ? workspace_of(make_call(o, raw_bytes)) : 0;
}

std::size_t decode_workspace_bytes(std::size_t raw_bytes, const DecodeOptions& o) noexcept {
  return workspace_of(make_call(o, raw_bytes));
}

Status encode(Source src, Target frame, Target workspace, DeviceResult* result,
              const EncodeOptions& o, Stream stream) noexcept {
  if (Status s = check(o, src.num_bytes); !s.ok()) return s;
  Call call = make_call(o, src.num_bytes);
  call.single = {const_cast<void*>(src.data), src.num_bytes, frame.data, frame.num_bytes};
  return enqueue(call, workspace, result, stream);
}

Status decode(Source frame, Target dst, Target workspace, DeviceResult* result,
              const DecodeOptions& o, Stream stream) noexcept {
  if (Status s = check(o, dst.num_bytes); !s.ok()) return s;
  Call call = make_call(o, dst.num_bytes);
  call.single = {dst.data, dst.num_bytes, const_cast<void*>(frame.data), frame.num_bytes};
  return enqueue(call, workspace, result, stream);
}

std::size_t paged_workspace_bytes(std::size_t raw_bytes, std::size_t num_segments, DType dtype,
                                  int log2_block) noexcept {
  return most_of_codecs(dtype, log2_block, [&](const EncodeOptions& o) -> std::size_t {
    if (!check(o, raw_bytes).ok()) return 0;
    Call call = make_call(o, raw_bytes);
    call.num_segments = num_segments;
    return workspace_of(call);
  });
}

Status encode_paged(const Segment* segments, std::size_t num_segments, std::size_t raw_bytes,
                    Target frame, Target workspace, DeviceResult* result, const EncodeOptions& o,
                    Stream stream) noexcept {
  return enqueue_paged(segments, num_segments, {nullptr, raw_bytes, frame.data, frame.num_bytes},
                       workspace, result, o, stream);
}

Status decode_paged(Source frame, const Segment* segments, std::size_t num_segments,
                    std::size_t raw_bytes, Target workspace, DeviceResult* result,
                    const DecodeOptions& o, Stream stream) noexcept {
  return enqueue_paged(segments, num_segments,
                       {nullptr, raw_bytes, const_cast<void*>(frame.data), frame.num_bytes},
                       workspace, result, o, stream);
}

std::size_t batch_workspace_bytes(std::size_t total_bytes, std::size_t num_items, DType dtype,
                                  int log2_block) noexcept {
  return most_of_codecs(dtype, log2_block, [&](const EncodeOptions& o) -> std::size_t {
    if (log2_block == 0 || !check(o, total_bytes).ok()) return 0;
    return workspace_of(make_call(o, total_bytes, num_items));
  });
}

Status encode_batch(const BatchItem* items, std::size_t num_items, std::size_t total_bytes,
                    Target workspace, DeviceResult* results, const EncodeOptions& o,
                    Stream stream) noexcept {
  if (Status s = check(o, total_bytes); !s.ok()) return s;
  if (o.log2_block == 0) return usage("a batch needs log2_block");
  return enqueue_batch(items, num_items, total_bytes, workspace, results, o, stream);
}

Status decode_batch(const BatchItem* items, std::size_t num_items, std::size_t total_bytes,
                    Target workspace, DeviceResult* results, const DecodeOptions& o,
                    Stream stream) noexcept {
  if (Status s = check(o, total_bytes); !s.ok()) return s;
  return enqueue_batch(items, num_items, total_bytes, workspace, results, o, stream);
}

// A result, the workspace of the decode, and that of the encode.
std::size_t transcode_workspace_bytes(std::size_t raw_bytes, const EncodeOptions& o) noexcept {
  if (!check(o, raw_bytes).ok()) return 0;
  DecodeOptions d;
  d.dtype = o.dtype;
  return 256 + align256(workspace_of(make_call(d, raw_bytes))) +
         workspace_of(make_call(o, raw_bytes));
}

Status transcode(Source frame, Target tensor, Target new_frame, Target workspace,
                 DeviceResult* result, const EncodeOptions& o, Stream stream) noexcept {
  if (Status s = check(o, tensor.num_bytes); !s.ok()) return s;
  DecodeOptions d{.dtype = o.dtype};
  d.max_sms = o.max_sms;
  const std::size_t needed = transcode_workspace_bytes(tensor.num_bytes, o);
  if (workspace.num_bytes < needed)
    return usage("workspace too small", workspace.num_bytes, needed);
  auto* between = static_cast<DeviceResult*>(workspace.data);
  auto* base = static_cast<u8*>(workspace.data) + 256;
  const u64 decode_bytes = align256(workspace_of(make_call(d, tensor.num_bytes)));
  if (Status s = decode(frame, tensor, {base, decode_bytes}, between, d, stream); !s.ok()) return s;
  Call call = make_call(o, tensor.num_bytes);
  call.single = {tensor.data, tensor.num_bytes, new_frame.data, new_frame.num_bytes};
  call.upstream = between;
  return enqueue(call, {base + decode_bytes, workspace.num_bytes - 256 - decode_bytes}, result,
                 stream);
}

}  // namespace snug::cuda
