#include "wire/handshake.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "wire/protocol.h"
#include "wire/sha256.h"

namespace snug::wire {
namespace {

using Magic = std::array<char, 8>;
constexpr Magic kMagic = {'S', 'N', 'U', 'G', 'W', 'I', 'R', 'E'};
constexpr Status kStranger{Code::kPeer, "the other side does not speak Snug's protocol"};
using Nonce = std::array<std::uint8_t, 32>;

struct ClientHello {
  Magic magic;
  std::uint32_t version;
  std::uint16_t channel_idx, num_lanes;
  SessionId session;
  Nonce nonce;
};
static_assert(sizeof(ClientHello) == 64);

struct ServerHello {
  Magic magic;
  std::uint32_t version;
  std::uint32_t reserved;
  Nonce nonce;
  Digest proof;
};
static_assert(sizeof(ServerHello) == 80);

template <class Bytes>
Bytes random_bytes() {
  std::random_device random;
  Bytes bytes;
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

// Binds the token to this channel, both nonces and one direction, against replay.
Digest proof_of(const std::string& token, char side, const ClientHello& client,
                const Nonce& server_nonce) {
  std::uint8_t message[1 + sizeof client + sizeof server_nonce];
  message[0] = static_cast<std::uint8_t>(side);
  std::memcpy(message + 1, &client, sizeof client);
  std::memcpy(message + 1 + sizeof client, server_nonce.data(), server_nonce.size());
  return hmac_sha256(std::as_bytes(std::span(token)), std::as_bytes(std::span(message)));
}

Status check_version(const Magic& magic, std::uint32_t version) {
  if (magic != kMagic) return kStranger;
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

SessionId random_session() { return random_bytes<SessionId>(); }

Status greet(Channel& channel, const ChannelId& id, const std::string& token, Deadline deadline,
             const KeepGoing& keep_going) {
  const ClientHello hello{kMagic,       kProtocolVersion, id.channel_idx,
                          id.num_lanes, id.session,       random_bytes<Nonce>()};
  if (Status s = channel.send(bytes_of(hello), {}, deadline); !s.ok()) return s;
  ServerHello answer;
  if (Status s = receive_while(channel, writable_bytes_of(answer), deadline, keep_going); !s.ok())
    return s;
  if (Status s = check_version(answer.magic, answer.version); !s.ok()) return s;
  if (!equal_in_constant_time(answer.proof, proof_of(token, 'S', hello, answer.nonce)))
    return {Code::kPeer, "the other side has another token"};
  const Digest proof = proof_of(token, 'C', hello, answer.nonce);
  if (Status s = channel.send(bytes_of(proof), {}, deadline); !s.ok()) return s;
  Magic welcome;
  if (Status s = receive_while(channel, writable_bytes_of(welcome), deadline, keep_going); !s.ok())
    return s;
  return welcome == kMagic ? Status{} : kStranger;
}

Result<ChannelId> receive_greeting(Channel& channel, const std::string& token, Deadline deadline) {
  ClientHello hello;
  if (Status s = channel.recv(writable_bytes_of(hello), deadline); !s.ok()) return s;
  ServerHello answer{kMagic, kProtocolVersion, 0, random_bytes<Nonce>(), {}};
  answer.proof = proof_of(token, 'S', hello, answer.nonce);
  const Status version = check_version(hello.magic, hello.version);
  // A peer of another version learns which one this is.
  if (version.ok() || version.code == Code::kUnsupportedVersion)
    if (Status s = channel.send(bytes_of(answer), {}, deadline); !s.ok()) return s;
  if (!version.ok()) return version;
  if (hello.num_lanes < 1 || hello.num_lanes > kMaxLanes || hello.channel_idx > hello.num_lanes)
    return Status{Code::kPeer, "the peer wants an impossible number of lanes"};
  Digest proof;
  if (Status s = channel.recv(writable_bytes_of(proof), deadline); !s.ok()) return s;
  if (!equal_in_constant_time(proof, proof_of(token, 'C', hello, answer.nonce)))
    return Status{Code::kPeer, "the peer has another token"};
  if (Status s = channel.send(bytes_of(kMagic), {}, deadline); !s.ok()) return s;
  return ChannelId{hello.session, hello.channel_idx, hello.num_lanes};
}

}  // namespace snug::wire
