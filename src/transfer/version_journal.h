// transfer/version_journal.h - files that list versions, oldest first, one line each: "HASH NAME"
// or "HASH:IDENTITY NAME". Followers record what they fetched, servers in which order versions
// appeared.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "snug/store.h"

namespace snug::transfer {

struct VersionRecord {
  std::string hash, name;
  std::string identity = {};  // of the files when they got their name; mostly empty
  bool operator==(const VersionRecord&) const = default;
};

// Lines that do not parse are left out; a file that cannot be read is empty.
std::vector<VersionRecord> read_journal(const std::string& path);
StoreStatus write_journal(const std::string& path, const std::vector<VersionRecord>& versions);

// The order of a server's versions. It is kept in the served folder, so that a server that restarts
// does not move followers back.
class VersionOrder {
 public:
  // `folder` is the server's own. It is created when there is something to write.
  explicit VersionOrder(std::string folder);

  // Oldest first. Versions that are missing or cannot be read at the moment keep their place.
  const std::vector<VersionRecord>& versions() const noexcept { return versions_; }
  // versions().size() if it was never seen.
  std::size_t place_of(const VersionRecord& version) const;

  // New versions become the newest, ordered by name among themselves. Of each name only the last
  // contents are remembered. Beyond 4096 versions, the oldest that are not present are forgotten.
  void add(std::vector<VersionRecord> found,
           const std::function<bool(const VersionRecord&)>& is_present);
  // Writes the file if it would differ from what was written last.
  StoreStatus save();

 private:
  void read_again();
  std::string path() const { return folder_ + "/order"; }

  const std::string folder_;
  std::vector<VersionRecord> versions_;
  std::vector<VersionRecord> saved_;  // as last read or written
};

}  // namespace snug::transfer
