// snug/gpu_link.h - messages of snug/wire.h whose bytes lie in GPU memory.
//
// Two ways. Any connection takes them through wire_source and wire_sink: the GPU encodes
// and decodes, only frames cross to the host, either end may be a CPU's. Between two
// processes of one host, Link is the fast one: chunks go from GPU memory to GPU
// memory (CUDA IPC), and the host only looks on. Segments are gathered and scattered, so
// a paged KV cache is one message.
//
// Streams: work runs on streams of its own. The tensor must be complete when `send`
//          is called; when a transfer is done, its bytes are visible to every stream.
#pragma once
#include <chrono>
#include <memory>
#include <span>

#include "snug/cuda.h"
#include "snug/wire.h"

namespace snug::cuda {

// For Connection::send and recv. Both use the device that is current in this call.
// Memory: per lane in use a stream, about four chunks of device memory and two of pinned
//         host memory, kept until the object goes.
// Errors: kNoDevice.
Result<std::shared_ptr<wire::Source>> wire_source(DType dtype,
                                                  std::span<const Segment> segments) noexcept;
Result<std::shared_ptr<wire::Sink>> wire_sink(DType dtype,
                                              std::span<const Segment> segments) noexcept;

// GPU memory to GPU memory, between two processes of one host or two connections of one
// process, in both directions.
//
// The sender copies chunks into staging memory that the receiver owns, raw or encoded,
// whatever brings the whole message there first: the link never waits for an encoder, and
// chunks are encoded only where they will arrive, decoded, before they would have arrived
// raw. Small messages and fast links are raw by that rule. sent() shows what was chosen.
//
// Memory:  12 MiB of staging memory, and 49 MiB more in an end that has sent 1 MiB or more in
//          any mode but kRaw: no more than 72 MiB of device memory. Tensors themselves are
//          never exported, so any allocator will do.
// Threads: two per end, and one for some milliseconds beside the first large message. They spin
//          while messages are on their way and 5 ms longer.
// Trust:   the peer has the connection's token. It may write anything into the staging and
//          the shared memory: lengths and places are checked, frames as always.
class Link {
 public:
  // Both ends call this, each with its end of one connection, which must stay open that
  // long; the current device is used. Messages of the connection are not affected.
  // Errors: kNoDevice, kUsage, kPeer (another host or container, or CUDA IPC is refused:
  // both ends learn so at once, and the connection works on), kTimeout (the other end does
  // not call: that ends the connection too).
  static Result<Link> open(wire::Connection& connection, wire::Mode mode = wire::Mode::kAuto,
                           std::chrono::milliseconds timeout = std::chrono::seconds(30)) noexcept;

  Link() noexcept;
  Link(Link&&) noexcept;
  Link& operator=(Link&&) noexcept;
  ~Link();  // transfers that are not done fail

  // As Connection::send and recv; segments lie on the link's device. Sizes and dtypes of both ends
  // must be equal, segments need not be cut alike. kUsage for many pieces below 1 KiB.
  wire::Transfer send(std::uint64_t tag, DType dtype, std::span<const Segment> segments) noexcept;
  wire::Transfer recv(std::uint64_t tag, DType dtype, std::span<const Segment> segments) noexcept;

  wire::Stats sent() const noexcept;  // goodput: as the link's rate and the ratios promise
  wire::Stats received() const noexcept;
  // OK while both directions work, then why one does not.
  Status status() const noexcept;

  class Impl;
  explicit Link(std::unique_ptr<Impl> impl) noexcept;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace snug::cuda
