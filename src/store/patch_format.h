// store/patch_format.h - the bytes of a patch file; docs/patch.md describes them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "snug/store.h"
#include "store/file_io.h"
#include "store/patch_pieces.h"

namespace snug::store {

inline constexpr std::size_t kPatchHeaderBytes = 96;
// What one patch can describe: so much is kept in memory by whoever reads it.
inline constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{64} << 20;  // unpacked
inline constexpr std::uint64_t kMaxManifestEntries = 400'000;  // files of both, and folders

struct PatchFile {
  std::string name;  // relative, with '/'; empty if the patch is about one file
  std::uint64_t num_bytes = 0;
  std::string hash;       // 32 hexadecimal digits
  PieceList pieces = {};  // one behind the other
};

struct Manifest {
  bool is_folder = false;
  std::uint64_t num_changed = 0;
  std::vector<PatchFile> base;  // without pieces
  std::vector<std::string> sub_folders;
  std::vector<PatchFile> files;

  std::uint64_t target_bytes() const noexcept;
};

// The version that files of these names, sizes and hashes are; they are sorted by name.
std::string version_of_files(const std::vector<PatchFile>& files, bool is_folder);

PatchInfo info_of(const Manifest& manifest, std::uint64_t patch_bytes);

// The bytes of a manifest, and back. `unpack` says false unless nothing in them contradicts
// anything else.
std::string pack(const Manifest& manifest);
bool unpack(std::string_view bytes, Manifest& manifest);

// Writes manifest and header of a patch whose pieces end at `manifest_offset`. Returns the
// size of the patch. kUsage if that is more than a patch can describe.
StoreResult<std::uint64_t> write_manifest(const File& patch, const Manifest& manifest,
                                          std::uint64_t manifest_offset);

// Reads both and checks that nothing in them contradicts anything else.
StoreResult<Manifest> read_manifest(const File& patch);

// A relative path that stays below where it starts, in its shortest form.
bool is_safe_name(std::string_view name) noexcept;

}  // namespace snug::store
