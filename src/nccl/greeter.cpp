#include "nccl/greeter.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "frame/frame.h"
#include "nccl/log.h"
#include "nccl/tcp_link.h"

namespace snug::nccl {
namespace {

using net::Deadline;

constexpr std::chrono::seconds kHelloTimeout{10};
// Each takes a file descriptor. A peer sends its greeting at once, so it keeps its place only for
// as long as the network needs.
constexpr std::size_t kMaxPending = 64;
constexpr int kMaxWarnings = 8;  // of one listener: strangers must not fill the log either

bool reply_to(const net::Socket& socket) {
  Reply reply{kHandleMagic, kProtocolVersion, frame::kVersion, {}};
  std::strncpy(reply.name, process_name().c_str(), sizeof reply.name - 1);
  // The buffer of a new socket has room for these bytes: no wait.
  return socket.send_all(std::as_bytes(std::span(&reply, 1)), net::after({})).ok();
}

}  // namespace

// Waits for a connection, for bytes of a pending one, or for the earliest deadline.
Status Greeter::wait(Deadline deadline) const {
  std::vector<pollfd> entries{{listener_.socket().fd(), POLLIN, 0}};
  Deadline earliest = deadline;
  for (const Pending& pending : pending_) {
    entries.push_back({pending.socket.fd(), POLLIN, 0});
    earliest = std::min(earliest, pending.deadline);
  }
  const Status s = net::wait_for_any(entries, earliest);
  const bool is_greeting_late = s.code == Code::kTimeout && Deadline::clock::now() < deadline;
  return is_greeting_late ? Status{} : s;
}

void Greeter::warn_of_stranger(const net::Socket& socket) {
  if (++num_strangers_ > kMaxWarnings) return;
  warn(
      "%s connected without Snug's greeting; ignoring it. Is NCCL_NET_PLUGIN=snug set on every "
      "rank?",
      socket.peer_name().c_str());
}

void Greeter::drop_oldest() {
  warn_of_stranger(pending_.front().socket);
  pending_.pop_front();
}

Status Greeter::accept_waiting() {
  for (;;) {
    auto socket = listener_.accept(net::after({}));
    if (socket) {
      if (pending_.size() == kMaxPending) drop_oldest();
      pending_.push_back({std::move(*socket), net::after(kHelloTimeout)});
      return {};
    }
    if (socket.status().code == Code::kTimeout) return {};  // nobody is waiting
    const bool no_descriptors =
        socket.status().code == Code::kIo &&
        (socket.status().found == EMFILE || socket.status().found == ENFILE);
    if (!no_descriptors || pending_.empty()) return socket.status();
    drop_oldest();
  }
}

Greeter::Progress Greeter::read(Pending& pending) {
  const auto missing =
      std::as_writable_bytes(std::span(&pending.hello, 1)).subspan(pending.num_received);
  const ssize_t received =
      ::recv(pending.socket.fd(), missing.data(), missing.size(), MSG_DONTWAIT);
  if (received < 0 && (errno == EAGAIN || errno == EINTR) &&
      std::chrono::steady_clock::now() < pending.deadline)
    return Progress::kWaiting;
  if (received > 0) pending.num_received += static_cast<std::size_t>(received);
  if (received > 0 && pending.num_received < sizeof(Hello)) return Progress::kWaiting;
  if (received <= 0 || pending.hello.magic != kHandleMagic) {
    warn_of_stranger(pending.socket);
    return Progress::kDropped;
  }
  // Another nonce is meant for an earlier listener on this port.
  const bool ours = pending.hello.nonce == nonce_ && reply_to(pending.socket);
  return ours ? Progress::kGreeted : Progress::kDropped;
}

Result<Greeter::Peer> Greeter::next(Deadline deadline) {
  for (;;) {
    if (Status status = wait(deadline); !status.ok()) return status;
    if (Status status = accept_waiting(); !status.ok()) return status;
    for (auto pending = pending_.begin(); pending != pending_.end();) {
      const Progress progress = read(*pending);
      if (progress == Progress::kWaiting) {
        ++pending;
        continue;
      }
      Peer peer{std::move(pending->socket), pending->hello};
      pending = pending_.erase(pending);
      if (progress == Progress::kGreeted) return peer;
    }
  }
}

}  // namespace snug::nccl
