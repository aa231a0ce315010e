// snug/cuda.h - compress, restore and update tensors in GPU memory.
//
// Frames and deltas are those of snug/codec.h and snug/delta.h, byte for byte: what a GPU writes, a
// CPU reads, and the other way round.
//
// Memory:  nothing is allocated. The caller passes a workspace of `..._workspace_bytes` in device
//          memory, 256-byte aligned. It belongs to one call until that call's work on the stream
//          is done. Frames are 16-byte aligned; tensors may start anywhere.
// Streams: calls only enqueue work. They neither wait for the device nor read from it, so they can
//          be captured into a CUDA graph. Size and status are left in a DeviceResult in device
//          memory.
// Trust:   frames and deltas may be hostile; no access leaves the buffers given.
#pragma once
#include <cstddef>
#include <cstdint>

#include "snug/status.h"
#include "snug/tensor.h"

struct CUstream_st;

namespace snug::cuda {

using Stream = CUstream_st*;  // cudaStream_t

// How the work of a call ended; in device memory.
struct DeviceResult {
  std::uint64_t num_bytes;  // size of the frame, tensor, delta or packed matrix; 0 on error
  std::uint32_t code;       // snug::Code
  std::uint32_t reason;     // for to_status()
  std::uint64_t block;      // where the problem is, or kNowhere
};

// The status of a DeviceResult that was copied to the host.
Status to_status(const DeviceResult& result) noexcept;

struct EncodeOptions {
  DType dtype = DType::kBF16;
  Codec codec = Codec::kEntropy;
  // As in snug::EncodeOptions, but 0 picks default_log2_block(). CPU and GPU write equal frames
  // if both are given the same number.
  int log2_block = 0;
  // Launches no more thread blocks than fit on this many SMs; 0: no limit. For fixed and raw
  // frames, where a block fills an SM, that limits the SMs in use. For others, the hardware may
  // spread the blocks over more SMs, each less occupied.
  int max_sms = 0;
  DeviceResult* host_result = nullptr;  // pinned host memory for a copy of the result
};

struct DecodeOptions {
  DType dtype = DType::kBF16;  // frames of another type are refused
  // How the frame was encoded. These are hints: they select the kernel, not the result.
  Codec codec = Codec::kEntropy;
  int log2_block = 0;  // 0: as encode would pick
  int max_sms = 0;
  DeviceResult* host_result = nullptr;
};

// The block size that suits a GPU: small blocks give small tensors enough parallelism, large ones
// have less overhead.
int default_log2_block(std::size_t raw_bytes, DType dtype, Codec codec) noexcept;

// A contiguous piece of device memory.
struct Source {
  const void* data = nullptr;
  std::size_t num_bytes = 0;
};
struct Target {
  void* data = nullptr;
  std::size_t num_bytes = 0;
};

std::size_t encode_workspace_bytes(std::size_t raw_bytes, const EncodeOptions& options) noexcept;
std::size_t decode_workspace_bytes(std::size_t raw_bytes, const DecodeOptions& options) noexcept;

// Compresses `src` into `frame`, which needs at most snug::encode_bound() bytes for the block size
// used.
Status encode(Source src, Target frame, Target workspace, DeviceResult* result,
              const EncodeOptions& options, Stream stream) noexcept;

// Restores `frame` into dst. frame.num_bytes may be larger than the frame.
Status decode(Source frame, Target dst, Target workspace, DeviceResult* result,
              const DecodeOptions& options, Stream stream) noexcept;

// One piece of a tensor that is scattered over device memory, such as a page of a KV cache. Pieces
// may have any size and address.
struct Segment {
  void* data;
  std::uint64_t num_bytes;
};

std::size_t paged_workspace_bytes(std::size_t raw_bytes, std::size_t num_segments, DType dtype,
                                  int log2_block) noexcept;

// Gathers segments (an array in device memory), raw_bytes together, into one frame, and scatters a
// frame to segments.
Status encode_paged(const Segment* segments, std::size_t num_segments, std::size_t raw_bytes,
                    Target frame, Target workspace, DeviceResult* result,
                    const EncodeOptions& options, Stream stream) noexcept;
Status decode_paged(Source frame, const Segment* segments, std::size_t num_segments,
                    std::size_t raw_bytes, Target workspace, DeviceResult* result,
                    const DecodeOptions& options, Stream stream) noexcept;

// One tensor and its frame in a batch. encode_batch reads `tensor` and writes at most frame_bytes
// to `frame`; decode_batch the other way round.
struct BatchItem {
  void* tensor;
  std::uint64_t tensor_bytes;
  void* frame;
  std::uint64_t frame_bytes;
};

std::size_t batch_workspace_bytes(std::size_t total_bytes, std::size_t num_items, DType dtype,
                                  int log2_block) noexcept;

// Many tensors to many frames and back in one launch. `items` and `results` are arrays in device
// memory; total_bytes is at least the sum of the tensor_bytes. All items have the same dtype, codec
// and block size; log2_block must not be 0.
Status encode_batch(const BatchItem* items, std::size_t num_items, std::size_t total_bytes,
                    Target workspace, DeviceResult* results, const EncodeOptions& options,
                    Stream stream) noexcept;
Status decode_batch(const BatchItem* items, std::size_t num_items, std::size_t total_bytes,
                    Target workspace, DeviceResult* results, const DecodeOptions& options,
                    Stream stream) noexcept;

// Rewrites a frame in another codec (fixed <-> entropy) on the device. `tensor` is scratch for the
// restored tensor.
std::size_t transcode_workspace_bytes(std::size_t raw_bytes, const EncodeOptions& options) noexcept;
Status transcode(Source frame, Target tensor, Target new_frame, Target workspace,
                 DeviceResult* result, const EncodeOptions& options, Stream stream) noexcept;

// ---- deltas ---------------------------------------------------------------
//
// The deltas of snug/delta.h with allow_frame off. Tensors have elements of one or two bytes.
// Tensors and deltas are 16-byte aligned.

struct DeltaOptions {
  DType dtype = DType::kBF16;
  // Elements of a block, as a power of two from 12 to 14; 0 picks 13. For apply, the largest
  // block size. CPU and GPU write equal deltas if both are given the same number.
  int log2_block = 0;
  DeviceResult* host_result = nullptr;  // pinned host memory for a copy of the result
};

std::size_t delta_encode_workspace_bytes(std::size_t raw_bytes,
                                         const DeltaOptions& options) noexcept;
std::size_t delta_apply_workspace_bytes(std::size_t raw_bytes,
                                        const DeltaOptions& options) noexcept;

// Writes the delta from `base` to `next`. `delta` needs at most snug::delta::encode_bound() bytes.
Status delta_encode(Source base, Source next, Target delta, Target workspace, DeviceResult* result,
                    const DeltaOptions& options, Stream stream) noexcept;

// Turns `tensor` from base to target: all of it or, if the result is an error, none of it. Checks
// the hashes of base and target before the first byte changes, and so decodes blocks twice. Refuses
// full copies (Info::needs_base is false): decode the frame at byte 64 of such a delta instead.
Status delta_apply(Source delta, Target tensor, Target workspace, DeviceResult* result,
                   const DeltaOptions& options, Stream stream) noexcept;

// Writes the target to other memory than the base, in one pass: for double-buffered weights. If the
// result is an error, `target` is unspecified.
Status delta_apply_to(Source delta, Source base, Target target, Target workspace,
                      DeviceResult* result, const DeltaOptions& options, Stream stream) noexcept;

// Writes the tensor_hash() of a tensor to *hash in device memory.
Status tensor_hash(Source tensor, std::uint64_t* hash, Target workspace, Stream stream) noexcept;

}  // namespace snug::cuda
