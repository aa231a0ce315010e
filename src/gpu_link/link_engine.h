// gpu_link/link_engine.h - what a link needs of a GPU. src/gpu_link/cuda implements it; in tests a
// CPU does.
//
// Calls only start work. The ...ed() functions return whether it is done, and never wait.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gpu_link/link_mailbox.h"
#include "snug/wire.h"
#include "wire/message_rules.h"

namespace snug::gpu_link {

using wire::Mode;

// A message in memory that the engine can reach.
class LinkTensor {
 public:
  virtual ~LinkTensor() = default;
  DType dtype = DType::kBytes;
  std::uint64_t num_bytes = 0;
};

struct LinkSpan {
  std::uint64_t offset = 0;
  std::size_t num_bytes = 0;
};
inline LinkSpan span_of(const LinkChunk& chunk) {
  return {chunk.offset, static_cast<std::size_t>(chunk.num_bytes)};
}

class SendEngine {
 public:
  virtual ~SendEngine() = default;
  virtual int num_frames() const = 0;    // for which there is memory
  virtual int max_encoding() const = 0;  // at the same time
  // False while the engine allocates memory and loads kernels, which starts with the first call and
  // prepares for tensors like that one.
  virtual bool can_encode(const LinkTensor& tensor) = 0;
  virtual Status encode(int frame, const LinkTensor& tensor, LinkSpan span, Codec codec) = 0;
  // The size of the frame, or 0 while it is being encoded.
  virtual Result<std::size_t> encoded(int frame) = 0;

  // Copies to the peer's staging memory, which end in the order in which they started. A frame's
  // copy may be rounded up to a multiple of 256 bytes. Raw bytes get a checksum: the engines of
  // both ends must agree on it, nobody else looks at it.
  virtual Status copy_frame(int frame, std::size_t num_bytes, std::size_t place) = 0;
  virtual Status copy_raw(const LinkTensor& tensor, LinkSpan span, std::size_t place) = 0;
  // Whether the oldest copy that was not reported yet has arrived; then `checksum` is that of its
  // bytes, if they are raw.
  virtual Result<bool> copied(std::uint64_t& checksum) = 0;

  // Waits until nothing touches a tensor any more, and releases the staging memory. Called once, at
  // the end.
  virtual void drain() noexcept = 0;
};

class ReceiveEngine {
 public:
  virtual ~ReceiveEngine() = default;
  virtual int num_placers() const = 0;
  // Moves a chunk, whose numbers make sense, from the staging memory to its place in the tensor.
  virtual Status place(int placer, const LinkTensor& tensor, const LinkChunk& chunk) = 0;
  // kCorrupt if the frame was not valid or the checksum of raw bytes is another.
  virtual Result<bool> placed(int placer) = 0;
  virtual void drain() noexcept = 0;
};

}  // namespace snug::gpu_link
