// delta/delta_block.h - one block of base and next to one payload, and back; what encoding and
// applying of whole tensors share.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
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

// Writes the target of the block to dst. `payload` may be hostile, and may belong to another base.
Status decode_block(std::span<const std::uint8_t> payload, std::uint64_t block_idx,
                    const std::uint8_t* base, std::size_t num_elems, DType dtype, std::uint8_t* dst,
                    Scratch& scratch) noexcept;

inline constexpr std::size_t num_groups(std::size_t num_elems) noexcept {
  return (num_elems + kGroupElems - 1) / kGroupElems;
}

inline int log2_width(DType dtype) noexcept { return std::countr_zero(elem_bytes(dtype)); }

// ---- whole tensors ---------------------------------------------------------

inline constexpr Status kNoMemory = {Code::kInternal, "out of memory"};

using frame::bytes_of;

inline std::unique_ptr<Scratch> make_scratch() noexcept {
  return std::unique_ptr<Scratch>(new (std::nothrow) Scratch);
}

// Where block `idx` lies in the tensor; the bytes beyond the last whole element go with
// the last block.
struct BlockRange {
  std::uint64_t first_byte;
  std::size_t num_elems, num_bytes;

  BlockRange(const Header& header, std::uint64_t idx) noexcept {
    const std::size_t width = elem_bytes(header.dtype);
    first_byte = (idx << header.log2_block) * width;
    num_elems = static_cast<std::size_t>(header.elems_in_block(idx));
    num_bytes = num_elems * width + (idx + 1 == header.num_blocks() ? header.num_tail_bytes : 0);
  }
  std::uint64_t hash(const std::uint8_t* block) const noexcept {
    return kernels().hash_terms(block, num_bytes, first_byte / 8);
  }
};

// Sums of hash terms of both versions, from all threads.
struct HashSums {
  std::atomic<std::uint64_t> base{0}, target{0};

  void finish(std::uint64_t raw_bytes, std::uint64_t& base_hash, std::uint64_t& target_hash) {
    base_hash = hash_finish(base, raw_bytes);
    target_hash = hash_finish(target, raw_bytes);
  }
};

}  // namespace snug::delta
