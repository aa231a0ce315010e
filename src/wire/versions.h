// wire/versions.h - the versions a server has, and the patches between them.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "snug/store.h"

namespace snug::wire {

struct Version {
  std::string name, path;
  std::string hash;  // version_of(path)
  std::uint64_t num_bytes = 0;
};

// A patch on disk that is deleted with its last user.
class PatchFile {
 public:
  explicit PatchFile(std::string path) : path_(std::move(path)) {}
  PatchFile(const PatchFile&) = delete;
  ~PatchFile();
  const std::string& path() const noexcept { return path_; }

 private:
  const std::string path_;
};

// Looks into a folder for new versions. All functions may be called from any thread.
class VersionCatalog {
 public:
  explicit VersionCatalog(std::string folder);
  ~VersionCatalog();

  // Finds what has appeared or gone since the last time.
  StoreStatus scan();
  // The newest version; its name is empty if there is none.
  Version newest() const;
  // What turns the version of hash `base` into `next`; nullptr if that base is
  // not here or a patch would not pay. Made once, whoever asks.
  std::shared_ptr<PatchFile> patch(const std::string& base, const Version& next);

 private:
  struct Entry {
    Version version;
    std::uint64_t identity;  // changes when the name is given to something else
  };
  struct PatchJob {
    std::mutex mutex;
    bool tried = false;
    std::shared_ptr<PatchFile> file;
  };
  std::string patch_folder() const { return folder_ + "/.snug-sync"; }

  const std::string folder_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // oldest first
  std::map<std::pair<std::string, std::string>, std::shared_ptr<PatchJob>> patches_;
  int num_patches_ = 0;
};

}  // namespace snug::wire
