// nccl/chunk_codec.h - one chunk of a message to one frame and back: by workers on the GPU where
// some are at work, else here.
//
// Each thread has its own. Memory is allocated at the first use and kept: nothing is
// allocated per chunk, and connections that stay raw need none.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "nccl/worker_desk.h"
#include "snug/codec.h"

namespace snug::nccl {

// The fastest options for chunks of this size.
EncodeOptions chunk_options(std::size_t chunk_bytes, DType dtype, Codec codec) noexcept;

// Room for a frame of a chunk of this size, whatever the type.
std::size_t chunk_frame_bound(std::size_t chunk_bytes) noexcept;

class ChunkCodec {
 public:
  ChunkCodec() = default;
  ~ChunkCodec();
  ChunkCodec(const ChunkCodec&) = delete;
  ChunkCodec& operator=(const ChunkCodec&) = delete;

  // A buffer for a frame of this size; empty if there is no memory.
  std::span<std::byte> frame_buffer(std::size_t size) noexcept;
  // Whether workers would code this chunk now. They may have left when it is posted.
  bool has_workers_for(std::span<const std::byte> data, std::span<const std::byte> frame,
                       DType dtype, const Region* region) const noexcept;
  // Size of the frame in dst, or 0 if the frame would not be smaller than the chunk. `region`: what
  // NCCL registered the chunk with, or null.
  std::size_t encode(std::span<const std::byte> data, std::span<std::byte> dst, DType dtype,
                     Codec codec, const Region* region = nullptr) noexcept;
  // Restores exactly dst.size() bytes from a frame of exactly that size, or fails.
  Status decode(std::span<const std::byte> frame, std::span<std::byte> dst,
                const Region* region = nullptr) noexcept;
  // Whether workers did the last of these.
  bool was_by_workers() const noexcept { return was_by_workers_; }

 private:
  struct Memory {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t size = 0;
    // Not initialised: pages that are never used do not become resident.
    std::span<std::byte> grow(std::size_t wanted) noexcept;
  };
  bool is_for_workers(const std::byte* frame, const Region* region) const noexcept;
  // The result if workers took the order.
  std::optional<OrderResult> by_workers(const WorkerDesk::Job& job) noexcept;

  Memory workspace_, frame_;
  std::span<std::byte> shared_frame_;  // from the desk
  bool was_by_workers_ = false;
};

}  // namespace snug::nccl
