#include "store/output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "os/random.h"
#include "store/folder.h"
#include "store/stop.h"

namespace snug::store {
namespace {

namespace fs = std::filesystem;

// Beyond this many, one call for the whole file system takes less time than one each:
// 1.3 s instead of 11 for a folder of 10,000 small files on ext4.
constexpr std::size_t kMaxSingleSyncs = 64;
// Smaller files are synced with their folder.
constexpr off_t kMinSyncBytes = off_t{16} << 20;

// The digits behind .tmp- and .kept-.
constexpr int kNumDigits = 8;
constexpr char kDigits[] = "0123456789abcdef";
constexpr char kTemporary[] = ".tmp-";

// False with the reason in errno.
bool sync_path(const std::string& path, int flags, int (*sync)(int)) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (fd < 0) return false;
  const bool synced = sync(fd) == 0;
  const int error = errno;
  ::close(fd);
  errno = error;
  return synced;
}

StoreStatus sync_file_system(const std::string& root) {
#ifdef __linux__
  if (!sync_path(root, O_DIRECTORY, ::syncfs)) return io_error("cannot write", root, errno);
#else
  ::sync();
#endif
  return {};
}

bool exchange(const std::string& a, const std::string& b) {
#ifdef RENAME_EXCHANGE
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
#else
  return false;
#endif
}

os::Descriptor open_to_lock(const std::string& path) {
  return os::Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
}

std::string random_suffix(const char* kind) {
  // Not the process id: in containers it is nearly always the same one, and a
  // run that was killed leaves its name behind.
  std::string suffix = kind;
  for (const auto byte : os::random_value<std::array<std::uint8_t, kNumDigits>>())
    suffix += kDigits[byte % 16];
  return suffix;
}

void copy_permissions(const std::string& from, const std::string& to) {
  std::error_code error;
  const fs::perms perms = fs::status(from, error).permissions();
  if (!error && perms != fs::perms::unknown)
    fs::permissions(to, perms | fs::perms::owner_all, error);
}

}  // namespace

StoreStatus refuse_existing(const std::string& path) {
  struct stat info;
  if (::lstat(path.c_str(), &info) == 0)
    return {{Code::kExists, "already there; --force replaces it"}, path};
  return {};
}

StoreStatus refuse_other_kind(const std::string& path) {
  struct stat info;
  if (::lstat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISLNK(info.st_mode))
    return {{Code::kExists, "not a regular file; not replaced"}, path};
  return {};
}

StoreStatus refuse_long_name(const std::string& path) {
  if (fs::path(path).filename().native().size() > kMaxFileNameBytes)
    return {{Code::kUsage, "name of more than 241 bytes; Snug needs the rest while it works"},
            path};
  return {};
}

std::string temporary_name(const std::string& path) { return path + random_suffix(kTemporary); }

bool is_temporary_name(std::string_view name, std::string_view target) noexcept {
  const std::string_view kind = kTemporary;
  if (name.size() != target.size() + kind.size() + kNumDigits || !name.starts_with(target) ||
      name.substr(target.size(), kind.size()) != kind)
    return false;
  return name.substr(target.size() + kind.size()).find_first_not_of(kDigits) ==
         std::string_view::npos;
}

StoreStatus rename_path(const std::string& from, const std::string& to, bool force) {
#ifdef RENAME_NOREPLACE
  if (!force) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return {};
    if (errno == EEXIST) return refuse_existing(to);
    // File systems without this flag answer EINVAL: check, then rename.
    if (errno != EINVAL && errno != ENOSYS) return io_error("cannot rename to", to, errno);
  }
#endif
  if (!force)
    if (StoreStatus s = refuse_existing(to); !s.ok()) return s;
  if (::rename(from.c_str(), to.c_str()) != 0) return io_error("cannot rename to", to, errno);
  return {};
}

void sync_parent(const std::string& path) noexcept {
  try {
    const std::string parent = fs::path(path).parent_path().string();
    sync_path(parent.empty() ? "." : parent, O_DIRECTORY, ::fsync);
  } catch (const std::exception&) {
    // The rename stands; only its durability is left to the system.
  }
}

StoreStatus sync_folder(const std::string& root) {
  std::vector<std::string> paths{root};
  std::error_code error;
  for (fs::recursive_directory_iterator it(root, error), end; !error && it != end;
       it.increment(error))
    paths.push_back(it->path().string());
  if (error) return io_error("cannot list", root, error);
  if (paths.size() > kMaxSingleSyncs) return sync_file_system(root);
  // Contents before the folders that name them. If one cannot be synced alone, the call for the
  // whole file system says why.
  for (auto path = paths.rbegin(); path != paths.rend(); ++path)
    if (!sync_path(*path, O_NOFOLLOW, ::fsync)) return sync_file_system(root);
  return {};
}

StoreStatus rename_folder(const std::string& from, const std::string& to) {
  if (StoreStatus s = rename_path(from, to, false); !s.ok()) return s;
  sync_parent(to);
  return {};
}

bool remove_files(const std::string& root, std::span<const std::string> known) {
  const auto is_known = [&](const std::string& name) {
    return std::binary_search(known.begin(), known.end(), name);
  };
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(root, error)))
    return is_known("") && ::unlink(root.c_str()) == 0;
  Folder folder;
  folder.root = root;
  if (!list_files(folder).ok()) return false;
  for (const FolderFile& file : folder.files)
    if (!is_known(file.name)) return false;
  for (const FolderFile& file : folder.files) ::unlink(folder.path_of(file.name).c_str());
  std::for_each(folder.sub_folders.rbegin(), folder.sub_folders.rend(),
                [&](const std::string& name) { ::rmdir(folder.path_of(name).c_str()); });
  return ::rmdir(root.c_str()) == 0;
}

