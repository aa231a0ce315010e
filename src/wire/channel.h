// wire/channel.h - what a transport has to do: move bytes, in order, both ways.
//
// One thread may send while another receives. Buffers inside a channel are
// bounded: a sender waits when the other side does not read.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "net/socket.h"
#include "snug/status.h"

namespace snug::wire {

using net::Deadline;
using net::KeepGoing;

class Channel {
 public:
  virtual ~Channel() = default;
  // Of a channel that was accepted: completes that, which may take a word of the peer.
  // Before any other call but shut_down.
  virtual Status open(Deadline /*deadline*/) { return {}; }
  // All bytes of both pieces, or an error that ends the channel.
  virtual Status send(std::span<const std::byte> head, std::span<const std::byte> body,
                      Deadline deadline) = 0;
  virtual Status recv(std::span<std::byte> bytes, Deadline deadline) = 0;
  // OK if there is something to read; kTimeout if not by then.
  virtual Status wait_readable(Deadline deadline) = 0;
  // Wakes every thread that waits in this channel, here and at the peer.
  virtual void shut_down() noexcept = 0;
  virtual std::string peer_name() const { return "?"; }
};

using ChannelPtr = std::unique_ptr<Channel>;
// Opens one more channel to the same peer.
using Dial = std::function<Result<ChannelPtr>(Deadline deadline)>;

ChannelPtr make_tcp_channel(net::Socket socket);

}  // namespace snug::wire
