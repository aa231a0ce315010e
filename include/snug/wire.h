// snug/wire.h - tensors from one process to another, compressed on the way.
//
// A connection has one control channel and some lanes. Messages are cut into
// chunks; every lane encodes, sends, receives and decodes chunks on a thread of
// its own, so that all stages overlap. Chunks travel raw or as Snug frames,
// whichever has been faster on this link so far. docs/wire.md has the protocol.
//
// Completion: a receiver's transfer is done when all bytes are in their place
//          and verified; a sender's when the receiver has said so.
// Memory:  a lane needs two chunks and a workspace; nothing is queued. A message
//          starts to move only when the receiver has asked for it, and then as
//          fast as the slower side.
// Threads: all functions may be called from any thread.
// Trust:   the peer may be hostile or broken: lengths and states are checked
//          before they are used, nothing is allocated on its word alone, and no
//          wait is longer than Options::timeout without a sign of life.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "snug/status.h"
#include "snug/tensor.h"

namespace snug::wire {

// How chunks are encoded. kAuto measures link and codecs and decides.
enum class Mode : std::uint8_t { kRaw = 0, kFixed = 1, kEntropy = 2, kAuto = 3 };
inline constexpr int kNumModes = 3;         // that a chunk can have
const char* mode_name(Mode mode) noexcept;  // "raw", "fixed", "entropy", "auto"

inline constexpr std::size_t kMinTokenBytes = 8;
inline constexpr std::size_t kMinChunkBytes = std::size_t{64} << 10;
inline constexpr std::size_t kMaxChunkBytes = std::size_t{4} << 20;
inline constexpr std::uint64_t kMaxMessageBytes = std::uint64_t{1} << 43;  // 8 TiB

struct Options {
  std::string token;  // shared secret of both sides, so long or longer; empty: none
  Mode mode = Mode::kAuto;
  int num_lanes = 0;                               // 1 to 16; 0: two, or four with many CPUs
  std::size_t chunk_bytes = std::size_t{1} << 20;  // 64 KiB to 4 MiB, a multiple of 64 KiB
  std::chrono::milliseconds timeout{30'000};       // of silence, before the peer counts as lost
};

// What a connection has done so far.
struct Stats {
  std::uint64_t raw_bytes = 0;    // sent or received, before encoding
  std::uint64_t wire_bytes = 0;   // the same as it travelled, chunk headers included
  std::uint64_t known_bytes = 0;  // not sent: the receiver had them already
  std::uint64_t num_chunks[kNumModes] = {};
  // Of sent messages: bytes of original data a second that reached the receiver
  // in each mode, as the controller estimates it; 0 where it has not tried.
  double goodput[kNumModes] = {};
  double encode_seconds = 0;     // summed over lanes
  double send_wait_seconds = 0;  // in which lanes waited for the link
};

// A typed stretch of a message: chunks never cross its ends.
struct Extent {
  DType dtype = DType::kBytes;
  std::uint64_t num_bytes = 0;
};

// Where the bytes of a message come from. Lanes call it at the same time.
class Source {
 public:
  virtual ~Source() = default;
  virtual std::vector<Extent> extents() const = 0;
  // Bytes [offset, offset + num_bytes) in place, or an empty span if they do
  // not lie together in memory.
  virtual std::span<const std::byte> view(std::uint64_t offset, std::size_t num_bytes) = 0;
  virtual Status read(std::uint64_t offset, std::span<std::byte> dst) = 0;
  // For memory that a CPU does not reach: whether `encode` makes the frames. It
  // writes the frame of [offset, offset + num_bytes) to dst, which holds
  // snug::encode_bound(num_bytes) for any block size, and returns its size.
  virtual bool encodes() const { return false; }
  virtual Result<std::size_t> encode(std::uint64_t /*offset*/, std::size_t /*num_bytes*/,
                                     Codec /*codec*/, std::span<std::byte> /*dst*/) {
    return Status{Code::kUsage, "this source does not encode"};
  }
};

// Where they go. Lanes call it at the same time, for different bytes.
class Sink {
 public:
  virtual ~Sink() = default;
  // Called once, before any byte; refuses what it cannot take.
  virtual Status begin(std::span<const Extent> extents, std::uint64_t num_bytes) = 0;
  virtual std::span<std::byte> view(std::uint64_t offset, std::size_t num_bytes) = 0;
  virtual Status write(std::uint64_t offset, std::span<const std::byte> src) = 0;
  // To resume: how many bytes from the start may be there already, and those
  // bytes. Chunks that turn out to be the sender's are not sent again.
  virtual std::uint64_t existing_bytes() { return 0; }
  virtual Status read_back(std::uint64_t, std::span<std::byte>) { return {}; }
  // For memory that a CPU does not reach: whether `decode` takes frames. It
  // restores a frame of num_bytes to `offset` and checks the frame's checksums.
  virtual bool decodes() const { return false; }
  virtual Status decode(std::uint64_t /*offset*/, std::size_t /*num_bytes*/,
                        std::span<const std::byte> /*frame*/) {
    return {Code::kUsage, "this sink does not decode"};
  }
};

// A message on its way. Copies are handles to the same message. The memory or
// the Source or Sink behind it must stay until it is done.
class Transfer {
 public:
  Transfer() noexcept = default;
  bool done() const noexcept;
  Status wait() const noexcept;
  // kTimeout if it is not done by then; the message stays on its way.
  Status wait_for(std::chrono::milliseconds patience) const noexcept;
  std::uint64_t done_bytes() const noexcept;  // of original data, for progress

