// What runs that were killed have left.
#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <memory>

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

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

}  // namespace

std::vector<Leftover> find_leftovers(const std::string& path) {
  const fs::path target = store::without_slashes(path);
  if (target.filename().empty()) return {};
  fs::path parent = target.parent_path();
  if (parent.empty()) parent = ".";
  std::vector<Leftover> found;
  // Not a directory_iterator: that of libstdc++ 12 aborts where there is no memory, and every
  // command that writes comes here.
  const std::unique_ptr<DIR, CloseFolder> folder(::opendir(parent.c_str()));
  while (const dirent* entry = folder ? ::readdir(folder.get()) : nullptr) {
    const std::string name = entry->d_name;
    if (!store::is_temporary_name(name, target.filename().string())) continue;
    const std::string left = (target.parent_path() / name).string();
    // An empty one may just have been made, and is soon held.
    const std::uint64_t num_bytes = bytes_of(left);
    if (num_bytes > 0 && !store::PathLock::is_held(left)) found.push_back({left, num_bytes});
  }
  std::ranges::sort(found, {}, &Leftover::path);
  return found;
}

}  // namespace snug
