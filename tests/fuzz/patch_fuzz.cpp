// Any bytes as the manifest of a patch.
#include <string_view>

#include "fuzz/fuzz_frame.h"
#include "store/patch_format.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace snug;
  store::Manifest manifest;
  if (!store::unpack({reinterpret_cast<const char*>(data), size}, manifest)) return 0;
  for (const store::PatchFile& file : manifest.files) {
    std::uint64_t num_bytes = 0, num_pieces = 0, stored_bytes = 0;
    store::Piece piece;
    for (store::PieceCursor cursor(file.pieces); cursor.next(piece); ++num_pieces) {
      test::require(piece.num_bytes > 0 && piece.num_bytes <= file.num_bytes - num_bytes);
      num_bytes += piece.num_bytes;
      stored_bytes += piece.stored_bytes;
      if (piece.kind > store::PieceKind::kDelta) continue;
      test::require(piece.base_file < manifest.base.size());
      const std::uint64_t base_bytes = manifest.base[piece.base_file].num_bytes;
      test::require(piece.base_offset <= base_bytes);
      test::require(piece.num_bytes <= base_bytes - piece.base_offset);
    }
    test::require(num_bytes == file.num_bytes && num_pieces == file.pieces.size());
    test::require(stored_bytes == file.pieces.stored_bytes());
    test::require(manifest.is_folder ? store::is_safe_name(file.name) : file.name.empty());
  }
  // What was read can be written, and says the same.
  const std::string packed = store::pack(manifest);
  store::Manifest again;
  test::require(store::unpack(packed, again) && store::pack(again) == packed);
  const PatchInfo info = store::info_of(manifest, 0), same = store::info_of(again, 0);
  test::require(info.base_version == same.base_version);
  test::require(info.target_version == same.target_version);
  return 0;
}