  struct State;
  explicit Transfer(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

class Connection {
 public:
  Connection() noexcept = default;

  // A message meets the receive of the same tag; several of one tag meet in the
  // order of the calls. Segments are gathered here and scattered there, and need
  // not be cut alike; only the sums must be equal.
  Transfer send(std::uint64_t tag, DType dtype,
                std::span<const std::span<const std::byte>> segments) noexcept;
  Transfer recv(std::uint64_t tag, std::span<const std::span<std::byte>> segments) noexcept;
  Transfer send(std::uint64_t tag, std::shared_ptr<Source> source) noexcept;
  Transfer recv(std::uint64_t tag, std::shared_ptr<Sink> sink) noexcept;

  // Short texts beside the tensors, in order: at most 1 MiB each. send_note
  // returns when the text is on its way. At most 64 may wait to be read: one more
  // ends the connection, so a peer that sends many has to hear that they are read.
  Status send_note(const std::string& note) noexcept;
  Result<std::string> recv_note(std::chrono::milliseconds patience) noexcept;

  Stats stats() const noexcept;
  std::string peer_name() const noexcept;
  // OK while the connection works, then why it does not.
  Status status() const noexcept;
  // Transfers that are not done fail. The last handle's destructor does the same.
  void close() noexcept;

  class Core;
  explicit Connection(std::shared_ptr<Core> core) noexcept : core_(std::move(core)) {}
  const std::shared_ptr<Core>& core() const noexcept { return core_; }

 private:
  std::shared_ptr<Core> core_;
};

// `address` is HOST:PORT, [IPV6]:PORT, or shm:NAME for shared memory on one host. While
// it waits, `keep_going` is asked many times a second; false ends the call with kIo.
Result<Connection> connect(const std::string& address, const Options& options = {},
                           const std::function<bool()>& keep_going = {}) noexcept;

class Listener {
 public:
  // Port 0 takes a free one. Addresses other than loopback need a token.
  static Result<Listener> open(const std::string& address, const Options& options = {}) noexcept;

  Listener() noexcept;
  Listener(Listener&&) noexcept;
  Listener& operator=(Listener&&) noexcept;
  ~Listener();

  std::string address() const noexcept;  // with the port that was taken
  const Options& options() const noexcept;
  // The next peer that has proved itself and brought all its lanes.
  Result<Connection> accept(std::chrono::milliseconds patience) noexcept;
  // Those that came and left, or were sent away, without proving themselves.
  std::uint64_t num_refused() const noexcept;

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace snug::wire
