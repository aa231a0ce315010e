#include "codec/frame_writer.h"

namespace snug::codec {

CodedPair FrameWriter::encode(std::uint64_t pair_idx, const std::uint8_t* src,
                              const std::uint8_t* next, Workspace& workspace) const noexcept {
  CodedPair coded;
  coded.first_block = 2 * pair_idx;
  BlockInput inputs[2];
  for (; coded.num_blocks < 2; ++coded.num_blocks) {
    const std::uint64_t block = coded.first_block + coded.num_blocks;
    if (block >= header_.num_blocks()) break;
    inputs[coded.num_blocks] = {src + coded.num_blocks * header_.block_bytes(),
                                static_cast<std::size_t>(header_.elems_in_block(block)),
                                header_.dtype};
  }
  encode_blocks({inputs, coded.num_blocks}, codec_, next, coded.entries, workspace);
  return coded;
}

bool FrameWriter::enter(CodedPair& coded, std::uint64_t offset) noexcept {
  std::uint8_t* head = frame::bytes_of(head_);
  for (std::size_t i = 0; i < coded.num_blocks; ++i) {
    coded.entries[i].offset = offset;
    frame::write_entry(coded.entries[i], head + frame::entry_offset(coded.first_block + i));
    offset += coded.entries[i].num_bytes;
  }
  if (coded.first_block + coded.num_blocks == header_.num_blocks()) header_.frame_bytes = offset;
  // Whoever is last has seen what all others wrote.
  if (blocks_left_.fetch_sub(coded.num_blocks, std::memory_order_acq_rel) != coded.num_blocks)
    return false;
  frame::seal(header_, head_);
  return true;
}

}  // namespace snug::codec
