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
using Clock = std::chrono::steady_clock;

// A patch has to be clearly smaller than a full copy, which travels compressed.
constexpr double kMaxPatchShare = 0.5;

// Something broken is looked at again now and then, for it may be mended in place.
constexpr std::chrono::seconds kLookAgain{1};

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
VersionCatalog::VersionCatalog(std::string folder)
    : folder_(std::move(folder)), last_order_(read_version_list(order_path())) {
  std::error_code error;
  for (fs::directory_iterator it(own_folder(), error), end; !error && it != end;
       it.increment(error)) {
    const int pid = std::atoi(it->path().filename().c_str());
    if (pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH) ::unlink(it->path().c_str());
  }
}

VersionCatalog::~VersionCatalog() {
  patches_.clear();
  std::error_code ignored;
  fs::remove(own_folder(), ignored);  // unless there is an order to remember
}

StoreStatus VersionCatalog::scan(const Report& report) {
  auto fresh = list(report);
  if (!fresh) return fresh.status();
  std::erase_if(*fresh, [&](Entry& entry) { return !fill_in(entry, report); });
  // What appeared at once has no order but its names; what was there when an earlier
  // server looked comes first, in the order that it saw.
  const auto place = [&](const Entry& entry) {
    return is_first_scan_ ? std::find(last_order_.begin(), last_order_.end(),
                                      NamedVersion{entry.version.hash, entry.version.name})
                          : last_order_.end();
  };
  std::sort(fresh->begin(), fresh->end(), [&](const Entry& a, const Entry& b) {
    const auto place_a = place(a), place_b = place(b);
    return place_a != place_b ? place_a < place_b : natural_less(a.version.name, b.version.name);
  });
  publish(std::move(*fresh));
  remember_order(report);
  is_first_scan_ = false;
  return {};
}

// What is not known yet. Forgets what is gone.
StoreResult<std::vector<VersionCatalog::Entry>> VersionCatalog::list(const Report& report) {
  std::vector<Entry> found;
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name[0] == '.' || name == "current" || name.find(".tmp-") != std::string::npos) continue;
    names.insert(name);
    if (!is_version_name(name)) {
      complain(name, {{Code::kUsage, "a name that receivers refuse"}, it->path().string(), {}, {}},
               Clock::now(), report);
      continue;
    }
    struct stat info;
    if (::stat(it->path().c_str(), &info) != 0) continue;
    const auto modified = std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
    const std::uint64_t identity =
        info.st_ino * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(modified);
    found.push_back({{name, it->path().string(), {}, 0}, identity});
  }
  if (error) return store::io_error("cannot list", folder_, error.value());
  std::erase_if(problems_, [&](const auto& problem) { return !names.contains(problem.first); });
  const auto is_among = [](const std::vector<Entry>& entries, const Entry& wanted) {
    return std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) {
      return entry.version.name == wanted.version.name && entry.identity == wanted.identity;
    });
  };
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const Entry& entry) { return !is_among(found, entry); });
  std::erase_if(found, [&](const Entry& entry) { return is_among(entries_, entry); });
  return found;
}

// Size and hash. False: gone again already, or no version that anybody can be sent.
bool VersionCatalog::fill_in(Entry& entry, const Report& report) {
  Version& version = entry.version;
  const auto start = Clock::now();
  const auto known = problems_.find(version.name);
  if (known != problems_.end() && start < known->second.look_again) return false;
  const auto manifest = list_path(version.path);
  auto hash = manifest ? version_of(version.path) : manifest.status();
  if (!hash) {
    // Reading something large again and again would keep a CPU busy for ever.
    const auto now = Clock::now();
    if (std::error_code error; fs::exists(version.path, error))
      complain(version.name, hash.status(), now + kLookAgain + 20 * (now - start), report);
    return false;
  }
  problems_.erase(version.name);
  version.hash = std::move(*hash);
  version.num_bytes = manifest->num_bytes();
  return true;
}

void VersionCatalog::complain(const std::string& name, const StoreStatus& status,
                              Clock::time_point look_again, const Report& report) {
  Problem& problem = problems_[name];
  problem.look_again = look_again;
  std::string reason = to_string(status);
  if (problem.reason == reason) return;
  problem.reason = std::move(reason);
  StoreStatus told = status;
  told.detail = told.detail.empty() ? "not published" : told.detail + "; not published";
  report(told);
}

void VersionCatalog::publish(std::vector<Entry> fresh) {
  if (fresh.empty()) return;
  const std::lock_guard lock(mutex_);
  for (Entry& entry : fresh) entries_.push_back(std::move(entry));
  // Patches to older versions are of no use to anybody new.
  std::erase_if(patches_, [&](const auto& patch) {
    return patch.first.second != entries_.back().version.hash;
  });
}

void VersionCatalog::remember_order(const Report& report) {
  std::vector<NamedVersion> order;
  {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : entries_) order.push_back({entry.version.hash, entry.version.name});
  }
  if (order == last_order_) return;
  const bool made = ::mkdir(own_folder().c_str(), 0700) == 0 || errno == EEXIST;
  StoreStatus s = made ? write_version_list(order_path(), order)
                       : store::io_error("cannot create", own_folder(), errno);
  if (!s.ok() && !order_is_lost_) {
    s.detail += (s.detail.empty() ? "" : "; ") + std::string("names decide after a restart");
    report(s);
  }
  order_is_lost_ = !s.ok();
  if (s.ok()) last_order_ = std::move(order);
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
    patch_path = own_folder() + "/" + std::to_string(::getpid()) + "-" +
                 std::to_string(num_patches_++) + ".patch";
  }
  const std::lock_guard lock(job->mutex);
  if (job->tried) return job->file;
  job->tried = true;
  ::mkdir(own_folder().c_str(), 0700);
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
