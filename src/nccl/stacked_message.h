// nccl/stacked_message.h - what a message looks like on an inner plugin's wire.
//
// Messages of at most kStackMinBytes, and those that do not compress, are sent
// unchanged. Others are a StackHeader and a frame, padded to more than
// kStackMinBytes. A larger message whose bytes happen to begin with the header's
// magic is sent raw behind a header. The receiver can therefore tell them apart by
// size and first bytes. Receives of at most kStackMinBytes use NCCL's own buffer;
// both ends must agree on that limit, so it is no setting.
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

// Of this layout; frames have a version of their own. Version 2 added dtype and codec.
inline constexpr std::uint8_t kStackVersion = 2;

enum class StackKind : std::uint32_t { kRaw = 1, kFrame = 2 };

struct StackHeader {
  std::uint64_t magic;
  StackKind kind;
  DType dtype;  // kFrame: what the frame holds and how, for the receiver's statistics
  Codec codec;
  std::uint16_t zero;
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
