// wire/versions.h - the versions a server has, and the patches between them.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "snug/store.h"
#include "wire/version_list.h"

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

// Looks into a folder for new versions. The order in which they appeared is kept in the
// folder, so that a server that restarts does not move followers back. All functions but
// `scan`, which wants one thread at a time, may be called from any thread.
class VersionCatalog {
 public:
  using Report = std::function<void(const StoreStatus&)>;
  explicit VersionCatalog(std::string folder);
  ~VersionCatalog();

  // Finds what has appeared or gone since the last time. What cannot be published is
  // reported, once for every reason.
  StoreStatus scan(const Report& report);
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
  struct Problem {  // of a name that cannot be published
    std::string reason;
    std::chrono::steady_clock::time_point look_again;
  };
  struct PatchJob {
    std::mutex mutex;
    bool tried = false;
    std::shared_ptr<PatchFile> file;
  };
  StoreResult<std::vector<Entry>> list(const Report& report);
  bool fill_in(Entry& entry, const Report& report);
  void complain(const std::string& name, const StoreStatus& status,
                std::chrono::steady_clock::time_point look_again, const Report& report);
  void publish(std::vector<Entry> fresh);
  void remember_order(const Report& report);
  // Of its own name: a folder may be followed into and served at the same time.
  std::string own_folder() const { return folder_ + "/.snug-serve"; }
  std::string order_path() const { return own_folder() + "/order"; }

  const std::string folder_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // oldest first
  std::map<std::pair<std::string, std::string>, std::shared_ptr<PatchJob>> patches_;
  int num_patches_ = 0;
  // Used by `scan` alone.
  std::vector<NamedVersion> last_order_;  // as an earlier server left it, then as written
  bool is_first_scan_ = true, order_is_lost_ = false;
  std::map<std::string, Problem> problems_;  // by name
};

}  // namespace snug::wire
