// wire/channel.h - what a transport has to do: move bytes, in order, both ways. And which transport
// an address means.
//
// One thread may send while another receives. Buffers inside a channel are bounded: a sender waits
// when the other side does not read.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "net/socket.h"
#include "snug/status.h"
#include "snug/wire.h"

struct ssl_ctx_st;

namespace snug::wire {

using net::Deadline;
using net::KeepGoing;

class Channel {
 public:
  virtual ~Channel() = default;
  // Completes a channel that was dialled or accepted, which may need bytes from the peer. Comes
  // before all other calls but shut_down. Asks `keep_going` now and then.
  virtual Status open(Deadline /*deadline*/, const KeepGoing& /*keep_going*/) { return {}; }
  // Whether the peer has shown, perhaps before `open` returns, that it may be let in.
  virtual bool has_proved() const noexcept { return false; }
  // Whether `recv` gives nothing but what `send` was given: a checksum would tell nothing more.
  virtual bool authenticates() const noexcept { return false; }
  // All bytes of both pieces, or an error that ends the channel.
  virtual Status send(std::span<const std::byte> head, std::span<const std::byte> body,
                      Deadline deadline) = 0;
  // The same, for a body that nobody needs any more: a channel may encrypt it where it is.
  virtual Status send_and_spoil(std::span<const std::byte> head, std::span<std::byte> body,
                                Deadline deadline) {
    return send(head, body, deadline);
  }
  virtual Status recv(std::span<std::byte> bytes, Deadline deadline) = 0;
  // OK if there is something to read; kTimeout if not by then.
  virtual Status wait_readable(Deadline deadline) = 0;
  // Wakes every thread that waits in this channel, here and at the peer.
  virtual void shut_down() noexcept = 0;
  virtual std::string peer_name() const = 0;
};
using ChannelPtr = std::unique_ptr<Channel>;

// Accepts channels, one after the other. Never waits for bytes of a stranger: Channel::open does.
class ChannelListener {
 public:
  virtual ~ChannelListener() = default;
  virtual Result<ChannelPtr> accept(Deadline deadline) = 0;
  virtual std::string address() const = 0;
};
using ChannelListenerPtr = std::unique_ptr<ChannelListener>;

// Who is let in at an address.
enum class Side { kDials, kListens };
struct Door {
  std::shared_ptr<ssl_ctx_st> tls;  // TCP: whoever knows the token; null: everybody
  bool same_user = false;           // shm: whoever is the same user
};
// The rule of Options::token and Options::insecure. Errors: kUsage, kIo (user_secret).
Result<Door> door_of(Side side, const std::string& address, const Options& options);

Result<ChannelPtr> dial(const std::string& address, const Door& door, Deadline deadline,
                        const KeepGoing& keep_going = {});
Result<ChannelListenerPtr> listen(const std::string& address, const Door& door);

// Shared memory on one host, by name.
Result<ChannelPtr> dial_shm(const std::string& name, const Door& door, Deadline deadline);
Result<ChannelListenerPtr> listen_shm(const std::string& name, const Door& door);

}  // namespace snug::wire
