// net/socket.h - TCP connections with a deadline on everything.
//
// Every call that could wait takes a deadline: no peer, however slow or silent, holds a thread for
// longer. Errors:
//   kTimeout  the deadline passed, or no name server answers
//   kPeer     the connection was refused, reset or closed, or the host is unknown
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

#include "os/descriptor.h"
#include "snug/status.h"

struct pollfd;
struct sockaddr_storage;

namespace snug::net {

using Deadline = std::chrono::steady_clock::time_point;

inline Deadline after(std::chrono::steady_clock::duration wait) {
  return std::chrono::steady_clock::now() + wait;
}

// Called now and then during a wait; false ends it with kIo. Empty: never.
using KeepGoing = std::function<bool()>;

// Until something has happened to one of these; `revents` then say what.
Status wait_for_any(std::span<pollfd> entries, Deadline deadline);

// "host:port", "[::1]:port" or ":port" (the loopback address).
struct Address {
  std::string host;
  std::uint16_t port = 0;
};
Result<Address> parse_address(std::string_view text);
std::string to_string(const Address& address);

// An open connection. The destructor only closes it: data that was not sent is lost.
class Socket {
 public:
  Socket() noexcept = default;
  explicit Socket(int fd) noexcept : fd_(fd) {}

  bool is_open() const noexcept { return fd() >= 0; }
  int fd() const noexcept { return fd_.get(); }
  // Ends both directions, which wakes all threads that wait in this socket.
  void shut_down() const noexcept;

  // All bytes or an error; after an error the position in the stream is unknown.
  Status send_all(std::span<const std::byte> bytes, Deadline deadline) const;
  // Several pieces in one system call. Overwrites `pieces`. `more`: the next call follows at once,
  // so that a packet need not end here.
  Status send_all(std::span<iovec> pieces, Deadline deadline, bool more = false) const;
  Status recv_all(std::span<std::byte> bytes, Deadline deadline) const;
  Status recv_all(std::span<iovec> pieces, Deadline deadline) const;
  // The first `num_bytes` of the pieces, and what there is for the rest of them. Returns how many.
  Result<std::size_t> recv_at_least(std::size_t num_bytes, std::span<iovec> pieces,
                                    Deadline deadline) const;
  // At least one byte; 0 if the peer has closed the connection.
  Result<std::size_t> recv_some(std::span<std::byte> bytes, Deadline deadline) const;
  // Whether the socket has something to read (bytes, or the peer's close).
  Status wait_readable(Deadline deadline, const KeepGoing& keep_going = {}) const;
  Status wait_writable(Deadline deadline, const KeepGoing& keep_going = {}) const;

  // Address of the other end, for messages; "?" if unknown.
  std::string peer_name() const;

 private:
  os::Descriptor fd_;
};

// Tries all addresses of the host. The socket sends small messages at once (TCP_NODELAY).
Result<Socket> connect(const Address& address, Deadline deadline, const KeepGoing& keep_going = {});
Result<Socket> connect(const sockaddr_storage& address, Deadline deadline,
                       const KeepGoing& keep_going = {});

// Accepts connections until closed.
class Listener {
 public:
  // Port 0 takes a free one, which `port` returns.
  static Result<Listener> open(const Address& address);
  static Result<Listener> open(const sockaddr_storage& address);
  Listener() noexcept = default;
  // `socket` listens already.
  explicit Listener(Socket socket, std::uint16_t port = 0) noexcept
      : socket_(std::move(socket)), port_(port) {}

  Result<Socket> accept(Deadline deadline) const;
  std::uint16_t port() const noexcept { return port_; }
  const Socket& socket() const noexcept { return socket_; }

 private:
  Socket socket_;
  std::uint16_t port_ = 0;
};

}  // namespace snug::net
