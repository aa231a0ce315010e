// wire/handshake.h - how a channel starts: versions, the session it belongs to, and the proof that
// both sides know the token, which itself never travels.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "wire/channel.h"

namespace snug::wire {

using SessionId = std::array<std::uint8_t, 16>;

// Channel 0 of a session is the control channel, 1 to num_lanes the lanes.
struct ChannelId {
  SessionId session{};
  std::uint16_t channel_idx = 0;
  std::uint16_t num_lanes = 0;
};

SessionId random_session();

// The side that dialled. Errors: kUnsupportedVersion, kPeer (another token, no Snug, refused),
// kTimeout, kIo (`keep_going` returned false).
Status greet(Channel& channel, const ChannelId& id, const std::string& token, Deadline deadline,
             const KeepGoing& keep_going = {});
// The side that listened; the peer knows the token if this succeeds.
Result<ChannelId> receive_greeting(Channel& channel, const std::string& token, Deadline deadline);

}  // namespace snug::wire
