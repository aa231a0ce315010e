#include "transfer/held_versions.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "snug/store.h"
#include "store/file_io.h"
#include "transfer/file_identity.h"
#include "transfer/part_folder.h"
#include "transfer/version_list.h"

namespace snug::transfer {
namespace {

namespace fs = std::filesystem;

// Between hash and identity in the list, where a hash alone is valid too.
constexpr char kSeparator = ':';
// In place of the hash of a version that is not complete.
constexpr char kUnfinished[] = "unfinished";

// Of one file or folder, without what lies in it; 0 if it cannot be looked at.
std::uint64_t identity_of_one(const fs::path& path) {
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0) return 0;
  const std::uint64_t identity = S_ISDIR(info.st_mode) ? info.st_ino : file_identity(info);
  return mix(identity, info.st_mode & S_IFMT) | 1;
}

// Reading a whole model again just to delete it would cost minutes: inodes, sizes and
// times of all its files stand for it. Empty if they cannot be read.
std::string identity_of(const std::string& path) {
  std::uint64_t one = identity_of_one(path), sum = one;
  if (one == 0) return {};
  std::error_code error;
  if (fs::is_directory(fs::symlink_status(path, error))) {
    for (fs::recursive_directory_iterator it(path, error), end; !error && it != end;
         it.increment(error)) {
      if ((one = identity_of_one(it->path())) == 0) return {};
      sum += one;  // in whatever order they come
    }
  }
  if (error) return {};
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(sum));
  return digits;
}

}  // namespace

void HeldVersions::load() {
  versions_.clear();
  std::error_code error;
  for (const NamedVersion& noted : read_version_list(path_of(".snug-sync"))) {
    if (noted.hash == kUnfinished) unfinished_.insert(noted.name);
    if (noted.hash == kUnfinished || !fs::exists(path_of(noted.name), error)) continue;
    const std::size_t hash_size = noted.hash.find(kSeparator);
    Held held{noted.hash.substr(0, hash_size), noted.name, {}};
    if (hash_size != std::string::npos) held.identity = noted.hash.substr(hash_size + 1);
    versions_.push_back(std::move(held));
  }
}

bool HeldVersions::still_has(const std::string& name) const {
  return std::any_of(versions_.begin(), versions_.end(),
                     [&](const Held& held) { return held.name == name && is_unchanged(held); });
}

bool HeldVersions::is_unchanged(const Held& held) const {
  const std::string path = path_of(held.name);
  if (!held.identity.empty() && identity_of(path) == held.identity) return true;
  // Touched, or fetched again by another follower: then the content decides.
  const auto hash = version_of(path);
  return hash && *hash == held.hash;
}

StoreStatus HeldVersions::check_current() const {
  struct stat info;
  const std::string path = path_of("current");
  if (::lstat(path.c_str(), &info) != 0 || S_ISLNK(info.st_mode)) return {};
  return {{Code::kExists, "not a link, so not replaced by one; move it away"}, path, {}, {}};
}

void HeldVersions::begin(const std::string& name) {
  // A list that cannot be written now will be missed when the version is complete.
  if (unfinished_.insert(name).second) (void)write();
}

void HeldVersions::remove_parts(const std::string& but_of) const {
  for (const std::string& name : unfinished_)
    if (name != but_of) PartFolder::remove_abandoned(path_of("." + name + kPartSuffix));
}

StoreStatus HeldVersions::add(const std::string& hash, const std::string& name,
                              std::size_t num_kept, const Report& report) {
  std::erase_if(versions_, [&](const Held& held) { return held.name == name; });
  versions_.push_back({hash, name, identity_of(path_of(name))});
  remove_parts(name);
  unfinished_.clear();
  if (StoreStatus s = write(); !s.ok()) return s;
  if (StoreStatus s = point_current(); !s.ok()) return s;
  if (versions_.size() <= num_kept) return {};
  while (versions_.size() > num_kept) remove_oldest(report);
  return write();
}

void HeldVersions::remove_oldest(const Report& report) {
  const Held oldest = std::move(versions_.front());
  versions_.erase(versions_.begin());
  const std::string path = path_of(oldest.name);
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return;
  if (is_unchanged(oldest)) {
    fs::remove_all(path, error);
  } else if (report) {
    report({{Code::kExists, "changed since it was fetched, so not deleted"}, path, {}, {}});
  }
}

StoreStatus HeldVersions::write() const {
  std::vector<NamedVersion> list;
  for (const Held& held : versions_)
    list.push_back(
        {held.identity.empty() ? held.hash : held.hash + kSeparator + held.identity, held.name});
  for (const std::string& name : unfinished_) list.push_back({kUnfinished, name});
  return write_version_list(path_of(".snug-sync"), list);
}

StoreStatus HeldVersions::point_current() const {
  if (StoreStatus s = check_current(); !s.ok()) return s;
  const std::string link = path_of("current"),
                    temporary = store::temporary_name(path_of(".current"));
  if (::symlink(versions_.back().name.c_str(), temporary.c_str()) != 0)
    return store::io_error("cannot create", link, errno);
  const StoreStatus s = store::rename_path(temporary, link, true);
  if (!s.ok()) ::unlink(temporary.c_str());
  return s;
}

}  // namespace snug::transfer
