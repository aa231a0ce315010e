#include "wire/versions.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "snug/patch.h"
#include "store/file_io.h"
#include "wire/manifest.h"

namespace snug::wire {
namespace {

namespace fs = std::filesystem;

// A patch has to be clearly smaller than a full copy, which travels compressed.
constexpr double kMaxPatchShare = 0.5;

bool is_version_name(const std::string& name) {
  return name[0] != '.' && name != "current" && name.find(".tmp-") == std::string::npos &&
         is_safe_name(name);
}

// Numbers inside names count as numbers: step-9 comes before step-10.
bool natural_less(const std::string& a, const std::string& b) {
  std::size_t i = 0, j = 0;
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      const auto end_of = [&](const std::string& text, std::size_t at) {
        while (at < text.size() && digit(text[at])) ++at;
        return at;
      };
      while (i + 1 < a.size() && a[i] == '0' && digit(a[i + 1])) ++i;
      while (j + 1 < b.size() && b[j] == '0' && digit(b[j + 1])) ++j;
      const std::size_t end_a = end_of(a, i), end_b = end_of(b, j);
      if (end_a - i != end_b - j) return end_a - i < end_b - j;
      const int order = a.compare(i, end_a - i, b, j, end_b - j);
      if (order != 0) return order < 0;
      i = end_a, j = end_b;
    } else if (a[i] != b[j]) {
      return a[i] < b[j];
    } else {
      ++i, ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

}  // namespace

PatchFile::~PatchFile() { ::unlink(path_.c_str()); }

// Patches are named by process; those of servers that were killed are nobody's.
VersionCatalog::VersionCatalog(std::string folder) : folder_(std::move(folder)) {
  std::error_code error;
  for (fs::directory_iterator it(patch_folder(), error), end; !error && it != end;
       it.increment(error)) {
    const int pid = std::atoi(it->path().filename().c_str());
    if (pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH) ::unlink(it->path().c_str());
  }
}

VersionCatalog::~VersionCatalog() {
  patches_.clear();
  std::error_code ignored;
  fs::remove(patch_folder(), ignored);
}

StoreStatus VersionCatalog::scan() {
  std::vector<Entry> fresh;
  std::set<std::pair<std::string, std::uint64_t>> present;
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    struct stat info;
    if (!is_version_name(name) || ::stat(it->path().c_str(), &info) != 0) continue;
    const auto modified = std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
    const std::uint64_t identity =
        info.st_ino * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(modified);
    present.insert({name, identity});
    fresh.push_back({{name, it->path().string(), {}, 0}, identity});
  }
  if (error) return store::io_error("cannot list", folder_, error.value());
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [&](const Entry& entry) {
      return !present.contains({entry.version.name, entry.identity});
    });
    std::erase_if(fresh, [&](const Entry& entry) {
      return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& known) {
        return known.version.name == entry.version.name && known.identity == entry.identity;
      });
    });
  }
  // What is there from the start has no order but its names.
  std::sort(fresh.begin(), fresh.end(), [](const Entry& a, const Entry& b) {
    return natural_less(a.version.name, b.version.name);
  });
  for (Entry& entry : fresh) {
    // Gone again already, or no version at all: the next scan looks again. Listing comes
    // first: hashing something large that nobody can be sent would keep a CPU busy for ever.
    auto manifest = list_path(entry.version.path);
    if (!manifest) continue;
    auto hash = version_of(entry.version.path);
    if (!hash) continue;
    entry.version.hash = std::move(*hash);
    entry.version.num_bytes = manifest->num_bytes();
    const std::lock_guard lock(mutex_);
    entries_.push_back(std::move(entry));
    // Patches to older versions are of no use to anybody new.
    std::erase_if(patches_, [&](const auto& patch) {
      return patch.first.second != entries_.back().version.hash;
    });
  }
  return {};
}

Version VersionCatalog::newest() const {
  const std::lock_guard lock(mutex_);
  return entries_.empty() ? Version{} : entries_.back().version;
}

std::shared_ptr<PatchFile> VersionCatalog::patch(const std::string& base, const Version& next) {
  std::shared_ptr<PatchJob> job;
  std::string base_path, patch_path;
  {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : entries_)
      if (entry.version.hash == base) base_path = entry.version.path;
    if (base_path.empty()) return nullptr;
    auto& place = patches_[{base, next.hash}];
    if (!place) place = std::make_shared<PatchJob>();
    job = place;
    patch_path = patch_folder() + "/" + std::to_string(::getpid()) + "-" +
                 std::to_string(num_patches_++) + ".patch";
  }
  const std::lock_guard lock(job->mutex);
  if (job->tried) return job->file;
  job->tried = true;
  ::mkdir(patch_folder().c_str(), 0700);
  StoreOptions options;
  options.force = true;
  const auto report = diff_path(base_path, next.path, patch_path, options);
  if (!report) return nullptr;
  auto file = std::make_shared<PatchFile>(patch_path);
  if (static_cast<double>(report->info.patch_bytes) >
      kMaxPatchShare * static_cast<double>(next.num_bytes))
    return nullptr;
  job->file = file;
  return file;
}

}  // namespace snug::wire
