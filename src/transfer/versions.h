// transfer/versions.h - the versions a server has, and which of them is the newest.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "snug/store.h"
#include "transfer/patch_cache.h"
#include "transfer/version_journal.h"

namespace snug::transfer {

// Finds new versions in a folder. All functions may be called from any thread, but `scan` from one
// at a time.
class VersionCatalog {
 public:
  using Report = std::function<void(const StoreStatus&)>;
  // `report` gets what cannot be published, once for every reason.
  VersionCatalog(std::string folder, Report report);

  // Finds what has appeared, changed or disappeared since the last call.
  StoreStatus scan();
  // The newest version for a follower that has version `have`. Its name is empty if there is none,
  // or none yet: one that is changing in place may soon be complete.
  Version newest(const std::string& have) const;
  // What turns version `base` into `next`; nullptr if that base is not here or a patch would not
  // pay. Made once for all followers.
  std::shared_ptr<CachedPatch> patch(const std::string& base, const Version& next);

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    const std::string& name() const { return version.name; }
    VersionRecord record() const { return {version.hash, version.name}; }

    Version version;
    // Of the file or folder itself: cheap to check at every scan.
    std::uint64_t inode = 0, top_identity = 0;
    std::uint64_t identity = 0;    // of all files inside too
    Clock::time_point look_again;  // at the files inside
    // Its identity now, if it is no longer what was published.
    std::optional<std::uint64_t> changed_to = {};
    Clock::time_point changed_since = {};
  };
  struct Problem {  // of a name that cannot be published
    std::string reason;
    Clock::time_point look_again;
  };
  StoreResult<std::vector<Entry>> list();
  bool is_ignored(const std::string& name);
  bool needs_hash(Entry& seen);
  bool fill_in(Entry& entry);
  void complain(const std::string& name, const StoreStatus& status, Clock::duration pause = {});
  void publish(const std::vector<Entry>& looked_at, std::vector<Entry> fresh);
  void hold_back();
  void save_order();
  // Not .snug-sync: the same folder may be followed into and served.
  static std::string own_folder(const std::string& folder) { return folder + "/.snug-serve"; }

  const std::string folder_;
  const Report report_;
  PatchCache patches_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // oldest first; changed by `scan` alone
  // Versions newer than all entries that exist but cannot be read: a follower that has one of them
  // is not moved back.
  std::set<std::string> held_back_;
  // Used by `scan` alone.
  VersionOrder order_;
  bool order_is_lost_ = false;
  std::map<std::string, Problem> problems_;  // by name
};

}  // namespace snug::transfer
