// snug/cuda_wire.h - messages of snug/wire.h whose bytes lie in GPU memory.
//
// Chunks are encoded and decoded on the GPU, where the link is slow enough for
// that to pay; only frames cross to the host. Segments are gathered and scattered,
// so a paged KV cache is one message. Either end may be a CPU's.
//
// Experimental: it compiles and its parts on the host are tested, but it has not
// run on a GPU yet (tests/gpu/gpu_wire_test.cu will tell).
//
// Memory:  per lane in use a stream, about four chunks of device memory and two of
//          pinned host memory, kept until the object goes.
// Streams: work runs on streams of its own. The tensor must be complete when `send`
//          is called; when a transfer is done, its bytes are visible to every stream.
#pragma once
#include <memory>
#include <span>

#include "snug/cuda.h"
#include "snug/wire.h"

namespace snug::cuda {

// For Connection::send and recv. Both use the device that is current in this call.
// Errors: kNoDevice.
Result<std::shared_ptr<wire::Source>> wire_source(DType dtype,
                                                  std::span<const Segment> segments) noexcept;
Result<std::shared_ptr<wire::Sink>> wire_sink(DType dtype,
                                              std::span<const Segment> segments) noexcept;

}  // namespace snug::cuda
