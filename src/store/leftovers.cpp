// What runs that were killed have left.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "snug/store.h"
#include "store/folder.h"
#include "store/output.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

std::uint64_t bytes_of(const fs::path& path) {
  std::uint64_t sum = 0;
  const auto add = [&sum](const fs::path& one) {
    struct stat info;
    if (::lstat(one.c_str(), &info) == 0 && S_ISREG(info.st_mode))
      sum += static_cast<std::uint64_t>(info.st_size);
  };
  add(path);
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(path, error))) return sum;
  for (fs::recursive_directory_iterator it(path, error), end; !error && it != end;
       it.increment(error))
    add(it->path());
  return sum;
}

}  // namespace

std::vector<Leftover> find_leftovers(const std::string& path) {
  const fs::path target = store::without_slashes(path);
  if (target.filename().empty()) return {};
  fs::path parent = target.parent_path();
  if (parent.empty()) parent = ".";
  std::vector<Leftover> found;
  std::error_code error;
  for (fs::directory_iterator it(parent, error), end; !error && it != end; it.increment(error)) {
    if (!store::is_temporary_name(it->path().filename().string(), target.filename().string()))
      continue;
    const std::string left = (target.parent_path() / it->path().filename()).string();
    // An empty one may just have been made, and is soon held.
    const std::uint64_t num_bytes = bytes_of(left);
    if (num_bytes > 0 && !store::PathLock::is_held(left)) found.push_back({left, num_bytes});
  }
  std::ranges::sort(found, {}, &Leftover::path);
  return found;
}

}  // namespace snug
