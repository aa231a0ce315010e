// transfer/patch_cache.h - patches between the versions of a server, made once for all followers.
// They lie in the served folder's .snug-serve, where other servers may keep theirs.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "os/descriptor.h"

namespace snug::transfer {

struct Version {
  std::string name, path;
  std::string hash;  // version_of(path)
  std::uint64_t num_bytes = 0;
};

// A patch on disk that is deleted with its last user.
class CachedPatch {
 public:
  explicit CachedPatch(std::string path);
  CachedPatch(const CachedPatch&) = delete;
  ~CachedPatch();
  const std::string& path() const noexcept { return path_; }
  // Whether it is still what was made here; others may clear the folder.
  bool is_intact() const;

 private:
  const std::string path_;
  const std::uint64_t identity_;
};

// All functions may be called from any thread.
class PatchCache {
 public:
  // Deletes what dead servers have left in `folder`.
  explicit PatchCache(std::string folder);
  ~PatchCache();

  // What turns `base` into `next`; nullptr if there is no patch or it would not pay. A patch that
  // has disappeared is made again.
  std::shared_ptr<CachedPatch> get(const Version& base, const Version& next);
  // Drops patches to all other versions.
  void keep_only(const std::string& next_hash);

 private:
  struct Job {
    std::mutex mutex;
    bool is_futile = false;
    std::shared_ptr<CachedPatch> file;
  };
  std::string free_path();
  bool claim_name();

  const std::string folder_;
  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<Job>> jobs_;
  std::string own_name_;  // prefix of its files
  os::Descriptor lock_;   // on OWN_NAME.lock: shows others that this server lives
  int num_patches_ = 0;
};

}  // namespace snug::transfer
