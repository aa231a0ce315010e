// snug/wire.h - tensors from one process to another, compressed in transit.
//
// A connection has one control channel and several lanes. Messages are divided into chunks. Every
// lane has its own thread that encodes and sends, or receives and decodes, one chunk after the
// other, so that all stages overlap. A chunk is sent raw or as a Snug frame, whichever has been
// faster on this link so far. docs/wire.md has the protocol.
//
// Completion: a receiver's transfer is done when all bytes are in place and verified; a sender's
//          when the receiver has confirmed that.
// Memory:  a lane at work needs two chunks and a workspace; nothing is queued. All connections of
//          a process share 232 MiB for these and for what peers announce; whoever needs more waits.
//          A message starts to move when the receiver has asked for it, at the rate of the slower
//          side.
// Threads: all functions may be called from any thread.
// Trust:   a peer proves that it knows the token before anything it says is believed, and every
//          byte is encrypted and authenticated (Options::token; docs/wire.md, "Security"). A peer
//          that was let in may still be hostile or broken. Lengths and states are checked before
//          they are used, and nothing is allocated on the peer's word alone. A peer that is silent
//          for Options::timeout counts as lost.
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
inline constexpr int kNumModes = 3;         // of a chunk, which is never kAuto
const char* mode_name(Mode mode) noexcept;  // "raw", "fixed", "entropy", "auto"

inline constexpr std::size_t kMinTokenBytes = 16, kMaxTokenBytes = 4095;
inline constexpr std::size_t kMinChunkBytes = std::size_t{64} << 10;
inline constexpr std::size_t kMaxChunkBytes = std::size_t{4} << 20;
inline constexpr std::uint64_t kMaxMessageBytes = std::uint64_t{1} << 43;  // 8 TiB

// A token of 32 random bytes: "snug-" and hex digits. Only such tokens are known to be beyond
// guessing; all others are stretched, which takes some 10 ms in every process. Errors: kIo.
Result<std::string> make_token() noexcept;

struct Options {
  // The secret that lets a peer in, kMinTokenBytes to kMaxTokenBytes long. TCP is encrypted and
  // authenticated by TLS 1.3 under a key made of it. Empty: that of the environment variable
  // SNUG_TOKEN, or else the secret of this user, on loopback only. shm: needs none; it takes only
  // processes of the same user.
  std::string token;
  bool insecure = false;  // no token, no encryption, any user: the network must be trusted
  Mode mode = Mode::kAuto;
  int num_lanes = 0;                               // 1 to 16; 0: two, or four with many CPUs
  std::size_t chunk_bytes = std::size_t{1} << 20;  // 64 KiB to 4 MiB, a multiple of 64 KiB
  // Of silence, then the peer counts as lost. One below 1 s works only if the peer has one, too.
  std::chrono::milliseconds timeout{30'000};
};

// Totals of a connection so far.
struct Stats {
  std::uint64_t raw_bytes = 0;    // sent or received, before encoding
  std::uint64_t wire_bytes = 0;   // the same as transmitted, with chunk headers
  std::uint64_t known_bytes = 0;  // not sent: the receiver had them already
  std::uint64_t num_chunks[kNumModes] = {};
  // Senders: the controller's estimate for each mode of the original bytes per second that reach
  // the receiver; 0 for a mode that was not tried.
  double goodput[kNumModes] = {};
  double encode_seconds = 0;     // summed over lanes
  double send_wait_seconds = 0;  // lanes waited for the link; summed over lanes
};

// A typed part of a message. A chunk never spans two extents.
struct Extent {
  DType dtype = DType::kBytes;
  std::uint64_t num_bytes = 0;
};

// Provides the bytes of a message. Lanes call it concurrently.
class Source {
 public:
  virtual ~Source() = default;
  virtual std::vector<Extent> extents() const = 0;
  // Bytes [offset, offset + num_bytes) in place, or an empty span if they are not contiguous in
  // memory.
  virtual std::span<const std::byte> view(std::uint64_t offset, std::size_t num_bytes) = 0;
  virtual Status read(std::uint64_t offset, std::span<std::byte> dst) = 0;
  // For memory that a CPU cannot read: true if `encode` makes the frames. It writes the frame of
  // [offset, offset + num_bytes) to dst, which holds snug::encode_bound(num_bytes) for any block
  // size, and returns its size.
  virtual bool encodes() const { return false; }
  virtual Result<std::size_t> encode(std::uint64_t /*offset*/, std::size_t /*num_bytes*/,
                                     Codec /*codec*/, std::span<std::byte> /*dst*/) {
    return Status{Code::kUsage, "this source does not encode"};
  }
};

// Takes the bytes of a message. Lanes call it concurrently, for different bytes.
class Sink {
 public:
  virtual ~Sink() = default;
  // Called once, before any byte. An error refuses the message.
  virtual Status begin(std::span<const Extent> extents, std::uint64_t num_bytes) = 0;
  virtual std::span<std::byte> view(std::uint64_t offset, std::size_t num_bytes) = 0;
  virtual Status write(std::uint64_t offset, std::span<const std::byte> src) = 0;
  // To resume a transfer: how many bytes from the start are already there, and those bytes. Chunks
  // that equal the sender's are not sent again.
  virtual std::uint64_t existing_bytes() { return 0; }
  virtual Status read_back(std::uint64_t, std::span<std::byte>) { return {}; }
  // For memory that a CPU cannot write: true if `decode` takes frames. It checks a frame and
  // restores its num_bytes to `offset`.
  virtual bool decodes() const { return false; }
  virtual Status decode(std::uint64_t /*offset*/, std::size_t /*num_bytes*/,
                        std::span<const std::byte> /*frame*/) {
    return {Code::kUsage, "this sink does not decode"};
  }
};

// A message in transit. Copies are handles to the same message. Its memory, Source or Sink must
// stay valid until it is done.
class Transfer {
 public:
  Transfer() noexcept = default;
  bool done() const noexcept;
  Status wait() const noexcept;
  // kTimeout if it is not done by then; the transfer continues.
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

