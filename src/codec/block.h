// codec/block.h - one block of elements to one payload, and back.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/kernels.h"
#include "frame/frame.h"

namespace snug::codec {

// Scratch for one block at a time; what encode and decode call a workspace.
struct Workspace {
  alignas(64) std::uint8_t planes[8][frame::kMaxBlockElems + kSlackBytes];
  alignas(64) std::uint8_t symbols[2][frame::kMaxBlockElems + kSlackBytes];
  alignas(64) std::uint8_t escapes[frame::kMaxBlockElems + kSlackBytes];
  std::uint16_t words[frame::kMaxBlockElems + 2 * kSlackBytes];
};

// Writes the payload of `n` elements (1 to kMaxBlockElems) at `src` into dst,
// which holds max_payload(n) bytes. Returns the index entry, offset left open.
// A codec that does not apply or does not help yields a raw block.
frame::Entry encode_block(const std::uint8_t* src, std::size_t n, DType dtype, Codec codec,
                          std::uint8_t* dst, Workspace& workspace) noexcept;

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

// Checks the checksum of one payload.
Status check_payload(const frame::Entry& entry, std::uint64_t block_idx,
                     const std::uint8_t* payload) noexcept;

}  // namespace snug::codec
