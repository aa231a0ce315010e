// store/safetensors.h - the safetensors container: parse, check, describe.
//
// A file is 8 bytes little-endian header length, a JSON object of that length, and the data.
// Checked here: the limits of the reference implementation (a header of at most 100 MB, no holes,
// no overlaps, all data indexed), no duplicate names, and sizes that agree with dtype and shape.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "snug/store.h"

namespace snug::store {

inline constexpr std::uint64_t kLengthBytes = 8;
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct Slot {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;  // bytes from the start of the data
  std::uint64_t end = 0;

  std::uint64_t num_bytes() const noexcept { return end - begin; }
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

struct Layout {
  std::vector<Slot> slots;             // in the order of their data
  std::vector<std::uint32_t> by_name;  // indices into slots, sorted by name
  Metadata metadata;
  std::uint64_t data_start = 0;
  std::uint64_t file_bytes = 0;

  const Slot* find(std::string_view name) const noexcept;
  const std::string* find_metadata(std::string_view key) const noexcept;
};

// Checks the first 8 bytes of a file of `file_bytes`; returns the JSON's length.
Result<std::uint64_t> check_header_length(std::span<const std::byte, kLengthBytes> length,
                                          std::uint64_t file_bytes) noexcept;

// Parses `json`, the header of a file of `file_bytes`. The status names the
// tensor and the byte in the file, not the file.
StoreResult<Layout> parse_layout(std::string_view json, std::uint64_t file_bytes);

// How to compress a safetensors dtype; kBytes for all that Snug does not know.
DType dtype_of(std::string_view safetensors_dtype) noexcept;
// Bits of one element, 0 for dtypes not known.
std::uint64_t dtype_bits(std::string_view safetensors_dtype) noexcept;

}  // namespace snug::store
