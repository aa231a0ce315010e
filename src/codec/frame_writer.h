// codec/frame_writer.h - one tensor to one frame, two blocks at a time.
//
// Threads encode pairs of blocks in any order and give them their places in that of the tensor,
// so that the bytes do not depend on the threads. The caller moves the payloads, to memory or
// to a file; the writer has the header and the index.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/block.h"
#include "frame/frame.h"

namespace snug::codec {

// One or two neighbours, coded; their payloads are in the workspace.
struct CodedPair {
  std::uint64_t first_block = 0;
  std::size_t num_blocks = 0;
  frame::Entry entries[2];  // offsets and checksums are still open

  std::uint64_t num_bytes() const noexcept { return entries[0].num_bytes + entries[1].num_bytes; }
};

class FrameWriter {
 public:
  // `head`, header.payload_start() bytes, receives header and index.
  FrameWriter(const frame::Header& header, Codec codec, std::span<std::byte> head) noexcept
      : header_(header), codec_(codec), head_(head), blocks_left_(header.num_blocks()) {}

  const frame::Header& header() const noexcept { return header_; }

  // A tensor without elements has one pair, of no blocks.
  std::uint64_t num_pairs() const noexcept {
    return header_.num_blocks() == 0 ? 1 : (header_.num_blocks() + 1) / 2;
  }

  // Encodes the pair whose elements start at `src`. `next` is where the elements of the next pair
  // are, as a hint to fetch them meanwhile, or null.
  CodedPair encode(std::uint64_t pair_idx, const std::uint8_t* src, const std::uint8_t* next,
                   Workspace& workspace) const noexcept;

  // Enters a pair with its checksums into the index; its payloads are `offset` bytes behind the
  // start of the frame. True for the last call of all: header and index are now complete.
  bool enter(CodedPair& coded, std::uint64_t offset) noexcept;

  // Of a complete frame; 0 before.
  std::uint64_t frame_bytes() const noexcept { return blocks_left_ == 0 ? header_.frame_bytes : 0; }

 private:
  frame::Header header_;
  const Codec codec_;
  const std::span<std::byte> head_;
  std::atomic<std::uint64_t> blocks_left_;
};

}  // namespace snug::codec
