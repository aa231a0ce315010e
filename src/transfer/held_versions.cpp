#include "transfer/held_versions.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "store/folder.h"
#include "store/output.h"
#include "store/stop.h"
#include "transfer/file_identity.h"
#include "transfer/part_folder.h"

namespace snug::transfer {
namespace {

namespace fs = std::filesystem;

constexpr char kJournal[] = ".snug-sync";
// In place of the hash of a version that is not complete.
constexpr char kUnfinished[] = "unfinished";

// Of one file or folder, without its contents; 0 if it cannot be read.
std::uint64_t identity_of_one(const std::string& path) {
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0) return 0;
  const std::uint64_t identity = S_ISDIR(info.st_mode) ? info.st_ino : file_identity(info);
  return mix(identity, info.st_mode & S_IFMT) | 1;
}

// Empty if it cannot be read.
std::string identity_of(const std::string& path) {
  const std::uint64_t identity = tree_identity(path, identity_of_one);
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(identity));
  return identity == 0 ? "" : digits;
}

}  // namespace

void HeldVersions::load() {
  versions_.clear();
  std::error_code error;
  for (VersionRecord& version : read_journal(path_of(kJournal))) {
    if (version.hash == kUnfinished)
      unfinished_.insert(version.name);
    else if (fs::exists(path_of(version.name), error))
      versions_.push_back(std::move(version));
  }
}

std::vector<std::string> HeldVersions::file_names(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(path, error))) return {""};
  store::Folder folder;
  folder.root = path;
  std::vector<std::string> names;
  if (!store::list_files(folder).ok()) return names;
  for (const store::FolderFile& file : folder.files) names.push_back(file.name);
  return names;
}

bool HeldVersions::still_has(const std::string& name) const {
  return std::any_of(versions_.begin(), versions_.end(), [&](const VersionRecord& held) {
    return held.name == name && is_unchanged(held);
  });
}

bool HeldVersions::is_unchanged(const VersionRecord& held) const {
  const std::string path = path_of(held.name);
  if (!held.identity.empty() && identity_of(path) == held.identity) return true;
  // Touched, or fetched again by another follower: then the contents decide.
  const auto hash = version_of(path);
  return hash && *hash == held.hash;
}

StoreStatus HeldVersions::check_current() const {
  struct stat info;
  const std::string path = path_of("current");
  if (::lstat(path.c_str(), &info) != 0 || S_ISLNK(info.st_mode)) return {};
  return {{Code::kExists, "not a link, so not replaced by one; move it away"}, path};
}

void HeldVersions::begin(const std::string& name) {
  // If the journal cannot be written now, that is reported when the version is complete.
  if (unfinished_.insert(name).second) (void)write();
}

StoreStatus HeldVersions::add(const std::string& hash, const std::string& name,
                              std::size_t num_kept, const Report& report) {
  std::erase_if(versions_, [&](const VersionRecord& held) { return held.name == name; });
  versions_.push_back({hash, name, identity_of(path_of(name))});
  for (const std::string& other : unfinished_)
    if (other != name) PartFolder::remove_abandoned(path_of("." + other + kPartSuffix));
  unfinished_.clear();
  if (StoreStatus s = write(); !s.ok()) return s;
  if (StoreStatus s = point_current(); !s.ok()) return s;
  if (versions_.size() <= num_kept) return {};
  while (versions_.size() > num_kept && !store::is_stopped()) remove_oldest(report);
  return write();
}

void HeldVersions::remove_oldest(const Report& report) {
  const VersionRecord oldest = versions_.front();
  const std::string path = path_of(oldest.name);
  std::error_code error;
  const bool exists = fs::exists(fs::symlink_status(path, error));
  // Listed before it is checked, and deleted by name: what appears meanwhile stays.
  const auto names = file_names(path);
  const bool is_same = exists && is_unchanged(oldest);
  if (exists && !is_same && store::is_stopped()) return;  // it was not read: the next update's turn
  versions_.erase(versions_.begin());
  if (!exists || (is_same && store::remove_files(path, names))) return;
  if (report) report({{Code::kExists, "changed since it was fetched, so not deleted"}, path});
}

StoreStatus HeldVersions::write() const {
  const StopScope to_the_end({});  // what has its final name must be recorded
  std::vector<VersionRecord> list = versions_;
  for (const std::string& name : unfinished_) list.push_back({kUnfinished, name});
  return write_journal(path_of(kJournal), list);
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
