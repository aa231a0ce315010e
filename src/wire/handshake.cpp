#include "wire/handshake.h"

#include <algorithm>

#include "os/random.h"
#include "wire/protocol.h"

namespace snug::wire {
namespace {

using Magic = std::array<char, 8>;
constexpr Magic kMagic = {'S', 'N', 'U', 'G', 'W', 'I', 'R', 'E'};

struct Hello {
  Magic magic = kMagic;
  std::uint32_t version = kProtocolVersion;
  std::uint16_t channel_idx = 0, num_lanes = 0;
  SessionId session{};
};
static_assert(sizeof(Hello) == 32);

struct Welcome {
  Magic magic = kMagic;
  std::uint32_t version = kProtocolVersion;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(Welcome) == 16);

Status check_version(const Magic& magic, std::uint32_t version) {
  if (magic != kMagic) return {Code::kPeer, kNoSnugText};
  if (version == kProtocolVersion) return {};
  constexpr char kText[] = "the other side speaks another version of the protocol";
  return {Code::kUnsupportedVersion, kText, kNowhere, kNowhere, version, kProtocolVersion};
}

// Byte by byte, so that a slow server cannot hold a caller who wants to stop.
Status receive_while(Channel& channel, std::span<std::byte> bytes, Deadline deadline,
                     const KeepGoing& keep_going) {
  while (!bytes.empty()) {
    const Deadline look = net::after(std::chrono::milliseconds(50));
    const Status s = channel.wait_readable(std::min(look, deadline));
    if (s.ok()) {
      if (Status received = channel.recv(bytes.first(1), deadline); !received.ok()) return received;
      bytes = bytes.subspan(1);
    } else if (s.code != Code::kTimeout || deadline <= look) {
      return s;
    }
    if (keep_going && !keep_going()) return {Code::kIo, "stopped by the caller"};
  }
  return {};
}

}  // namespace

SessionId random_session() { return os::random_value<SessionId>(); }

Status greet(Channel& channel, const ChannelId& id, Deadline deadline,
             const KeepGoing& keep_going) {
  Hello hello;
  hello.channel_idx = id.channel_idx;
  hello.num_lanes = id.num_lanes;
  hello.session = id.session;
  if (Status s = channel.send(bytes_of(hello), {}, deadline); !s.ok()) return s;
  Welcome welcome;
  const Status s = receive_while(channel, writable_bytes_of(welcome), deadline, keep_going);
  if (s.code == Code::kPeer) return kSentAway;
  return s.ok() ? check_version(welcome.magic, welcome.version) : s;
}

Result<ChannelId> receive_greeting(Channel& channel, Deadline deadline) {
  Hello hello;
  if (Status s = channel.recv(writable_bytes_of(hello), deadline); !s.ok()) return s;
  const Status version = check_version(hello.magic, hello.version);
  if (version.ok() &&
      (hello.num_lanes < 1 || hello.num_lanes > kMaxLanes || hello.channel_idx > hello.num_lanes))
    return Status{Code::kPeer, "the peer wants an impossible number of lanes"};
  // A peer of another version learns which one this is.
  if (version.ok() || version.code == Code::kUnsupportedVersion)
    if (Status s = channel.send(bytes_of(Welcome{}), {}, deadline); !s.ok()) return s;
  if (!version.ok()) return version;
  return ChannelId{hello.session, hello.channel_idx, hello.num_lanes};
}

}  // namespace snug::wire
