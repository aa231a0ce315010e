#include "transfer/versions.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <functional>

#include "snug/store.h"
#include "store/file_io.h"
#include "transfer/file_identity.h"
#include "transfer/manifest.h"

namespace snug::transfer {
namespace {

namespace fs = std::filesystem;

// How often versions and broken files are looked at again, since they may change in place. A change
// must also last that long: half of a version that is being deleted is no new version.
constexpr std::chrono::seconds kLookAgain{1};
// How long a version may keep changing before that is reported.
constexpr std::chrono::seconds kPatience{10};
// Pause after a look, in multiples of its duration: large folders must not keep a CPU busy.
constexpr int kRest = 20;

// Changes with names, sizes, times and inodes of all files. 0 if it cannot be read.
std::uint64_t identity_of(const std::string& path) {
  return tree_identity(path, [](const std::string& one) {
    const std::uint64_t identity = file_identity(one);
    return identity == 0 ? 0 : mix(identity, std::hash<std::string>{}(one));
  });
}

}  // namespace

VersionCatalog::VersionCatalog(std::string folder, Report report)
    : folder_(std::move(folder)),
      report_(std::move(report)),
      patches_(own_folder(folder_)),
      order_(own_folder(folder_)) {}

StoreStatus VersionCatalog::scan() {
  const auto seen = list();
  if (!seen) return seen.status();
  std::vector<Entry> fresh = *seen;
  std::erase_if(fresh, [&](Entry& entry) { return !fill_in(entry); });
  publish(*seen, std::move(fresh));
  hold_back();
  save_order();
  return {};
}

// The entries that need hashing. Forgets versions that are gone.
StoreResult<std::vector<VersionCatalog::Entry>> VersionCatalog::list() {
  std::vector<Entry> found;
  std::set<std::string> names, readable;
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name[0] == '.') continue;
    names.insert(name);
    struct stat info;
    if (is_ignored(name)) continue;
    if (::stat(it->path().c_str(), &info) != 0) {
      const auto why = store::io_error("cannot open", it->path().string(), errno);
      if (::lstat(it->path().c_str(), &info) == 0) complain(name, why);
      continue;
    }
    readable.insert(name);
    found.push_back({{name, it->path().string(), {}, 0}, info.st_ino, file_identity(info), 0, {}});
  }
  if (error) return store::io_error("cannot list", folder_, error.value());
  std::erase_if(problems_, [&](const auto& problem) { return !names.contains(problem.first); });
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [&](const Entry& e) { return !readable.contains(e.version.name); });
  }
  std::erase_if(found, [&](Entry& entry) { return !needs_hash(entry); });
  return found;
}

// Names that are never published; reported once, unless they are Snug's own.
bool VersionCatalog::is_ignored(const std::string& name) {
  if (is_version_name(name)) return false;
  const std::string path = folder_ + "/" + name;
  struct stat info;
  if (name == "current") {
    // The link of a follower that uses the same folder.
    if (::stat((folder_ + "/.snug-sync").c_str(), &info) == 0) return true;
    complain(name, {{Code::kUsage, "a name that followers use for a link"}, path});
  } else if (is_safe_name(name)) {
    // Work in progress will soon have its final name.
    if (::lstat(path.c_str(), &info) == 0 && info.st_mtim.tv_sec + 2 <= std::time(nullptr))
      complain(name, {{Code::kUsage, "a name for unfinished work (.tmp-)"}, path});
  } else {
    complain(name, {{Code::kUsage, "a name that receivers refuse"}, path});
  }
  return true;
}

// False for versions that are known and unchanged, and for those that have to wait.
bool VersionCatalog::needs_hash(Entry& seen) {
  const std::string& name = seen.version.name;
  const auto start = Clock::now();
  const auto known = std::ranges::find(entries_, name, &Entry::name);
  if (known == entries_.end()) {
    const auto problem = problems_.find(name);
    if (problem != problems_.end() && start < problem->second.look_again) return false;
  } else if (known->top_identity == seen.top_identity && start < known->look_again) {
    return false;
  }
  seen.identity = identity_of(seen.version.path);
  const auto end = Clock::now();
  seen.look_again = end + kLookAgain + kRest * (end - start);
  if (known == entries_.end()) return true;
  const bool is_same = seen.identity != 0 && seen.identity == known->identity;
  const bool has_settled = known->changed_to == seen.identity;
  const bool is_replaced = known->inode != seen.inode;  // and complete, if it was renamed
  if (is_same) problems_.erase(name);
  if (!is_same && known->changed_to && !has_settled && end >= known->changed_since + kPatience)
    complain(name, {{Code::kIo, "does not stop changing"}, seen.version.path});
  const std::lock_guard lock(mutex_);
  known->inode = seen.inode;
  known->top_identity = seen.top_identity;
  known->look_again = seen.look_again;
  if (!known->changed_to) known->changed_since = end;
  known->changed_to = is_same ? std::nullopt : std::optional(seen.identity);
  return !is_same && (has_settled || is_replaced);
}

