// nccl/stacked_message.h - what a message looks like on an inner plugin's wire.
//
// Messages of at most kStackMinBytes, and those that do not compress, are the
// user's bytes as they are. Others are a StackHeader and a frame, filled up to
// more than kStackMinBytes. Larger messages whose bytes happen to begin with the
// header's magic are sent behind a header, too. So whatever arrives can be told
// apart by its size and its first bytes. Receives of at most kStackMinBytes go
// straight into NCCL's buffer; hence that limit is no setting: both ends must
// agree on it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "nccl/chunk_codec.h"

namespace snug::nccl {

inline constexpr std::size_t kStackMinBytes = 64 << 10;
inline constexpr std::uint64_t kStackMagic =
    0x9C'31'4B'43'54'53'4E'53;  // "SNSTCK1" and a byte no text has

// Of what is described here; frames have a version of their own.
inline constexpr std::uint8_t kStackVersion = 1;

enum class StackKind : std::uint32_t { kRaw = 1, kFrame = 2 };

struct StackHeader {
  std::uint64_t magic;
  StackKind kind;
  std::uint32_t zero;
  std::uint64_t message_bytes;
  std::uint64_t payload_bytes;
  std::uint64_t reserved[4];  // the frame starts on a cache line
};
static_assert(sizeof(StackHeader) == 64);

inline std::size_t stacked_bound(std::size_t message_bytes) {
  return sizeof(StackHeader) + chunk_frame_bound(message_bytes);
}

// Only messages of more than kStackMinBytes can have a header.
inline bool has_stack_magic(std::span<const std::byte> bytes) {
  std::uint64_t magic = 0;
  if (bytes.size() <= kStackMinBytes) return false;
  std::memcpy(&magic, bytes.data(), sizeof magic);
  return magic == kStackMagic;
}

}  // namespace snug::nccl
