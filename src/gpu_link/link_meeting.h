// gpu_link/link_meeting.h - how the two ends of a link find each other: over a connection
// that is there already, whose token both have shown, they agree on shared memory.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "gpu_link/link_mailbox.h"
#include "net/descriptor.h"
#include "snug/wire.h"
#include "wire/channel.h"

struct sockaddr_un;

namespace snug::gpu_link {

using net::Deadline;
using net::Descriptor;
using wire::Connection;

// What an engine tells the other one.
using LinkBlob = std::array<std::byte, 192>;

// Shared memory, and a socket that closes with the other process.
class LinkMeeting {
 public:
  // Both sides call this. Errors: kPeer where the peer is on another host, which both ends
  // learn at once; kTimeout, which ends the connection.
  static Result<LinkMeeting> meet(Connection& connection, const LinkBlob& own,
                                  std::chrono::milliseconds timeout);

  LinkMeeting() noexcept = default;
  LinkMeeting(LinkMeeting&& other) noexcept { *this = std::move(other); }
  LinkMeeting& operator=(LinkMeeting&& other) noexcept;
  ~LinkMeeting();

  LinkDirection& outgoing() const {
    return dialled_ ? memory_->from_dialler : memory_->from_listener;
  }
  LinkDirection& incoming() const {
    return dialled_ ? memory_->from_listener : memory_->from_dialler;
  }
  const LinkBlob& peer() const noexcept { return peer_; }
  bool is_same_process() const noexcept { return is_same_process_; }
  // Both sides call this once, before the first message. OK if both can go on.
  Status agree(bool is_ready, std::chrono::milliseconds timeout);
  // kPeer once the other process is gone.
  Status check_peer() const noexcept;

 private:
  Status map(int fd);
  Status dial(const sockaddr_un& address, std::uint32_t length, const std::uint64_t (&secret)[2],
              Deadline deadline);
  Status answer(int client, Deadline deadline);
  static Result<LinkMeeting> go_there(Connection& connection, const std::uint64_t (&secret)[2],
                                      const sockaddr_un& address, std::uint32_t length,
                                      std::chrono::milliseconds timeout);
  static Result<LinkMeeting> wait_here(Connection& connection, int listener,
                                       const std::uint64_t (&secret)[2],
                                       std::chrono::milliseconds timeout);

  LinkMemory* memory_ = nullptr;
  Descriptor socket_;
  bool dialled_ = false, is_same_process_ = false;
  LinkBlob peer_{};
};

}  // namespace snug::gpu_link
