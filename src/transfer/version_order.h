// transfer/version_order.h - in which order versions appeared, kept in a file of the served
// folder so that a server that restarts does not move followers back.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "transfer/version_list.h"

namespace snug::transfer {

class VersionOrder {
 public:
  // `folder` is the server's own; it is made when there is something to write.
  explicit VersionOrder(std::string folder);

  // Versions, oldest first: also those that are missing or cannot be read just now. They
  // keep their place for the day they come back.
  const std::vector<NamedVersion>& versions() const noexcept { return versions_; }
  // versions().size() if it was never seen.
  std::size_t place_of(const NamedVersion& version) const;

  // What is not known yet becomes newest, ordered by name among itself. Of a name only the
  // last contents are remembered. Of more than some thousands the oldest that are not
  // present are forgotten.
  void add(std::vector<NamedVersion> found,
           const std::function<bool(const NamedVersion&)>& is_present);
  // Writes the file if it would differ from what was written last.
  StoreStatus save();

 private:
  void read_again();
  std::string path() const { return folder_ + "/order"; }

  const std::string folder_;
  std::vector<NamedVersion> versions_;
  std::vector<NamedVersion> saved_;  // as last read or written
};

}  // namespace snug::transfer