StoreStatus replace_folder(const std::string& from, const std::string& to,
                           std::span<const std::string> known, std::string& kept) {
  kept.clear();
  std::error_code error;
  if (!fs::exists(fs::symlink_status(to, error))) return rename_folder(from, to);
  const PathLock lock(to);  // which gets a temporary name
  std::string old = from;
  if (!exchange(from, to)) {
    old = temporary_name(to);
    if (StoreStatus s = rename_path(to, old, false); !s.ok()) return s;
    if (StoreStatus s = rename_path(from, to, false); !s.ok()) {
      (void)rename_path(old, to, false);  // better the older one than none
      return s;
    }
  }
  sync_parent(to);
  if (remove_files(old, known)) return {};
  kept = to + random_suffix(".kept-");
  if (!rename_path(old, kept, false).ok()) kept = old;
  sync_parent(to);
  return {};
}

StoreResult<OutputFile> OutputFile::create(const std::string& path, bool force, bool in_folder) {
  if (StoreStatus s = refuse_long_name(path); !s.ok()) return s;
  if (!force)
    if (StoreStatus s = refuse_existing(path); !s.ok()) return s;
  if (StoreStatus s = refuse_other_kind(path); !s.ok()) return s;
  OutputFile output;  // knows its names before there is a file, which it deletes
  output.file_.path_ = temporary_name(path);
  output.final_path_ = path;
  output.force_ = force;
  output.in_folder_ = in_folder;
  // Private until copy_attributes: the input may be.
  output.file_.fd_ =
      ::open(output.file_.path().c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (output.file_.fd_ < 0) return io_error("cannot create", path, errno);
  ::flock(output.file_.fd_, LOCK_EX);  // where it cannot be had, leftovers are not told from work
  return output;
}

OutputFile::~OutputFile() {
  if (file_.fd_ >= 0 && !final_path_.empty()) ::unlink(file_.path().c_str());
}

StoreStatus OutputFile::sync() const {
  struct stat info;
  // The disk may start on a large file while others are made. A call for each of thousands of small
  // ones takes many times as long as one for all: 12 s for 2000 shards of 1 KB on ext4.
  if (in_folder_ && ::fstat(file_.fd_, &info) == 0 && info.st_size < kMinSyncBytes) return {};
  return file_.sync();
}

StoreStatus OutputFile::commit() {
  if (StoreStatus s = check_stop(final_path_); !s.ok()) return s;
  if (StoreStatus s = rename_path(file_.path(), final_path_, force_); !s.ok()) return s;
  if (!in_folder_) sync_parent(final_path_);
  final_path_.clear();  // nothing left to delete
  return {};
}

OutputFolder::OutputFolder(const std::string& path, const std::string& like,
                           std::vector<std::string> sub_folders)
    : like_(like),
      final_(path),
      temporary_(temporary_name(path)),
      sub_folders_(std::move(sub_folders)) {}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
}

StoreStatus OutputFolder::create() {
  std::error_code error;
  if (!fs::create_directory(temporary_, error)) return io_error("cannot create", temporary_, error);
  lock_ = PathLock(temporary_);
  fs::permissions(temporary_, fs::perms::owner_all, error);
  for (const std::string& name : sub_folders_)
    if (!fs::create_directory(path_of(name), error))
      return io_error("cannot create", path_of(name), error);
  return {};
}

StoreStatus OutputFolder::commit(bool force, std::span<const std::string> known,
                                 std::string& kept) {
  for (const std::string& name : sub_folders_) copy_permissions(like_ + "/" + name, path_of(name));
  copy_permissions(like_, temporary_);
  if (StoreStatus s = sync_folder(temporary_); !s.ok()) return s;
  if (StoreStatus s = check_stop(final_); !s.ok()) return s;
  if (StoreStatus s = force ? replace_folder(temporary_, final_, known, kept)
                            : rename_folder(temporary_, final_);
      !s.ok())
    return s;
  committed_ = true;
  return {};
}

PathLock::PathLock(const std::string& path) : fd_(open_to_lock(path)) {
  if (fd_.get() >= 0) ::flock(fd_.get(), LOCK_EX);
}

bool PathLock::is_held(const std::string& path) {
  const os::Descriptor fd = open_to_lock(path);
  // What cannot be looked at may be in use.
  return fd.get() < 0 || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0;
}

StoreStatus check_target_folder(const std::string& out, std::span<const std::string> names,
                                bool force) {
  if (StoreStatus s = refuse_long_name(out); !s.ok()) return s;
  for (const std::string& name : names)
    if (StoreStatus s = refuse_long_name(name); !s.ok()) return s;
  if (!force) return refuse_existing(out);
  std::error_code error;
  if (!fs::exists(fs::symlink_status(out, error))) return {};
  if (!fs::is_directory(fs::symlink_status(out, error)))
    return {{Code::kExists, "is no folder; not replaced"}, out};
  Folder old;
  old.root = out;
  if (StoreStatus s = list_files(old); !s.ok()) return s;
  for (const FolderFile& file : old.files)
    if (!std::binary_search(names.begin(), names.end(), file.name))
      return failure(Code::kExists, "holds a file that is not part of the output; not replaced",
                     out, file.name);
  return {};
}

StoreStatus check_not_inside(const std::string& in, const std::string& out) {
  std::error_code error;
  const fs::path inner = fs::weakly_canonical(out, error), outer = fs::weakly_canonical(in, error);
  const auto [at, _] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  if (at == outer.end()) return {{Code::kUsage, "output lies inside the input folder"}, out};
  return {};
}

}  // namespace snug::store
