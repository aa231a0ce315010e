// snug/cuda_delta.h - deltas between tensors that live in GPU memory.
//
// Deltas are those of snug/delta.h, byte for byte (with allow_frame off). All that
// snug/cuda.h says about memory, streams, results and trust holds here: nothing is
// allocated, nothing waits, calls can be captured into a CUDA graph. Tensors have elements of
// one or two bytes and, like deltas, start at multiples of 16.
#pragma once
#include <cstddef>
#include <cstdint>

#include "snug/cuda.h"
#include "snug/status.h"
#include "snug/tensor.h"

namespace snug::cuda {

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
