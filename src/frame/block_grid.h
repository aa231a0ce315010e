// frame/block_grid.h - how a tensor is cut into blocks, in frames and deltas, on CPUs and GPUs.
#pragma once
#include <cstdint>

namespace snug::frame {

// Every block has 2^log2_block elements, except for the last, which has the rest.
struct BlockGrid {
  std::uint64_t num_elems;
  int log2_block;

  constexpr std::uint64_t block_elems() const noexcept { return std::uint64_t{1} << log2_block; }
  constexpr std::uint64_t num_blocks() const noexcept {
    return (num_elems + block_elems() - 1) >> log2_block;
  }
  constexpr std::uint64_t elems_in_block(std::uint64_t block_idx) const noexcept {
    const std::uint64_t left = num_elems - (block_idx << log2_block);
    return left < block_elems() ? left : block_elems();
  }
};

}  // namespace snug::frame
