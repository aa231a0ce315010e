// nccl/tcp_protocol.h - the bytes that two plugins exchange.
//
// A connection carries messages one way: one control socket and several data
// sockets. Every socket starts with a Hello and its Reply; then chunks follow,
// each a ChunkHeader and its payload:
//   control socket  messages of at most min_bytes, whole and raw, and "open"
//                   notes: the sender begins to use a data socket
//   data sockets    chunks of larger messages, raw or as Snug frames, in any
//                   order over any socket
// A message is named by its tag and its number among the messages of that tag, so
// that chunks find their receive over any socket. Raw payloads rely on TCP's
// checksum; frames have their own.
#pragma once
#include <netinet/in.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "nccl/net_abi.h"
#include "snug/tensor.h"

namespace snug::nccl {

static_assert(std::endian::native == std::endian::little, "the structs below travel as they are");

// The handshake refuses peers of another protocol version with a message; peers
// with another frame version exchange raw chunks. Version 2 added dtype and codec
// to ChunkHeader.
inline constexpr std::uint32_t kProtocolVersion = 2;
inline constexpr std::uint64_t kHandleMagic = 0x31'4C'43'43'4E'47'4E'53;  // "SNGNCCL1"
inline constexpr std::uint32_t kChunkMagic = 0x43'47'4E'53;               // "SNGC"

// What listen() gives NCCL for the peer.
struct Handle {
  std::uint64_t magic;
  std::uint32_t protocol;
  std::uint32_t num_sockets;  // data sockets
  std::uint64_t nonce;        // names the listener
  std::uint64_t connect_id;   // 0 on arrival; the connecting side numbers its attempts
  sockaddr_in6 address;       // sockaddr_in for IPv4
};
static_assert(sizeof(Handle) <= NCCL_NET_HANDLE_MAXSIZE);

struct Hello {
  std::uint64_t magic;
  std::uint32_t protocol;
  std::uint32_t frame_version;
  std::uint64_t nonce;
  std::uint32_t socket_idx;  // num_sockets: the control socket
  std::uint32_t num_sockets;
  char name[64];  // host and process, for statistics and messages
};
static_assert(sizeof(Hello) == 96);

struct Reply {
  std::uint64_t magic;
  std::uint32_t protocol;
  std::uint32_t frame_version;
  char name[64];
};
static_assert(sizeof(Reply) == 80);

enum class ChunkKind : std::uint8_t { kRaw = 1, kFrame = 2, kOpen = 3 };

struct ChunkHeader {
  std::uint32_t magic;
  ChunkKind kind;
  DType dtype;  // kFrame: what the frame holds and how, for the receiver's statistics
  Codec codec;
  std::uint8_t zero;
  std::int32_t tag;
  std::uint32_t number;         // of the message among those of its tag
  std::uint64_t message_bytes;  // kOpen: the data socket
  std::uint64_t offset;         // of this piece in the message
  std::uint32_t data_bytes;
  std::uint32_t payload_bytes;
};
static_assert(sizeof(ChunkHeader) == 40);

// Counts the messages of each tag. NCCL uses one tag per pair of ranks, so a list is fastest.
class MessageNumbers {
 public:
  std::uint32_t next(int tag) {
    for (auto& [known, count] : counts_)
      if (known == tag) return count++;
    counts_.emplace_back(tag, 1);
    return 0;
  }

 private:
  std::vector<std::pair<int, std::uint32_t>> counts_;
};

}  // namespace snug::nccl
