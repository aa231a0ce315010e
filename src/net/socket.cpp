#include "net/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <memory>

namespace snug::net {
namespace {

// Connections that wait to be accepted: hundreds of peers may start at the same moment, each with
// several. Whoever finds no room tries again only after a second.
constexpr int kBacklog = 1024;

Status system_error(const char* what, int error) {
  switch (error) {
    case ECONNREFUSED: return {Code::kPeer, "connection refused: nobody listens there"};
    case ECONNRESET:
    case EPIPE: return {Code::kPeer, "the peer closed the connection"};
    case ETIMEDOUT: return {Code::kTimeout, "the peer does not answer"};
    case EHOSTUNREACH:
    case ENETUNREACH: return {Code::kPeer, "no route to the peer"};
    default: return {Code::kIo, what, kNowhere, kNowhere, static_cast<std::uint64_t>(error)};
  }
}

// Rounded up, so that a wait never ends just before its deadline and spins.
int milliseconds_until(Deadline deadline) {
  using std::chrono::milliseconds;
  const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<milliseconds::rep>(left.count(), 0, INT_MAX));
}

Status wait_for(int fd, short events, Deadline deadline) {
  pollfd entry{fd, events, 0};
  return wait_for_any(std::span(&entry, 1), deadline);
}

// Asks the caller now and then whether to keep waiting.
Status wait_for(int fd, short events, Deadline deadline, const KeepGoing& keep_going) {
  if (!keep_going) return wait_for(fd, events, deadline);
  for (;;) {
    const Deadline look = after(std::chrono::milliseconds(50));
    const Status s = wait_for(fd, events, std::min(look, deadline));
    if (s.code != Code::kTimeout || deadline <= look) return s;
    if (!keep_going()) return {Code::kIo, "stopped by the caller"};
  }
}

bool would_wait(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

// Moves the start of `pieces` past what a call has transferred.
std::span<iovec> drop_front(std::span<iovec> pieces, std::size_t num_bytes) {
  while (!pieces.empty() && num_bytes >= pieces.front().iov_len) {
    num_bytes -= pieces.front().iov_len;
    pieces = pieces.subspan(1);
  }
  if (num_bytes > 0) {
    iovec& front = pieces.front();
    front.iov_base = static_cast<char*>(front.iov_base) + num_bytes;
    front.iov_len -= num_bytes;
  }
  return pieces;
}

msghdr message_of(std::span<iovec> pieces) {
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = std::min<std::size_t>(pieces.size(), IOV_MAX);
  return message;
}

std::size_t bytes_in(std::span<const iovec> pieces) {
  std::size_t sum = 0;
  for (const iovec& piece : pieces) sum += piece.iov_len;
  return sum;
}

// Calls `move` until `num_bytes` of the pieces, or some more, have been sent or received. Returns
// how many.
template <class Move>
Result<std::size_t> move_bytes(int fd, std::span<iovec> pieces, std::size_t num_bytes, short event,
                               const char* what, Deadline deadline, Move move) {
  std::size_t done = 0;
  for (pieces = drop_front(pieces, 0); done < num_bytes;) {
    msghdr message = message_of(pieces);
    const ssize_t moved = move(&message);
    if (moved > 0) {
      done += static_cast<std::size_t>(moved);
      pieces = drop_front(pieces, static_cast<std::size_t>(moved));
    } else if (moved == 0) {
      return Status{Code::kPeer, "the peer closed the connection"};
    } else if (would_wait(errno)) {
      if (Status s = wait_for(fd, event, deadline); !s.ok()) return s;
    } else if (errno != EINTR) {
      return system_error(what, errno);
    }
  }
  return done;
}

socklen_t length_of(const sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

Result<Socket> open_socket(int family) {
  const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return system_error("cannot open a socket", errno);
  return Socket(fd);
}

// Chunks are sent whole, so Nagle's algorithm would only delay the last packet.
void send_at_once(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, FreeAddresses>;

// A name server that does not answer now may answer soon; an unknown host is an error of its own.
Status resolve_error(int error) {
  switch (error) {
    case EAI_AGAIN: return {Code::kTimeout, "no name server answers for the host"};
    case EAI_MEMORY: return {Code::kInternal, "out of memory"};
    case EAI_SYSTEM: return system_error("cannot look up the host", errno);
    default: return {Code::kPeer, "the host is not known by this name"};
  }
}

Result<AddressList> resolve(const Address& address, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  const int error = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) return resolve_error(error);
  return AddressList(found);
}

sockaddr_storage storage_of(const addrinfo& info) {
  sockaddr_storage storage{};
  std::copy_n(reinterpret_cast<const char*>(info.ai_addr), info.ai_addrlen,
              reinterpret_cast<char*>(&storage));
  return storage;
}

std::uint16_t port_of(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

// False for what no name server could know: user@host, 10.0.0.256.
bool could_be_host(const std::string& host) {
  for (const char c : host)
    if (static_cast<unsigned char>(c) <= ' ' || c == 0x7F || c == '/' || c == '@') return false;
  in_addr v4;
  return host.find_first_not_of("0123456789.") != std::string::npos ||
         ::inet_aton(host.c_str(), &v4) == 1;
}

}  // namespace

Status wait_for_any(std::span<pollfd> entries, Deadline deadline) {
  for (;;) {
    const int wait = milliseconds_until(deadline);
    const int ready = ::poll(entries.data(), entries.size(), wait);
    if (ready > 0) return {};  // also for errors, which the next call will name
    if (ready == 0 && wait < INT_MAX) return {Code::kTimeout, "the peer took too long"};
    if (ready < 0 && errno != EINTR) return system_error("cannot wait for the network", errno);
  }
}

Result<Address> parse_address(std::string_view text) {
  const Status bad{Code::kUsage, "an address is HOST:PORT, for example 127.0.0.1:7000"};
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad;
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return Status{Code::kUsage, "an address is HOST:PORT without http://, or [IPV6]:PORT"};
  }
  Address address{std::string(host.empty() ? "127.0.0.1" : host), 0};
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc{} || end != port.data() + port.size() || port.empty()) return bad;
  if (!could_be_host(address.host)) return Status{Code::kUsage, "not the name of a host"};
  return address;
}

std::string to_string(const Address& address) {
  const bool is_v6 = address.host.find(':') != std::string::npos;
  return (is_v6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

void Socket::shut_down() const noexcept {
  if (is_open()) ::shutdown(fd(), SHUT_RDWR);
}

Status Socket::send_all(std::span<const std::byte> bytes, Deadline deadline) const {
  iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return send_all(std::span(&piece, 1), deadline);
}

Status Socket::send_all(std::span<iovec> pieces, Deadline deadline, bool more) const {
  const int flags = MSG_NOSIGNAL | (more ? MSG_MORE : 0);
  return move_bytes(fd(), pieces, bytes_in(pieces), POLLOUT, "cannot send", deadline,
                    [&](msghdr* message) { return ::sendmsg(fd(), message, flags); })
      .status();
}

Status Socket::recv_all(std::span<std::byte> bytes, Deadline deadline) const {
  iovec piece{bytes.data(), bytes.size()};
  return recv_all(std::span(&piece, 1), deadline);
}

Status Socket::recv_all(std::span<iovec> pieces, Deadline deadline) const {
  return recv_at_least(bytes_in(pieces), pieces, deadline).status();
}

Result<std::size_t> Socket::recv_at_least(std::size_t num_bytes, std::span<iovec> pieces,
                                          Deadline deadline) const {
  return move_bytes(fd(), pieces, num_bytes, POLLIN, "cannot receive", deadline,
                    [this](msghdr* message) { return ::recvmsg(fd(), message, 0); });
}

Result<std::size_t> Socket::recv_some(std::span<std::byte> bytes, Deadline deadline) const {
  for (;;) {
    const ssize_t received = ::recv(fd(), bytes.data(), bytes.size(), 0);
    if (received >= 0) return static_cast<std::size_t>(received);
    if (would_wait(errno)) {
      if (Status status = wait_for(fd(), POLLIN, deadline); !status.ok()) return status;
    } else if (errno != EINTR) {
      return system_error("cannot receive", errno);
    }
  }
}

Status Socket::wait_readable(Deadline deadline, const KeepGoing& keep_going) const {
  return wait_for(fd(), POLLIN, deadline, keep_going);
}

Status Socket::wait_writable(Deadline deadline, const KeepGoing& keep_going) const {
  return wait_for(fd(), POLLOUT, deadline, keep_going);
}

std::string Socket::peer_name() const {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char host[INET6_ADDRSTRLEN] = "?";
  if (::getpeername(fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return host;
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof host, nullptr,
                    0, NI_NUMERICHOST) != 0) {
    return host;
  }
  return to_string(Address{host, port_of(address)});
}

Result<Socket> connect(const sockaddr_storage& address, Deadline deadline,
                       const KeepGoing& keep_going) {
  Result<Socket> socket = open_socket(address.ss_family);
  if (!socket) return socket.status();
  const int fd = socket->fd();
  send_at_once(fd);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), length_of(address)) == 0) {
    return socket;
  }
  if (errno != EINPROGRESS && errno != EINTR) return system_error("cannot connect", errno);
  if (Status s = wait_for(fd, POLLOUT, deadline, keep_going); !s.ok()) return s;
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return system_error("cannot connect", error);
  return socket;
}

