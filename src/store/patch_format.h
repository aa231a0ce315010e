// store/patch_format.h - the bytes of a patch file; docs/patch.md describes them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "snug/store.h"
#include "store/file_io.h"

namespace snug::store {

inline constexpr std::size_t kPatchHeaderBytes = 96;
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

struct PatchFile {
  std::string name;  // relative, with '/'; empty if the patch is about one file
  std::uint64_t num_bytes = 0;
  std::string hash;           // 32 hexadecimal digits
  std::vector<Piece> pieces;  // one behind the other
};

struct Manifest {
  bool is_folder = false;
  std::uint64_t num_changed = 0;
  std::vector<PatchFile> base;  // without pieces
  std::vector<std::string> sub_folders;
  std::vector<PatchFile> files;

  std::uint64_t target_bytes() const noexcept;
};

// The version that files of these names, sizes and hashes are.
std::string version_of_files(const std::vector<PatchFile>& files, bool is_folder);

PatchInfo info_of(const Manifest& manifest, std::uint64_t patch_bytes);

// Writes manifest and header of a patch whose pieces end at `manifest_offset`. Returns the
// size of the patch.
StoreResult<std::uint64_t> write_manifest(const File& patch, const Manifest& manifest,
                                          std::uint64_t manifest_offset);

// Reads both and checks that nothing in them contradicts anything else.
StoreResult<Manifest> read_manifest(const File& patch);

// A relative path that stays below where it starts, in its shortest form.
bool is_safe_name(std::string_view name) noexcept;

}  // namespace snug::store
