// delta/delta_tensor.h - what encoding and applying of whole tensors share.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

#include "delta/delta_block.h"

namespace snug::delta {

inline constexpr Status kNoMemory = {Code::kInternal, "out of memory"};
inline constexpr char kOtherSize[] = "the tensor has another size than the delta was made for";

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
