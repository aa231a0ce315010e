// delta/delta_block.h - one block of base and next to one payload, and back.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "delta/delta_kernels.h"

namespace snug::delta {

// What one block needs; a thread has one. Pages that are not needed are not touched.
struct Scratch {
  alignas(64) Group groups[kMaxGroups];
  std::uint64_t changed[kMaxGroups + 1];  // vectors may write past the last one
  std::uint16_t ranks[kMaxBlockElems];
  std::uint64_t differences[kMaxBlockElems];
  std::uint64_t change_bits[kMaxGroups + 2];  // two words are read where one ends
  std::uint16_t gaps[kMaxBlockElems];         // of changed elements
  std::uint16_t large_gaps[kMaxBlockElems];   // of large differences
  std::uint64_t large_values[kMaxBlockElems];
  alignas(64) std::uint8_t payload[raw_payload_bytes(kMaxBlockElems, 8)];
  alignas(64) std::uint8_t target[kMaxBlockElems * 8 + 8];
};

struct BlockResult {
  std::size_t num_bytes = 0;  // in scratch.payload; 0 if nothing changed
  std::size_t num_changed = 0;
};

BlockResult encode_block(const std::uint8_t* base, const std::uint8_t* next, std::size_t num_elems,
                         DType dtype, Scratch& scratch) noexcept;

// Writes the target of the block to dst. `payload` may be hostile, and may belong to
// another base.
Status decode_block(std::span<const std::uint8_t> payload, std::uint64_t block_idx,
                    const std::uint8_t* base, std::size_t num_elems, DType dtype, std::uint8_t* dst,
                    Scratch& scratch) noexcept;

inline constexpr std::size_t num_groups(std::size_t num_elems) noexcept {
  return (num_elems + kGroupElems - 1) / kGroupElems;
}

inline int log2_width(DType dtype) noexcept {
  switch (elem_bytes(dtype)) {
    case 1: return 0;
    case 2: return 1;
    case 4: return 2;
    default: return 3;
  }
}

}  // namespace snug::delta
