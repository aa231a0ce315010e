// transfer/held_versions.h - what a follower has fetched into its folder, and which of it may be
// replaced or deleted: never what somebody else has put there since.
#pragma once
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "transfer/version_journal.h"

namespace snug::transfer {

// The versions that this follower fetched, oldest first, as recorded in .snug-sync.
class HeldVersions {
 public:
  using Report = std::function<void(const StoreStatus&)>;

  explicit HeldVersions(std::string folder) : folder_(std::move(folder)) {}

  void load();
  const VersionRecord* newest() const { return versions_.empty() ? nullptr : &versions_.back(); }
  // Whether what has this name now is what was fetched under it.
  bool still_has(const std::string& name) const;
  // The files of a version, sorted, as store::remove_files takes them; none if it cannot be read.
  static std::vector<std::string> file_names(const std::string& path);
  // kExists if `current` is something that a link must not replace.
  StoreStatus check_current() const;
  // Records that a full copy of a version begins. If it never ends, its part is deleted when
  // another version is complete, because no server would send the rest.
  void begin(const std::string& name);
  // Records a version that has its name now, points `current` to it and deletes the oldest ones.
  // Versions that changed since they were fetched are kept and go to `report`.
  StoreStatus add(const std::string& hash, const std::string& name, std::size_t num_kept,
                  const Report& report);

 private:
  std::string path_of(const std::string& name) const { return folder_ + "/" + name; }
  bool is_unchanged(const VersionRecord& held) const;
  StoreStatus write() const;
  StoreStatus point_current() const;
  void remove_oldest(const Report& report);

  const std::string folder_;
  std::vector<VersionRecord> versions_;
  std::set<std::string> unfinished_;  // names of which parts may lie here
};

}  // namespace snug::transfer
