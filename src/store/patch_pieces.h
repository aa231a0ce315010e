// store/patch_pieces.h - the pieces of a file in a patch. There may be millions, so they are kept
// as they are stored.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace snug::store {

// Most bytes of NEW that one piece with bytes of its own stands for.
inline constexpr std::uint64_t kMaxPieceBytes = std::uint64_t{1} << 20;

enum class PieceKind : std::uint8_t {
  kCopy = 0,   // bytes of a file of BASE
  kDelta = 1,  // the same with a delta applied
  kFrame = 2,  // a frame
  kZstd = 3,   // a zstd frame
};
inline constexpr int kNumPieceKinds = 4;

// A stretch of a file of NEW, and where it comes from.
struct Piece {
  PieceKind kind = PieceKind::kCopy;
  std::uint32_t base_file = 0;  // copy and delta only
  std::uint64_t base_offset = 0;
  std::uint64_t num_bytes = 0;     // of NEW
  std::uint64_t stored_bytes = 0;  // in the patch; 0 for a copy
};

// Numbers as in LEB128: 7 bits a byte, low bits first.
void append_number(std::string& bytes, std::uint64_t value);
// Takes one off the front of `bytes`; false if there is none.
bool take_number(std::string_view& bytes, std::uint64_t& value) noexcept;
// The same for a piece. What it refers to is not checked.
bool take_piece(std::string_view& bytes, Piece& piece) noexcept;

class PieceList {
 public:
  PieceList() = default;
  // Pieces that are packed already, and were checked.
  PieceList(std::string_view packed, std::uint64_t count, std::uint64_t stored_bytes)
      : packed_(packed), count_(count), stored_bytes_(stored_bytes) {}

  void add(const Piece& piece);
  std::uint64_t size() const noexcept { return count_; }
  std::uint64_t stored_bytes() const noexcept { return stored_bytes_; }  // of all
  const std::string& packed() const noexcept { return packed_; }

 private:
  std::string packed_;
  std::uint64_t count_ = 0, stored_bytes_ = 0;
};

// Pieces in their order. The list must outlive it.
class PieceCursor {
 public:
  explicit PieceCursor(const PieceList& list) noexcept : rest_(list.packed()) {}
  bool next(Piece& piece) noexcept { return take_piece(rest_, piece); }

 private:
  std::string_view rest_;
};

}  // namespace snug::store
