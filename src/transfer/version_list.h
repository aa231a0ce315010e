// transfer/version_list.h - a file that remembers versions in order: lines "HASH NAME",
// oldest first. Followers note there what they fetched, servers what they published.
#pragma once
#include <string>
#include <vector>

#include "snug/store.h"

namespace snug::transfer {

struct NamedVersion {
  std::string hash, name;
  bool operator==(const NamedVersion&) const = default;
};

// What cannot be read, or is no line of such a list, is left out.
std::vector<NamedVersion> read_version_list(const std::string& path);
StoreStatus write_version_list(const std::string& path, const std::vector<NamedVersion>& versions);

}  // namespace snug::transfer