  // A message goes to the receive with the same tag; messages with equal tags match in the order
  // of the calls. Segments are gathered by the sender and scattered by the receiver. Only their
  // sums must be equal.
  Transfer send(std::uint64_t tag, DType dtype,
                std::span<const std::span<const std::byte>> segments) noexcept;
  Transfer recv(std::uint64_t tag, std::span<const std::span<std::byte>> segments) noexcept;
  Transfer send(std::uint64_t tag, std::shared_ptr<Source> source) noexcept;
  Transfer recv(std::uint64_t tag, std::shared_ptr<Sink> sink) noexcept;

  // Short texts beside the tensors, in order, at most 1 MiB each. send_note returns once the text
  // is sent. At most 64 may be unread: one more ends the connection, so a sender of many notes
  // needs acknowledgements.
  Status send_note(const std::string& note) noexcept;
  Result<std::string> recv_note(std::chrono::milliseconds patience) noexcept;

  Stats stats() const noexcept;
  std::string peer_name() const noexcept;
  // kOk, or why the connection has ended.
  Status status() const noexcept;
  // Fails transfers that are not done. The last handle's destructor does the same.
  void close() noexcept;

  class Core;
  explicit Connection(std::shared_ptr<Core> core) noexcept : core_(std::move(core)) {}
  const std::shared_ptr<Core>& core() const noexcept { return core_; }

 private:
  std::shared_ptr<Core> core_;
};

// `address` is HOST:PORT, [IPV6]:PORT, or shm:NAME for shared memory on one host. The call asks
// `keep_going` many times a second while it waits; false ends it with kIo.
Result<Connection> connect(const std::string& address, const Options& options = {},
                           const std::function<bool()>& keep_going = {}) noexcept;

class Listener {
 public:
  // Port 0 takes a free one. Addresses other than loopback need a token, or Options::insecure.
  static Result<Listener> open(const std::string& address, const Options& options = {}) noexcept;

  Listener() noexcept;
  Listener(Listener&&) noexcept;
  Listener& operator=(Listener&&) noexcept;
  ~Listener();

  std::string address() const noexcept;  // with the port that was taken
  // The next peer that has authenticated and connected all its lanes.
  Result<Connection> accept(std::chrono::milliseconds patience) noexcept;
  // Connections that ended before they authenticated. Some of them had another token, or another
  // user's secret; `peer` is the address of the last of these.
  struct Refused {
    std::uint64_t count = 0, wrong_token = 0;
    std::string peer;
  };
  Refused refused() const;

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace snug::wire
