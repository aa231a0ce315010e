// net/socket.h - TCP connections with a deadline on everything.
//
// Every call that could wait takes the moment at which it gives up: no peer,
// however slow or silent, holds a thread for longer. Errors:
//   kTimeout  the deadline passed, or no name server answers
//   kPeer     the connection was refused, reset or closed, or nobody knows the host
//   kIo       the system refused; `found` holds errno
//   kUsage    an address that cannot be understood
#pragma once
#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "snug/status.h"

struct sockaddr_storage;

namespace snug::net {

using Deadline = std::chrono::steady_clock::time_point;

inline Deadline after(std::chrono::steady_clock::duration wait) {
  return std::chrono::steady_clock::now() + wait;
}

// Asked now and then during a wait; false ends it with kIo. Empty: wait on.
using KeepGoing = std::function<bool()>;

// "host:port", "[::1]:port" or ":port" (the loopback address).
struct Address {
  std::string host;
  std::uint16_t port = 0;
};
Result<Address> parse_address(std::string_view text);
std::string to_string(const Address& address);

// An open connection. Closing is all a destructor does: half-sent data is lost.
class Socket {
 public:
  Socket() noexcept = default;
  explicit Socket(int fd) noexcept : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }

  bool is_open() const noexcept { return fd_ >= 0; }
  int fd() const noexcept { return fd_; }
  int release() noexcept;
  void close() noexcept;
  // Ends both directions, which wakes every thread that waits in this socket.
  void shut_down() const noexcept;

  // All bytes or an error; after an error the stream is at an unknown place.
  Status send_all(std::span<const std::byte> bytes, Deadline deadline) const;
  // Several pieces in one call to the system. Uses up `pieces`.
  Status send_all(std::span<iovec> pieces, Deadline deadline) const;
  Status recv_all(std::span<std::byte> bytes, Deadline deadline) const;
  Status recv_all(std::span<iovec> pieces, Deadline deadline) const;
  // At least one byte, unless the peer has closed in good order: then 0.
  Result<std::size_t> recv_some(std::span<std::byte> bytes, Deadline deadline) const;
  // Whether the socket has something to read (bytes, or the peer's close).
  Status wait_readable(Deadline deadline) const;

  // Where the other end is, for messages; "?" if the system does not know.
  std::string peer_name() const;

 private:
  int fd_ = -1;
};

// Tries every address the name resolves to. The socket sends small messages at once.
Result<Socket> connect(const Address& address, Deadline deadline, const KeepGoing& keep_going = {});
Result<Socket> connect(const sockaddr_storage& address, Deadline deadline,
                       const KeepGoing& keep_going = {});

// Accepts connections until closed.
class Listener {
 public:
  // Port 0 takes a free one; `port` tells which.
  static Result<Listener> open(const Address& address);
  static Result<Listener> open(const sockaddr_storage& address);

  Result<Socket> accept(Deadline deadline) const;
  std::uint16_t port() const noexcept { return port_; }
  const Socket& socket() const noexcept { return socket_; }

 private:
  Socket socket_;
  std::uint16_t port_ = 0;
};

}  // namespace snug::net
