// store/folder.h - model folders: shards compressed or restored, the rest copied.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "store/config_mark.h"
#include "store/file_jobs.h"

namespace snug::store {

struct FolderFile {
  std::string name;  // relative to the folder, with '/'
  bool is_tensors = false;
  std::uint64_t raw_bytes = 0;  // tensors only: size of the plain file
};

struct Folder {
  std::string root;
  std::vector<FolderFile> files;         // sorted by name
  std::vector<std::string> sub_folders;  // parents first
  ConfigMark config;                     // of the config.json in it, if read_folder found one

  std::string path_of(const std::string& name) const { return root + "/" + name; }
  std::uint64_t raw_bytes() const noexcept;
};

// `path` without slashes at its end.
std::string without_slashes(std::string path);

// Lists folder.root, at any depth. Links to regular files count as files; links to
// folders and special files are refused.
StoreStatus list_files(Folder& folder);

// Lists a folder and checks all that can be checked before anything is written:
// every header, that shards named by an index are there, and that tensors and
// config.json are compressed or plain as the job needs them.
StoreResult<Folder> read_folder(const std::string& root, bool expect_compressed);

void add_report(StoreReport& total, FileReport file);

// Writes a folder to `out`, or only verifies it.
StoreResult<StoreReport> run_folder_job(FileJob job, const Folder& in, const std::string& out,
                                        const StoreOptions& options);

}  // namespace snug::store
