// transfer/held_versions.h - what a follower has fetched into its folder, and what of it
// may be replaced or deleted: never what somebody else has put there since.
#pragma once
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "snug/store.h"

namespace snug::transfer {

// The versions this follower fetched, oldest first, as noted in .snug-sync.
class HeldVersions {
 public:
  using Report = std::function<void(const StoreStatus&)>;
  struct Held {
    std::string hash, name;
    std::string identity;  // of the files as they were when they got their name
  };

  explicit HeldVersions(std::string folder) : folder_(std::move(folder)) {}

  void load();
  const Held* newest() const { return versions_.empty() ? nullptr : &versions_.back(); }
  // Whether what has this name now is what was fetched under it.
  bool still_has(const std::string& name) const;
  // kExists if `current` is something that a link must not replace.
  StoreStatus check_current() const;
  // Notes that a full copy of a version begins: if it never ends, its part goes when
  // another version is complete. Nobody would send the rest.
  void begin(const std::string& name);
  // Notes a version that has its name now, points `current` to it and deletes the
  // oldest ones. What is not as it was fetched goes to `report` and stays.
  StoreStatus add(const std::string& hash, const std::string& name, std::size_t num_kept,
                  const Report& report);

 private:
  std::string path_of(const std::string& name) const { return folder_ + "/" + name; }
  bool is_unchanged(const Held& held) const;
  StoreStatus write() const;
  StoreStatus point_current() const;
  void remove_oldest(const Report& report);
  void remove_parts(const std::string& but_of) const;

  const std::string folder_;
  std::vector<Held> versions_;
  std::set<std::string> unfinished_;  // names of which parts may lie here
};

}  // namespace snug::transfer