// Sets size and hash. False if it is gone again, or cannot be sent.
bool VersionCatalog::fill_in(Entry& entry) {
  Version& version = entry.version;
  const auto start = Clock::now();
  const auto manifest = list_path(version.path);
  auto hash = manifest ? version_of(version.path) : manifest.status();
  const auto now = Clock::now();
  if (!hash) {
    if (std::error_code error; fs::exists(fs::symlink_status(version.path, error)))
      complain(version.name, hash.status(), kLookAgain + kRest * (now - start));
    return false;
  }
  if (identity_of(version.path) != entry.identity) {
    if (std::error_code error; fs::exists(version.path, error))
      complain(version.name, {{Code::kIo, "changed while it was read"}, version.path},
               kLookAgain + (now - start));
    return false;
  }
  problems_.erase(version.name);
  version.hash = std::move(*hash);
  version.num_bytes = manifest->num_bytes();
  return true;
}

void VersionCatalog::complain(const std::string& name, const StoreStatus& status,
                              Clock::duration pause) {
  Problem& problem = problems_[name];
  problem.look_again = Clock::now() + pause;
  std::string reason = to_string(status);
  if (problem.reason == reason) return;
  problem.reason = std::move(reason);
  StoreStatus told = status;
  told.detail = told.detail.empty() ? "not published" : told.detail + "; not published";
  report_(told);
}

// Replaces all that was looked at by `fresh` in one step, so that no follower sees an older version
// as the newest for a moment.
void VersionCatalog::publish(const std::vector<Entry>& looked_at, std::vector<Entry> fresh) {
  if (looked_at.empty()) return;
  std::vector<VersionRecord> found;
  for (const Entry& entry : fresh) found.push_back(entry.record());
  std::vector<Entry> next = entries_;
  const auto has = [](const std::vector<Entry>& entries, const std::string& name) {
    return std::ranges::find(entries, name, &Entry::name) != entries.end();
  };
  std::erase_if(next, [&](const Entry& old) { return has(looked_at, old.name()); });
  std::move(fresh.begin(), fresh.end(), std::back_inserter(next));
  order_.add(std::move(found), [&](const VersionRecord& v) { return has(next, v.name); });
  std::map<std::string, std::size_t> places;
  for (const Entry& entry : next) places[entry.name()] = order_.place_of(entry.record());
  std::ranges::sort(next, {}, [&](const Entry& entry) { return places[entry.name()]; });
  if (!next.empty()) patches_.keep_only(next.back().version.hash);
  const std::lock_guard lock(mutex_);
  entries_.swap(next);
}

void VersionCatalog::hold_back() {
  std::set<std::string> held_back;
  const auto& order = order_.versions();
  for (std::size_t i = order.size(); i > 0 && !problems_.empty(); --i) {
    const VersionRecord& version = order[i - 1];
    if (!entries_.empty() && version == entries_.back().record()) break;
    if (problems_.contains(version.name)) held_back.insert(version.hash);
  }
  const std::lock_guard lock(mutex_);
  held_back_.swap(held_back);
}

void VersionCatalog::save_order() {
  StoreStatus s = order_.save();
  if (!s.ok() && !order_is_lost_) {
    s.detail += (s.detail.empty() ? "" : "; ") + std::string("names decide after a restart");
    report_(s);
  }
  order_is_lost_ = !s.ok();
}

Version VersionCatalog::newest(const std::string& have) const {
  const std::lock_guard lock(mutex_);
  if (held_back_.contains(have)) return {"held back", {}, have, 0};
  if (entries_.empty()) return {};
  const Entry& last = entries_.back();
  return last.changed_to && last.version.hash != have ? Version{} : last.version;
}

std::shared_ptr<CachedPatch> VersionCatalog::patch(const std::string& base, const Version& next) {
  Version base_version;
  {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : entries_)
      if (entry.version.hash == base && !entry.changed_to) base_version = entry.version;
  }
  return base_version.name.empty() ? nullptr : patches_.get(base_version, next);
}

}  // namespace snug::transfer
