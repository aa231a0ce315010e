// wire/handshake.h - the first message on every channel, once the peer has been let in: the version
// of the protocol, and the session that the channel belongs to.
#pragma once
#include <array>
#include <cstdint>

#include "snug/status.h"
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

// A listener that is flooded sends even those away who may come in: trying again may help.
inline constexpr char kSentAwayText[] = "the other side closed the connection during the greeting";
inline constexpr Status kSentAway{Code::kPeer, kSentAwayText};

inline constexpr char kAnotherTokenText[] =
    "the other side has another token, or runs as another user without one";
inline constexpr Status kAnotherToken{Code::kPeer, kAnotherTokenText};
inline constexpr char kNoTlsText[] =
    "the other side does not encrypt: it runs with --insecure, or is no Snug";
inline constexpr char kTlsText[] =
    "the other side encrypts, or is no Snug; --insecure is for both sides or neither";
inline constexpr char kNoSnugText[] = "the other side does not speak Snug's protocol";

// Whether one of the two sides must be started in another way before they can connect.
constexpr bool is_mismatch(const Status& status) noexcept {
  const char* const why = status.what;
  return why == kAnotherTokenText || why == kNoTlsText || why == kTlsText || why == kNoSnugText;
}

// The side that dialled. Errors: kUnsupportedVersion, kPeer (no Snug, refused), kTimeout, kIo
// (`keep_going` returned false).
Status greet(Channel& channel, const ChannelId& id, Deadline deadline,
             const KeepGoing& keep_going = {});
// The side that listened.
Result<ChannelId> receive_greeting(Channel& channel, Deadline deadline);

}  // namespace snug::wire