Result<Socket> connect(const Address& address, Deadline deadline, const KeepGoing& keep_going) {
  Result<AddressList> list = resolve(address, 0);
  if (!list) return list.status();
  Status last{Code::kPeer, "the host has no address"};
  for (const addrinfo* info = list->get(); info != nullptr; info = info->ai_next) {
    Result<Socket> socket = connect(storage_of(*info), deadline, keep_going);
    if (socket) return socket;
    last = socket.status();
    if (keep_going && !keep_going()) break;
  }
  return last;
}

Result<Listener> Listener::open(const sockaddr_storage& address) {
  Result<Socket> socket = open_socket(address.ss_family);
  if (!socket) return socket.status();
  const int fd = socket->fd();
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), length_of(address)) != 0) {
    if (errno == EADDRINUSE) return Status{Code::kUsage, "the port is in use; choose another"};
    if (errno == EADDRNOTAVAIL) return Status{Code::kUsage, "the address is not of this machine"};
    return system_error("cannot take the address", errno);
  }
  if (::listen(fd, kBacklog) != 0) return system_error("cannot listen", errno);
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    return system_error("cannot read the port", errno);
  }
  return Listener(std::move(*socket), port_of(bound));
}

Result<Listener> Listener::open(const Address& address) {
  Result<AddressList> list = resolve(address, AI_PASSIVE);
  if (!list) return Status{Code::kUsage, list.status().what};  // of this host: a typing error
  return open(storage_of(**list));
}

Result<Socket> Listener::accept(Deadline deadline) const {
  for (;;) {
    const int fd = ::accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      send_at_once(fd);
      return Socket(fd);
    }
    if (would_wait(errno)) {
      if (Status status = wait_for(socket_.fd(), POLLIN, deadline); !status.ok()) return status;
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return system_error("cannot accept", errno);
    }
  }
}

}  // namespace snug::net
