// nccl/chunk_codec.h - one chunk of a message to one frame and back.
//
// Each thread has its own. Memory is allocated at the first use and kept: nothing is
// allocated per chunk, and connections that stay raw need none.
#pragma once
#include <cstddef>
#include <memory>
#include <span>

#include "snug/codec.h"

namespace snug::nccl {

// The fastest options for chunks of this size.
EncodeOptions chunk_options(std::size_t chunk_bytes, DType dtype, Codec codec) noexcept;

// Room for a frame of a chunk of this size, whatever the type.
std::size_t chunk_frame_bound(std::size_t chunk_bytes) noexcept;

class ChunkCodec {
 public:
  // A buffer for a frame of this size; empty if there is no memory.
  std::span<std::byte> frame_buffer(std::size_t size) noexcept;
  // Size of the frame in dst, or 0 if the frame would not be smaller than the chunk.
  std::size_t encode(std::span<const std::byte> data, std::span<std::byte> dst, DType dtype,
                     Codec codec) noexcept;
  // Restores exactly dst.size() bytes from a frame of exactly that size, or fails.
  Status decode(std::span<const std::byte> frame, std::span<std::byte> dst) noexcept;

 private:
  struct Memory {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t size = 0;
    // Not initialised: pages that are never used do not become resident.
    std::span<std::byte> grow(std::size_t wanted) noexcept;
  };
  Memory workspace_, frame_;
};

}  // namespace snug::nccl
