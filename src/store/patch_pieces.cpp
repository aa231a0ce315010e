#include "store/patch_pieces.h"

namespace snug::store {

void append_number(std::string& bytes, std::uint64_t value) {
  for (; value >= 128; value >>= 7) bytes += static_cast<char>(value | 128);
  bytes += static_cast<char>(value);
}

bool take_number(std::string_view& bytes, std::uint64_t& value) noexcept {
  value = 0;
  for (unsigned shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<std::uint8_t>(bytes[0]);
    bytes.remove_prefix(1);
    value |= std::uint64_t{byte & 127u} << shift;
    if (byte < 128) return true;
  }
  return false;
}

bool take_piece(std::string_view& bytes, Piece& piece) noexcept {
  std::uint64_t kind, base_file = 0;
  piece = {};
  if (!take_number(bytes, kind) || kind >= kNumPieceKinds || !take_number(bytes, piece.num_bytes))
    return false;
  piece.kind = static_cast<PieceKind>(kind);
  if (piece.kind <= PieceKind::kDelta) {
    if (!take_number(bytes, base_file) || base_file > UINT32_MAX ||
        !take_number(bytes, piece.base_offset))
      return false;
    piece.base_file = static_cast<std::uint32_t>(base_file);
  }
  return piece.kind == PieceKind::kCopy || take_number(bytes, piece.stored_bytes);
}

void PieceList::add(const Piece& piece) {
  append_number(packed_, static_cast<std::uint64_t>(piece.kind));
  append_number(packed_, piece.num_bytes);
  if (piece.kind <= PieceKind::kDelta) {
    append_number(packed_, piece.base_file);
    append_number(packed_, piece.base_offset);
  }
  if (piece.kind != PieceKind::kCopy) append_number(packed_, piece.stored_bytes);
  ++count_;
  stored_bytes_ += piece.stored_bytes;
}

}  // namespace snug::store
