// Versions: which files there are, and the hashes of bytes that were read.
#include <filesystem>

#include "snug/store.h"
#include "store/file_jobs.h"
#include "store/folder.h"
#include "store/patch_jobs.h"

namespace snug {
namespace store {

StoreResult<OpenVersion> list_names(const std::string& path) {
  OpenVersion version;
  version.root = without_slashes(path);
  std::error_code error;
  version.is_folder = std::filesystem::is_directory(version.root, error);
  if (!version.is_folder) {
    version.names.emplace_back();
    return version;
  }
  Folder folder;
  folder.root = version.root;
  if (StoreStatus s = list_files(folder); !s.ok()) return s;
  for (FolderFile& file : folder.files) version.names.push_back(std::move(file.name));
  version.sub_folders = std::move(folder.sub_folders);
  return version;
}

StoreResult<std::unique_ptr<PlainFile>> open_file(const OpenVersion& version,
                                                  const std::string& name, bool restore,
                                                  const std::shared_ptr<FilePool>& pool) {
  const std::string path = version.path_of(name);
  auto file = restore && version.is_folder && name == kConfigName
                  ? PlainFile::open_config(path, pool)
                  : PlainFile::open(path, restore, pool);
  if (!file) return file;
  // All files of a job stay open.
  if (pool->add_memory((*file)->memory_bytes()) > kMaxHeaderMemory)
    return StoreStatus{{Code::kUsage,
                        "with this file, names and places of all tensors take more than 128 MiB; "
                        "use folders with fewer tensors"},
                       path};
  return file;
}

StoreResult<OpenVersion> open_version(const std::string& path, bool restore,
                                      const std::shared_ptr<FilePool>& pool) {
  auto version = list_names(path);
  if (!version) return version;
  for (const std::string& name : version->names) {
    auto file = open_file(*version, name, restore, pool);
    if (!file) return file.status();
    version->files.push_back(std::move(*file));
  }
  return version;
}

StoreResult<std::vector<PatchFile>> list_version(const OpenVersion& version,
                                                 const StoreOptions& options) {
  std::vector<PatchFile> files;
  ProgressMeter meter(options, version.num_bytes(), 1);
  meter.set_phase("reading");
  for (std::size_t i = 0; i < version.files.size(); ++i) {
    auto hash = version.files[i]->hash(options, meter);
    if (!hash) return hash.status();
    files.push_back({version.names[i], version.files[i]->num_bytes(), std::move(*hash)});
  }
  return files;
}

namespace {

const StoreOptions kSilent;

// One that Snug has compressed must restore its original.
StoreStatus check_file(const std::string& path, const StoreOptions& options, ProgressMeter& meter) {
  const auto tensors = open_if_tensors(path);
  if (!tensors) return tensors.status();
  if (*tensors == nullptr || !(*tensors)->compressed()) return {};
  if (auto verified = verify_file(**tensors, options, meter); !verified) return verified.status();
  return (*tensors)->file().check_unchanged();
}

// File by file, so that few are open at a time.
StoreResult<std::string> hash_version(const std::string& path, const StoreOptions& options) {
  const auto version = list_names(path);
  if (!version) return version.status();
  ProgressMeter meter(kSilent, 0, 1);
  std::vector<PatchFile> files;
  for (const std::string& name : version->names) {
    auto file = File::open(version->path_of(name));
    if (!file) return file.status();
    if (StoreStatus s = check_file(file->path(), options, meter); !s.ok()) return s;
    auto hash = hash_stored(*file, meter);
    if (!hash) return hash.status();
    // Or the file that was checked is not the one that was hashed.
    if (!file->same_file(file->path())) return file_changed(file->path());
    files.push_back({name, file->num_bytes(), std::move(*hash)});
  }
  return version_of_files(files, version->is_folder);
}

}  // namespace

StoreStatus check_compressed(const std::string& path, const StoreOptions& options) {
  const auto version = list_names(path);
  if (!version) return version.status();
  ProgressMeter meter(kSilent, 0, 1);
  for (const std::string& name : version->names)
    if (StoreStatus s = check_file(version->path_of(name), options, meter); !s.ok()) return s;
  return {};
}

}  // namespace store

StoreResult<std::string> version_of(const std::string& path, const StoreOptions& options) noexcept {
  return store::guarded([&] { return store::hash_version(path, options); });
}

}  // namespace snug
