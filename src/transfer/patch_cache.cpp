#include "transfer/patch_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "os/random.h"
#include "snug/store.h"
#include "transfer/file_identity.h"

namespace snug::transfer {
namespace {

namespace fs = std::filesystem;
using os::Descriptor;

// A patch has to be clearly smaller than a full copy, which travels compressed.
constexpr double kMaxPatchShare = 0.5;
constexpr char kLockSuffix[] = ".lock";

bool is_ours(const std::string& name) {
  return name.ends_with(kLockSuffix) || name.find(".patch") != std::string::npos;
}

// The server that made these files holds the lock as long as it lives. A process number would mean
// nothing in another container.
bool is_abandoned(const std::string& lock_path) {
  const Descriptor fd(::open(lock_path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (fd.get() < 0) return errno == ENOENT;
  return ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
}

void remove_abandoned(const std::string& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!is_ours(name)) continue;
    const std::string owner = name.substr(0, name.find_first_of("-."));
    if (is_abandoned(folder + "/" + owner + kLockSuffix)) ::unlink(it->path().c_str());
  }
}

}  // namespace

CachedPatch::CachedPatch(std::string path)
    : path_(std::move(path)), identity_(file_identity(path_)) {}

CachedPatch::~CachedPatch() { ::unlink(path_.c_str()); }

bool CachedPatch::is_intact() const { return identity_ != 0 && file_identity(path_) == identity_; }

PatchCache::PatchCache(std::string folder) : folder_(std::move(folder)) {
  remove_abandoned(folder_);
}

PatchCache::~PatchCache() {
  jobs_.clear();
  if (!own_name_.empty()) ::unlink((folder_ + "/" + own_name_ + kLockSuffix).c_str());
  ::rmdir(folder_.c_str());  // fails, as it should, if the order is kept there
}

void PatchCache::keep_only(const std::string& next_hash) {
  const std::lock_guard lock(mutex_);
  std::erase_if(jobs_, [&](const auto& job) { return job.first.second != next_hash; });
}

std::shared_ptr<CachedPatch> PatchCache::get(const Version& base, const Version& next) {
  std::shared_ptr<Job> job;
  {
    const std::lock_guard lock(mutex_);
    auto& place = jobs_[{base.hash, next.hash}];
    if (!place) place = std::make_shared<Job>();
    job = place;
  }
  const std::lock_guard lock(job->mutex);
  if (job->is_futile) return nullptr;
  if (job->file && job->file->is_intact()) return job->file;
  job->file = nullptr;
  const std::string path = free_path();
  if (path.empty()) return nullptr;
  StoreOptions options;
  options.force = true;
  const auto report = diff_path(base.path, next.path, path, options);
  if (!report) {  // a full disk, say, may have room for the next follower
    job->is_futile = report.status().status.code == Code::kUsage;
    return nullptr;
  }
  auto file = std::make_shared<CachedPatch>(path);
  // Of files that Snug compressed, a patch describes the plain content, but a version the bytes on
  // disk: where they differ, the patch is for another base than the one that followers have.
  job->is_futile = report->info.base_version != base.hash ||
                   report->info.target_version != next.hash ||
                   static_cast<double>(report->info.patch_bytes) >
                       kMaxPatchShare * static_cast<double>(next.num_bytes);
  if (!job->is_futile) job->file = file;
  return job->file;
}

// Empty if nothing can be written.
std::string PatchCache::free_path() {
  const std::lock_guard lock(mutex_);
  if (!claim_name()) return {};
  return folder_ + "/" + own_name_ + "-" + std::to_string(num_patches_++) + ".patch";
}

bool PatchCache::claim_name() {
  struct stat info;
  const auto is_there = [&info](const Descriptor& fd) {
    return fd.get() >= 0 && ::fstat(fd.get(), &info) == 0 && info.st_nlink > 0;
  };
  if (is_there(lock_)) return true;
  ::mkdir(folder_.c_str(), 0700);
  for (int i = 0; i < 10; ++i) {
    const std::string name = std::to_string(os::random_value<std::uint64_t>());
    const std::string path = folder_ + "/" + name + kLockSuffix;
    Descriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (fd.get() < 0 && errno != EEXIST) return false;
    // A server that is just starting may have deleted it before it was locked.
    if (fd.get() < 0 || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 || !is_there(fd)) continue;
    lock_ = std::move(fd);
    own_name_ = name;
    return true;
  }
  return false;
}

}  // namespace snug::transfer
