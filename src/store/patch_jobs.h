// store/patch_jobs.h - patches of two opened versions; patch.cpp turns paths into these.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "store/block_scan.h"
#include "store/patch_format.h"
#include "store/plain_file.h"

namespace snug::store {

// Of names and places of tensors that a job holds, over all files of BASE and NEW.
inline constexpr std::uint64_t kMaxHeaderMemory = std::uint64_t{128} << 20;

// A file or a folder, and those of its files that were opened.
struct OpenVersion {
  bool is_folder = false;
  std::string root;                // the file, or the folder
  std::vector<std::string> names;  // sorted; one empty name for a file
  std::vector<std::string> sub_folders;
  std::vector<std::unique_ptr<PlainFile>> files;

  std::string path_of(const std::string& name) const {
    return name.empty() ? root : root + "/" + name;
  }
  std::uint64_t num_bytes() const noexcept {
    std::uint64_t sum = 0;
    for (const auto& file : files) sum += file->num_bytes();
    return sum;
  }
};

// Lists names; opens nothing.
StoreResult<OpenVersion> list_names(const std::string& path);

// Opens one of its files. `restore` and `pool`: see PlainFile.
StoreResult<std::unique_ptr<PlainFile>> open_file(const OpenVersion& version,
                                                  const std::string& name, bool restore,
                                                  const std::shared_ptr<FilePool>& pool);

// Opens every file.
StoreResult<OpenVersion> open_version(const std::string& path, bool restore,
                                      const std::shared_ptr<FilePool>& pool);

// Names, sizes and hashes of its files, all of them open.
StoreResult<std::vector<PatchFile>> list_version(const OpenVersion& version,
                                                 const StoreOptions& options);

// kCorrupt if a file that Snug has compressed, at `path` or in the folder `path`, does not restore
// its original. All others are only looked at.
StoreStatus check_compressed(const std::string& path, const StoreOptions& options = {});

// Writes pieces, manifest and header to `patch`.
StoreResult<PatchInfo> write_patch(const OpenVersion& base, const OpenVersion& next,
                                   const File& patch, const StoreOptions& options,
                                   ProgressMeter& meter);

// A patch, and the files of manifest.base in their order.
struct OpenPatch {
  const File& file;
  const Manifest& manifest;
  const std::vector<std::unique_ptr<PlainFile>>& base;
};

// Writes file `idx` of NEW, whose pieces start at `pieces_offset` of the patch, to `out`
// and checks its hash.
StoreStatus apply_patch(const OpenPatch& patch, std::size_t idx, std::uint64_t pieces_offset,
                        const File& out, int num_threads, ProgressMeter& meter);

}  // namespace snug::store
