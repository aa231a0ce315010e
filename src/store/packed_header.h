// store/packed_header.h - the original header inside a compressed file: pieces of 1 MiB, each one
// zstd frame, so that it can be read and written in little memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "store/file_io.h"
#include "store/workers.h"

namespace snug::store {

inline constexpr std::size_t kHeaderPieceBytes = std::size_t{1} << 20;

class PackedHeader {
 public:
  // Finds the pieces in bytes [begin, end) of `file` and checks their sizes.
  StoreStatus open(const File& file, std::uint64_t begin, std::uint64_t end);

  std::uint64_t num_bytes() const noexcept { return num_bytes_; }  // of the header
  // Reads bytes [offset, offset + dst.size()) of the header, which has them.
  StoreStatus read(const File& file, std::uint64_t offset, std::span<std::byte> dst) const;

 private:
  struct Piece {
    std::uint64_t at;
    std::uint32_t num_bytes;
  };
  std::vector<Piece> pieces_;  // kHeaderPieceBytes of the header each, the last one the rest
  std::uint64_t num_bytes_ = 0;
};

// Reads bytes [offset, offset + dst.size()) of a header or a file.
using ReadRange = std::function<StoreStatus(std::uint64_t offset, std::span<std::byte> dst)>;

// Writes a header of `num_bytes` to `out` from byte `at` on; `at` becomes where it ends.
StoreStatus write_packed_header(const ReadRange& read, std::uint64_t num_bytes, const File& out,
                                std::uint64_t& at);
// What it takes at most.
std::uint64_t packed_header_bound(std::uint64_t num_bytes) noexcept;

}  // namespace snug::store
