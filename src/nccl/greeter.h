// nccl/greeter.h - tells peers from strangers on a listening port.
//
// Everybody who connects is greeted side by side, so that silent strangers delay no peer.
#pragma once
#include <deque>

#include "nccl/tcp_protocol.h"
#include "net/socket.h"

namespace snug::nccl {

class Greeter {
 public:
  Greeter(net::Listener listener, std::uint64_t nonce) noexcept
      : listener_(std::move(listener)), nonce_(nonce) {}

  struct Peer {
    net::Socket socket;
    Hello hello;  // of this nonce; the rest is the peer's word
  };
  // Waits for the next socket that names the nonce, and replies to it. For one thread at a time.
  Result<Peer> next(net::Deadline deadline);

  // Ends `next`, now and later. From any thread.
  void shut_down() const noexcept { listener_.socket().shut_down(); }

 private:
  // A connection whose greeting has not arrived in full.
  struct Pending {
    net::Socket socket;
    net::Deadline deadline;
    Hello hello{};
    std::size_t num_received = 0;
  };
  enum class Progress { kWaiting, kGreeted, kDropped };

  Status wait(net::Deadline deadline) const;
  Status accept_waiting();
  void warn_of_stranger(const net::Socket& socket);
  void drop_oldest();
  Progress read(Pending& pending);

  net::Listener listener_;
  std::uint64_t nonce_;
  std::deque<Pending> pending_;  // oldest first
  int num_strangers_ = 0;
};

}  // namespace snug::nccl
