// wire/protocol.h - the headers of docs/wire.md: on the control channel and in front of every
// chunk. Little-endian, as in memory.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "snug/status.h"
#include "snug/wire.h"

namespace snug::wire {

static_assert(std::endian::native == std::endian::little, "headers are copied as they are");

inline constexpr std::uint32_t kProtocolVersion = 3;
inline constexpr std::uint32_t kControlMagic = 0x43574E53;  // "SNWC"
inline constexpr std::uint32_t kChunkMagic = 0x44574E53;    // "SNWD"
inline constexpr std::size_t kMaxControlBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxNoteBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxExtents = std::size_t{1} << 16;
inline constexpr int kMaxLanes = 16;
inline constexpr std::size_t kMaxUnreadNotes = 64;

enum class ControlType : std::uint32_t {
  kPing = 1,      // shows that this side is alive
  kOffer = 2,     // sender: a message
  kAccept = 3,    // receiver: send it; hashes of chunks that it already has
  kProgress = 4,  // receiver: sums of what arrived
  kDone = 5,      // receiver: all bytes are in their place and verified
  kFail = 6,      // either: the connection ends; the payload says why
  kNote = 7,      // text of the application
};

struct ControlHeader {
  std::uint32_t magic = kControlMagic;
  ControlType type = ControlType::kPing;
  std::uint64_t message = 0;  // its number
  std::uint64_t payload_bytes = 0;
  std::uint64_t payload_hash = 0;  // XXH3-64
  std::uint64_t header_hash = 0;   // XXH3-64 of what is before it
};
static_assert(sizeof(ControlHeader) == 40);

// Payload of kOffer, followed by num_extents times OfferExtent.
struct OfferHead {
  std::uint64_t tag = 0;
  std::uint64_t num_bytes = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t num_extents = 0;
};
struct OfferExtent {
  std::uint64_t num_bytes = 0;
  std::uint64_t dtype = 0;
};

// Payload of kProgress: sums over the life of the connection.
struct ReceiveProgress {
  std::uint64_t active_nanoseconds = 0;  // while chunks were arriving
  std::uint64_t raw_bytes[kNumModes] = {};
  std::uint64_t wire_bytes[kNumModes] = {};
};

// Payload of kFail.
struct Failure {
  std::uint64_t code = 0;  // snug::Code of the side that gave up
};

enum class PayloadKind : std::uint8_t {
  kRaw = 0,
  kFrame = 1,  // one Snug frame
  kZstd = 2,   // one zstd frame; for extents of plain bytes
  kKnown = 3,  // nothing: the receiver has this chunk already
};

struct LaneHeader {
  std::uint32_t magic = kChunkMagic;
  PayloadKind kind = PayloadKind::kRaw;
  Mode mode = Mode::kRaw;  // what the sender tried; for statistics
  std::uint8_t has_raw_hash = 1;
  std::uint8_t reserved = 0;
  std::uint64_t message = 0;
  std::uint64_t chunk_idx = 0;
  std::uint64_t raw_bytes = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t raw_hash = 0;  // XXH3-64 of the chunk before encoding
  std::uint64_t reserved2 = 0;
  std::uint64_t header_hash = 0;
};
static_assert(sizeof(LaneHeader) == 64);

std::uint64_t hash_bytes(std::span<const std::byte> bytes) noexcept;

// `seal` sets the hash of a header; `check` checks it, and the magic.
void seal(ControlHeader& header) noexcept;
void seal(LaneHeader& header) noexcept;
Status check(const ControlHeader& header) noexcept;
Status check(const LaneHeader& header) noexcept;

template <class T>
std::span<const std::byte> bytes_of(const T& value) noexcept {
  return std::as_bytes(std::span<const T, 1>(&value, 1));
}
template <class T>
std::span<std::byte> writable_bytes_of(T& value) noexcept {
  return std::as_writable_bytes(std::span<T, 1>(&value, 1));
}

// The chunks of a message: every extent is cut separately.
struct ChunkPlace {
  std::uint64_t offset = 0;  // in the message
  std::size_t num_bytes = 0;
  DType dtype = DType::kBytes;
};
class ChunkTable {
 public:
  ChunkTable() noexcept = default;
  // kUsage if a limit is exceeded.
  static Result<ChunkTable> make(std::vector<Extent> extents, std::size_t chunk_bytes);

  std::uint64_t num_chunks() const noexcept { return num_chunks_; }
  std::uint64_t num_bytes() const noexcept { return num_bytes_; }
  std::size_t chunk_bytes() const noexcept { return chunk_bytes_; }
  std::span<const Extent> extents() const noexcept { return extents_; }
  ChunkPlace at(std::uint64_t chunk_idx) const noexcept;

 private:
  struct Start {
    std::uint64_t chunk_idx, offset;
  };
  std::vector<Extent> extents_;  // none of them empty
  std::vector<Start> starts_;
  std::uint64_t num_chunks_ = 0, num_bytes_ = 0;
  std::size_t chunk_bytes_ = 0;
};

std::string offer_payload(std::uint64_t tag, const ChunkTable& table);
struct Offer {
  std::uint64_t tag = 0;
  ChunkTable table;
};
Result<Offer> parse_offer(std::span<const std::byte> payload);

}  // namespace snug::wire
