// store/safetensors.h - the safetensors container: parse, check, describe.
//
// A file is 8 bytes little-endian header length, a JSON object of that length, and the data.
// Checked here: the limits of the reference implementation (a header of at most 100 MB, no holes,
// no overlaps, all data indexed), no duplicate names, and sizes that agree with dtype and shape.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "snug/store.h"
#include "store/json_reader.h"
#include "store/layout.h"

namespace snug::store {

inline constexpr std::uint64_t kLengthBytes = 8;
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr std::size_t kMaxMetadata = 1'000'000;  // entries

// Checks the first 8 bytes of a file of `file_bytes`; returns the JSON's length.
Result<std::uint64_t> check_header_length(std::span<const std::byte, kLengthBytes> length,
                                          std::uint64_t file_bytes) noexcept;

// Parses the JSON that `source` gives, `json_bytes` long, the header of a file of `file_bytes`. The
// status names the tensor and the byte in the file, not the file.
StoreResult<Layout> parse_layout(TextSource& source, std::uint64_t json_bytes,
                                 std::uint64_t file_bytes);
StoreResult<Layout> parse_layout(std::string_view json, std::uint64_t file_bytes);

// How to compress a safetensors dtype; kBytes for all that Snug does not know.
DType dtype_of(std::string_view safetensors_dtype) noexcept;
// Bits of one element, 0 for dtypes not known.
std::uint64_t dtype_bits(std::string_view safetensors_dtype) noexcept;

}  // namespace snug::store
