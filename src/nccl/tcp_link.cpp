#include "nccl/tcp_link.h"

#include <netinet/tcp.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <thread>

#include "frame/frame.h"
#include "nccl/comm_error.h"
#include "nccl/log.h"

namespace snug::nccl {
namespace {

using net::Deadline;
using net::Socket;

template <class T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

template <class T>
void set_name(T& message, const std::string& name) {
  std::strncpy(message.name, name.c_str(), sizeof message.name - 1);
}

template <class T>
std::string name_of(const T& message) {
  std::string name(message.name, strnlen(message.name, sizeof message.name));
  for (char& c : name)  // it ends up in JSON and on terminals
    if (c < ' ' || c > '~' || c == '"' || c == '\\') c = '?';
  return name;
}

void set_timeouts(const Socket& socket, const Settings& settings) {
  const auto milliseconds = static_cast<unsigned>(settings.timeout.count());
  const int idle = 30, interval = 10;
  // To notice peers whose machine vanished.
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
}

Socket& slot_of(Link& link, std::size_t socket_idx) {
  return socket_idx == link.data.size() ? link.control : link.data[socket_idx];
}

void compare_frame_versions(Link& link, std::uint32_t theirs) {
  link.same_frames = theirs == frame::kVersion;
  if (!link.same_frames)
    warn("%s writes frames of version %u, this rank of version %u: sending uncompressed. %s",
         link.peer.c_str(), theirs, static_cast<unsigned>(frame::kVersion), kInstallTheSame);
}

Status introduce(const Socket& socket, const Handle& handle, std::uint32_t socket_idx,
                 Deadline deadline) {
  Hello hello{kHandleMagic,
              kProtocolVersion,
              frame::kVersion,
              handle.nonce,
              socket_idx,
              handle.num_sockets,
              {}};
  set_name(hello, process_name());
  return socket.send_all(bytes_of(hello), deadline);
}

ncclResult_t connect_all(const Handle& handle, const Settings& settings, Link& link) {
  sockaddr_storage address{};
  std::memcpy(&address, &handle.address, sizeof handle.address);
  const Deadline deadline = net::after(settings.timeout);
  const auto failed = [&](const Status& status) {
    warn("cannot connect to the peer: %s", to_string(status).c_str());
    return result_of(status);
  };
  link.data.resize(handle.num_sockets);
  for (std::uint32_t i = 0; i <= handle.num_sockets; ++i) {
    auto socket = net::connect(address, deadline);
    if (!socket) return failed(socket.status());
    set_timeouts(*socket, settings);
    if (Status status = introduce(*socket, handle, i, deadline); !status.ok())
      return failed(status);
    slot_of(link, i) = std::move(*socket);
  }
  for (std::uint32_t i = 0; i <= handle.num_sockets; ++i) {
    Reply reply{};
    if (Status status = slot_of(link, i).recv_all(bytes_of(reply), deadline); !status.ok())
      return failed(status);
    link.peer = name_of(reply);
    if (reply.magic != kHandleMagic)
      return failed({Code::kPeer, "the peer's answer is not Snug's"});
    if (reply.protocol != kProtocolVersion) return refuse_protocol(link.peer, reply.protocol);
    if (i == 0) compare_frame_versions(link, reply.frame_version);
  }
  return ncclSuccess;
}

ncclResult_t accept_all(Greeter& greeter, const Settings& settings, Link& link) {
  const auto num_sockets = static_cast<std::size_t>(settings.num_sockets);
  link.data.resize(num_sockets);
  Deadline deadline = Deadline::max();  // only for the first socket
  for (std::size_t missing = num_sockets + 1; missing > 0;) {
    auto peer = greeter.next(deadline);
    if (!peer) {
      if (deadline != Deadline::max())
        warn("cannot accept the peer: %s", to_string(peer.status()).c_str());
      return result_of(peer.status());
    }
    const Hello& hello = peer->hello;
    if (hello.protocol != kProtocolVersion) return refuse_protocol(name_of(hello), hello.protocol);
    if (hello.num_sockets != num_sockets || hello.socket_idx > num_sockets) return ncclRemoteError;
    Socket& slot = slot_of(link, hello.socket_idx);
    if (slot.is_open()) return ncclRemoteError;  // the same socket twice
    slot = std::move(peer->socket);
    set_timeouts(slot, settings);
    if (missing == num_sockets + 1) {
      link.peer = name_of(hello);
      compare_frame_versions(link, hello.frame_version);
      deadline = net::after(settings.timeout);
    }
    --missing;
  }
  return ncclSuccess;
}

// The thread and the caller share the attempt; either may give up first.
std::shared_ptr<LinkAttempt> start(std::function<ncclResult_t(Link&)> work) {
  auto attempt = std::make_shared<LinkAttempt>();
  std::thread([attempt, work = std::move(work)]() mutable {
    attempt->result = work(attempt->link);
    work = nullptr;  // releases the greeter before the result is seen
    attempt->finished.store(true, std::memory_order_release);
  }).detach();
  return attempt;
}

}  // namespace

void Link::shut_down() const noexcept {
  control.shut_down();
  for (const net::Socket& socket : data) socket.shut_down();
}

std::shared_ptr<LinkAttempt> start_connecting(const Handle& handle, const Settings& settings) {
  return start([handle, settings](Link& link) { return connect_all(handle, settings, link); });
}

std::shared_ptr<LinkAttempt> start_accepting(std::shared_ptr<Greeter> greeter,
                                             const Settings& settings) {
  return start([greeter, settings](Link& link) { return accept_all(*greeter, settings, link); });
}

ncclResult_t refuse_protocol(const std::string& peer, std::uint32_t theirs) {
  warn("%s speaks version %u of Snug's protocol, this rank version %u. %s", peer.c_str(), theirs,
       kProtocolVersion, kInstallTheSame);
  return ncclInvalidUsage;
}

std::string process_name() {
  char host[48] = "?";
  ::gethostname(host, sizeof host - 1);
  return std::string(host) + ":" + std::to_string(::getpid());
}

}  // namespace snug::nccl
