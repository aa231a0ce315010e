// snug/cuda.h - compress and restore tensors that live in GPU memory.
//
// Frames are those of snug/codec.h, byte for byte: a tensor compressed here is
// decoded by a CPU and the other way round.
//
// Memory:  nothing is allocated. The caller gives a workspace of
//          `..._workspace_bytes` on the device, 256-byte aligned, that belongs
//          to one call until that call's work on the stream is done.
// Streams: calls only enqueue work. They neither wait for the device nor read
//          from it, so they can be captured into a CUDA graph. Size and status
//          of the result are left in a DeviceResult in device memory.
// Trust:   frames may be hostile; no access leaves the buffers given.
// Frames start at addresses that are multiples of 16; tensors start anywhere.
#pragma once
#include <cstddef>
#include <cstdint>

#include "snug/status.h"
#include "snug/tensor.h"

struct CUstream_st;

namespace snug::cuda {

using Stream = CUstream_st*;  // cudaStream_t

// What a finished call leaves on the device.
struct DeviceResult {
  std::uint64_t num_bytes;  // size of the frame or tensor; 0 on error
  std::uint32_t code;       // snug::Code
  std::uint32_t reason;     // for to_status()
  std::uint64_t block;      // where the problem is, or kNowhere
};

// The status a DeviceResult, copied to the host, stands for.
Status to_status(const DeviceResult& result) noexcept;

struct EncodeOptions {
  DType dtype = DType::kBF16;
  Codec codec = Codec::kEntropy;
  // As in snug::EncodeOptions, but 0 picks default_log2_block(). Equal frames
  // from CPU and GPU need the same number given to both.
  int log2_block = 0;
  // Launches no more thread blocks than this many multiprocessors hold; 0: no
  // limit. That is a bound on their number where one fills a multiprocessor
  // (`fixed` and raw frames); otherwise the hardware may spread them over
  // more, each then less busy.
  int max_sms = 0;
  DeviceResult* host_result = nullptr;  // pinned host memory for a copy of the result
};

struct DecodeOptions {
  DType dtype = DType::kBF16;  // a frame of another type is refused
  // Hints that choose the kernel, not the result: how the frame was encoded.
  Codec codec = Codec::kEntropy;
  int log2_block = 0;  // 0: as encode would pick
  int max_sms = 0;
  DeviceResult* host_result = nullptr;
};

// Elements of a block that suit a GPU: small blocks give small tensors enough
// parallel work, large ones cost less.
int default_log2_block(std::size_t raw_bytes, DType dtype, Codec codec) noexcept;

// A tensor in device memory in one piece.
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

// Compresses `src` into `frame`, which should hold snug::encode_bound() bytes of
// the block size used.
Status encode(Source src, Target frame, Target workspace, DeviceResult* result,
              const EncodeOptions& options, Stream stream) noexcept;

// Restores `frame` into dst. frame.num_bytes may be more than the frame has.
Status decode(Source frame, Target dst, Target workspace, DeviceResult* result,
              const DecodeOptions& options, Stream stream) noexcept;

// One piece of a tensor that is scattered over device memory, such as a page of
// a KV cache. Pieces follow each other; they may have any length and address.
struct Segment {
  void* data;
  std::uint64_t num_bytes;
};

std::size_t paged_workspace_bytes(std::size_t raw_bytes, std::size_t num_segments, DType dtype,
                                  int log2_block) noexcept;

// Gathers segments (an array in device memory) of raw_bytes in all into one
// frame, and scatters one frame to segments.
Status encode_paged(const Segment* segments, std::size_t num_segments, std::size_t raw_bytes,
                    Target frame, Target workspace, DeviceResult* result,
                    const EncodeOptions& options, Stream stream) noexcept;
Status decode_paged(Source frame, const Segment* segments, std::size_t num_segments,
                    std::size_t raw_bytes, Target workspace, DeviceResult* result,
                    const DecodeOptions& options, Stream stream) noexcept;

// One tensor and its frame in a batch. encode reads `tensor` and writes `frame`
// of at most frame_bytes; decode the other way round.
struct BatchItem {
  void* tensor;
  std::uint64_t tensor_bytes;
  void* frame;
  std::uint64_t frame_bytes;
};

std::size_t batch_workspace_bytes(std::size_t total_bytes, std::size_t num_items, DType dtype,
                                  int log2_block) noexcept;

// Many tensors to many frames and back in one launch. `items` and `results` are
// arrays in device memory; total_bytes is at least the sum of the tensor_bytes.
// All items share dtype, codec and block size; log2_block must not be 0.
Status encode_batch(const BatchItem* items, std::size_t num_items, std::size_t total_bytes,
                    Target workspace, DeviceResult* results, const EncodeOptions& options,
                    Stream stream) noexcept;
Status decode_batch(const BatchItem* items, std::size_t num_items, std::size_t total_bytes,
                    Target workspace, DeviceResult* results, const DecodeOptions& options,
                    Stream stream) noexcept;

// Rewrites a frame in another codec (fixed <-> entropy) without leaving the
// device: `tensor` is scratch for the restored tensor.
std::size_t transcode_workspace_bytes(std::size_t raw_bytes, const EncodeOptions& options) noexcept;
Status transcode(Source frame, Target tensor, Target new_frame, Target workspace,
                 DeviceResult* result, const EncodeOptions& options, Stream stream) noexcept;

// ---- deltas ---------------------------------------------------------------
//
// The deltas of snug/delta.h, byte for byte (with allow_frame off). Tensors have elements of one
// or two bytes and, like deltas, start at multiples of 16.

struct DeltaOptions {
  DType dtype = DType::kBF16;
  // Elements of a block, as a power of two from 12 to 14; 0 picks 13. What is applied may
  // have smaller blocks. Equal deltas from CPU and GPU need the same number given to both.
  int log2_block = 0;
  DeviceResult* host_result = nullptr;  // pinned host memory for a copy of the result
};

std::size_t delta_encode_workspace_bytes(std::size_t raw_bytes,
                                         const DeltaOptions& options) noexcept;
std::size_t delta_apply_workspace_bytes(std::size_t raw_bytes,
                                        const DeltaOptions& options) noexcept;

// Writes the delta from `base` to `next` into `delta`, which should hold
// snug::delta::encode_bound() bytes. The size is in the result.
Status delta_encode(Source base, Source next, Target delta, Target workspace, DeviceResult* result,
                    const DeltaOptions& options, Stream stream) noexcept;

// Turns `tensor` from base to target: all of it or, if the result says so, none of it.
// Hashes of base and target are checked before the first byte changes, so blocks are decoded
// twice. Full copies (Info::needs_base is false) are refused: their frame starts at byte 64 of
// the delta.
Status delta_apply(Source delta, Target tensor, Target workspace, DeviceResult* result,
                   const DeltaOptions& options, Stream stream) noexcept;

// Writes the target to other memory than the base, in one pass: the way for weights that are
// double-buffered. If the result is an error, `target` is unspecified.
Status delta_apply_to(Source delta, Source base, Target target, Target workspace,
                      DeviceResult* result, const DeltaOptions& options, Stream stream) noexcept;

// The tensor_hash() of a tensor on the device, left in *hash (device memory).
Status tensor_hash(Source tensor, std::uint64_t* hash, Target workspace, Stream stream) noexcept;

}  // namespace snug::cuda
