// snug/gpu_link.h - messages of snug/wire.h whose bytes are in GPU memory.
//
// Through the host: wire_source and wire_sink work with any connection. The GPU encodes and
// decodes, only frames cross to the host, and either end may be a CPU. From GPU to GPU: Link is
// faster between two processes of one host. Chunks go from GPU memory to GPU memory (CUDA IPC); the
// host only schedules. Segments are gathered and scattered, so a paged KV cache is one message.
//
// Streams: work runs on internal streams. The tensor must be complete when `send` is called. When a
//          transfer is done, its bytes are visible to every stream.
#pragma once
#include <chrono>
#include <memory>
#include <span>

#include "snug/cuda.h"
#include "snug/wire.h"

namespace snug::cuda {

// For Connection::send and recv, on the device that is current in this call.
// Memory: per lane in use, a stream, about four chunks of device memory and two of pinned host
//         memory, until the object is destroyed.
// Errors: kNoDevice.
Result<std::shared_ptr<wire::Source>> wire_source(DType dtype,
                                                  std::span<const Segment> segments) noexcept;
Result<std::shared_ptr<wire::Sink>> wire_sink(DType dtype,
                                              std::span<const Segment> segments) noexcept;

// GPU memory to GPU memory, in both directions, between two processes of one host or two
// connections of one process.
//
// The sender copies chunks into staging memory that the receiver owns. It sends a chunk encoded
// only if it will then arrive, decoded, earlier than raw; the link never waits for an encoder.
// Small messages, and all messages on fast links, are therefore raw. sent() shows the choices.
//
// Memory:  12 MiB of staging memory, and 58 MiB more in an end that has sent 1 MiB or more in any
//          mode but kRaw: at most 72 MiB of device memory. Tensors are never exported, so they may
//          come from any allocator.
// Threads: two per end, and one more for some milliseconds during the first large message. They
//          busy-wait during transfers and for 5 ms after the last.
// Trust:   the peer has the connection's token. It may write anything into staging and shared
//          memory: lengths and offsets are checked, and frames as everywhere. Raw bytes have a
//          checksum, against accidents: what a successful transfer delivers is what was sent.
class Link {
 public:
  // Both ends call this, each with its end of one connection, which must outlive the link. Uses
  // the current device. Messages of the connection are not affected.
  // Errors: kNoDevice; kUsage; kPeer: another host or container, or CUDA IPC is refused (at both
  // ends; the connection stays usable); kTimeout: the other end does not call (this ends the
  // connection too).
  static Result<Link> open(wire::Connection& connection, wire::Mode mode = wire::Mode::kAuto,
                           std::chrono::milliseconds timeout = std::chrono::seconds(30)) noexcept;

  Link() noexcept;
  Link(Link&&) noexcept;
  Link& operator=(Link&&) noexcept;
  ~Link();  // fails transfers that are not done

  // As Connection::send and recv, with segments on the link's device. Both ends must give the same
  // dtype and the same sum of sizes. kUsage for many segments below 1 KiB.
  wire::Transfer send(std::uint64_t tag, DType dtype, std::span<const Segment> segments) noexcept;
  wire::Transfer recv(std::uint64_t tag, DType dtype, std::span<const Segment> segments) noexcept;

  wire::Stats sent() const noexcept;  // goodput: predicted from the link's rate and the ratios
  wire::Stats received() const noexcept;
  // kOk, or why one direction has ended.
  Status status() const noexcept;

  class Impl;
  explicit Link(std::unique_ptr<Impl> impl) noexcept;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace snug::cuda
