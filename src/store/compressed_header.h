// store/compressed_header.h - where the tensors of a compressed file are, and its JSON.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "store/tensor_file.h"

namespace snug::store {

// Whether a tensor is stored as it is if its frame is not smaller. Frames start at multiples of 16:
// what lies between them must not change that.
constexpr bool may_be_kept(std::uint64_t raw_bytes) noexcept {
  return raw_bytes <= kMinFrameBytes || (raw_bytes <= kMaxKeptBytes && raw_bytes % 16 == 0);
}

class CompressedHeader {
 public:
  // Leaves room for the JSON of any outcome. Tensors that have no smaller frame come first and get
  // their places.
  StoreStatus plan(const TensorFile& in);

  // Where the other tensors start, a multiple of 16.
  std::uint64_t first_frame() const noexcept { return first_frame_; }
  std::uint64_t place_of(std::size_t idx) const noexcept { return slots_[idx].begin; }
  // In the order of the tensors: tensor `idx`, not placed by `plan`, fills [begin, end) of the
  // file.
  void place(std::size_t idx, std::uint64_t begin, std::uint64_t end) noexcept;
  // Where the last one ends.
  std::uint64_t data_end() const noexcept { return data_end_; }

  // Writes length and JSON. The tensor with the original header is [data_end, file_end).
  StoreStatus write(const TensorFile& in, const std::string& hash, std::uint64_t file_end,
                    const File& out) const;

 private:
  class Text;
  struct Place {
    std::uint64_t begin = 0, end = 0;  // in the file
  };
  void put_metadata(const TensorFile& in, const std::string& hash, Text& text) const;

  std::vector<Place> slots_;
  std::uint64_t data_start_ = 0, first_frame_ = 0, data_end_ = 0;
};

}  // namespace snug::store
