// gpu_link/link_meeting.h - how the two ends of a link find each other: over a connection whose
// token both have proved to know, they agree on shared memory.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "gpu_link/link_mailbox.h"
#include "net/local_peer.h"
#include "snug/wire.h"

namespace snug::gpu_link {

using wire::Connection;

// What an engine tells the other one.
using LinkBlob = std::array<std::byte, 192>;

// Shared memory, and a socket that closes when the other process ends.
class LinkMeeting {
 public:
  // Both sides call this. Errors: kPeer where the peer is on another host, which both ends learn at
  // once; kTimeout, which ends the connection.
  static Result<LinkMeeting> meet(Connection& connection, const LinkBlob& own,
                                  std::chrono::milliseconds timeout);

  LinkDirection& outgoing() const { return dialled_ ? both().from_dialler : both().from_listener; }
  LinkDirection& incoming() const { return dialled_ ? both().from_listener : both().from_dialler; }
  const LinkBlob& peer() const noexcept { return peer_; }
  bool is_same_process() const noexcept { return is_same_process_; }
  // Both sides call this once, before the first message. OK if both can go on.
  Status agree(bool is_ready, std::chrono::milliseconds timeout);
  // kPeer once the other process is gone.
  Status check_peer() const noexcept;

 private:
  using Secret = std::array<std::uint64_t, 2>;
  LinkMemory& both() const { return *memory_.as<LinkMemory>(); }
  Status connect(const std::string& name, const Secret& secret, net::Deadline deadline);
  Status answer(net::Socket client, net::Deadline deadline);
  static Result<LinkMeeting> dial(Connection& connection, const std::string& name,
                                  const Secret& secret, std::chrono::milliseconds timeout);
  static Result<LinkMeeting> wait(Connection& connection, const net::Listener& listener,
                                  const Secret& secret, std::chrono::milliseconds timeout);

  net::SharedMemory memory_;
  net::Socket socket_;
  bool dialled_ = false, is_same_process_ = false;
  LinkBlob peer_{};
};

}  // namespace snug::gpu_link
