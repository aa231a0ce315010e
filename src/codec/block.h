// codec/block.h - one block of elements to one payload, and back.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/kernels.h"
#include "frame/frame.h"

namespace snug::codec {

// Scratch for one pair of blocks; what encode and decode call a workspace.
struct Workspace {
  alignas(64) std::uint8_t planes[8][frame::kMaxBlockElems + kSlackBytes];
  alignas(64) std::uint8_t symbols[2][frame::kMaxBlockElems + kSlackBytes];
  alignas(64) std::uint8_t escapes[2][frame::kMaxBlockElems + kSlackBytes];
  std::uint16_t words[2][frame::kMaxBlockElems + 2 * kSlackBytes];
  alignas(64) std::uint8_t payloads[2][frame::kMaxBlockElems * 8];
};

struct BlockInput {
  const std::uint8_t* src = nullptr;
  std::size_t num_elems = 0;  // 1 to kMaxBlockElems
  DType dtype = DType::kBytes;
};

// Encodes up to two neighbours of one tensor (two at once take less time) into
// workspace.payloads and fills in their index entries; offsets and checksums are left open. A
// codec that does not apply or does not help yields a raw block. `next` is what will be encoded
// next, to prefetch; it may be null.
void encode_blocks(std::span<const BlockInput> inputs, Codec codec, const std::uint8_t* next,
                   frame::Entry (&entries)[2], Workspace& workspace) noexcept;

// One block to decode: `payload` is what the entry describes.
struct BlockJob {
  frame::Entry entry;
  std::uint64_t block_idx = 0;
  const std::uint8_t* payload = nullptr;
  std::size_t num_elems = 0;
  std::uint8_t* dst = nullptr;  // num_elems elements
};

// Checks the checksums and restores one or two blocks.
Status decode_blocks(std::span<const BlockJob> jobs, DType dtype, Workspace& workspace) noexcept;

// The checksum of a payload.
std::uint32_t payload_checksum(const std::uint8_t* payload, std::size_t num_bytes) noexcept;

// Checks the checksum of one payload.
Status check_payload(const frame::Entry& entry, std::uint64_t block_idx,
                     const std::uint8_t* payload) noexcept;

}  // namespace snug::codec
