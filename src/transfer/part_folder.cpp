#include "transfer/part_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "store/output.h"
#include "store/stop.h"

namespace snug::transfer {
namespace {

namespace fs = std::filesystem;
using store::io_error;

constexpr int kFolderFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr mode_t kPrivate = 0700;

bool is_named(int fd, const std::string& path) {
  struct stat mine, named;
  return ::fstat(fd, &mine) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         mine.st_ino == named.st_ino;
}

bool is_ours(const struct stat& info) { return info.st_uid == ::geteuid(); }

// A sender may reconnect before this side has noticed that its old connection is gone.
bool lock(int fd, const std::string& path) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  // The previous holder may have renamed the folder to its final name.
  return is_named(fd, path);
}

// The part gets a name of its own while it is exchanged for the older folder: a sender that
// reconnects meanwhile finds no part, and starts from the beginning.
StoreStatus replace_folder(const std::string& part, const std::string& final, bool force,
                           std::span<const std::string> known, std::string& kept) {
  if (!force) return store::rename_folder(part, final);
  const std::string complete = store::temporary_name(final);
  if (StoreStatus s = store::rename_path(part, complete, false); !s.ok()) return s;
  StoreStatus s = store::replace_folder(complete, final, known, kept);
  if (!s.ok()) (void)store::rename_path(complete, part, false);
  return s;
}

}  // namespace

StoreResult<PartFolder> PartFolder::open(const std::string& folder, const FileManifest& manifest,
                                         bool force) {
  PartFolder part;
  part.folder_ = folder;
  part.path_ = folder + "/." + manifest.name + kPartSuffix;
  const std::string final = folder + "/" + manifest.name;
  if (!force)
    if (StoreStatus s = store::refuse_existing(final); !s.ok()) return s;
  if (!manifest.is_folder)
    if (StoreStatus s = store::refuse_other_kind(final); !s.ok()) return s;
  // Private until it is complete.
  if (::mkdir(part.path_.c_str(), kPrivate) != 0 && errno != EEXIST)
    return io_error("cannot create", part.path_, errno);
  part.root_ = Descriptor(::open(part.path_.c_str(), kFolderFlags));
  if (part.root_.get() < 0) return io_error("cannot open", part.path_, errno);
  if (StoreStatus s = part.check_owner(); !s.ok()) return s;
  if (!lock(part.root_.get(), part.path_))
    return StoreStatus{{Code::kTimeout, "another transfer of this name is at work"}, part.path_};
  part.make_private();  // one that was killed in `commit` may have left it open to others
  if (StoreStatus s = part.check_room(manifest); !s.ok()) {
    ::rmdir(part.path_.c_str());  // fails, as it should, if an earlier attempt left something
    return s;
  }
  return part;
}

// In a folder that users share, another one could keep the files open and change them later.
StoreStatus PartFolder::check_owner() const {
  struct stat info;
  if (::fstat(root_.get(), &info) != 0) return io_error("cannot open", path_, errno);
  if (is_ours(info) && (info.st_mode & 022) == 0) return {};
  return {{Code::kExists, "an unfinished transfer that others may write to; delete it"}, path_};
}

// Room for everything, counting what an earlier attempt has already taken.
StoreStatus PartFolder::check_room(const FileManifest& manifest) const {
  struct statvfs disk;
  if (::statvfs(path_.c_str(), &disk) != 0) return {};
  std::uint64_t taken = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(path_, error), end; !error && it != end;
       it.increment(error)) {
    struct stat info;
    if (::lstat(it->path().c_str(), &info) == 0 && S_ISREG(info.st_mode))
      taken += static_cast<std::uint64_t>(info.st_blocks) * 512;
  }
  const std::uint64_t room = std::uint64_t{disk.f_bavail} * disk.f_frsize + taken;
  if (manifest.num_bytes() > room)
    return {.status = {Code::kIo, "not enough room on the disk"},
            .file = folder_,
            .detail = std::to_string(room >> 20) + " MiB free, " +
                      std::to_string((manifest.num_bytes() >> 20) + 1) + " MiB needed"};
  return {};
}

StoreResult<store::File> PartFolder::open_file(const ManifestFile& file) const {
  Descriptor at(::fcntl(root_.get(), F_DUPFD_CLOEXEC, 0));
  std::string_view rest = file.name;
  while (at.get() >= 0) {
    const std::string part(rest.substr(0, rest.find('/')));
    if (part.size() == rest.size()) {
      Descriptor opened(::openat(at.get(), part.c_str(),
                                 O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
      struct stat info;
      if (opened.get() < 0 || ::fstat(opened.get(), &info) != 0) break;
      errno = ELOOP;  // for what is no regular file
      if (!S_ISREG(info.st_mode)) break;
      if (!is_ours(info) || info.st_nlink != 1)
        return StoreStatus{{Code::kIo, "another user's, or a hard link; delete it"},
                           path_ + "/" + file.name};
      const auto most = static_cast<off_t>(file.num_bytes);
      if (info.st_size > most && ::ftruncate(opened.get(), most) != 0) break;
      return store::File::adopt(opened.release(), path_ + "/" + file.name);
    }
    if (::mkdirat(at.get(), part.c_str(), kPrivate) != 0 && errno != EEXIST) break;
    at = Descriptor(::openat(at.get(), part.c_str(), kFolderFlags));
    rest.remove_prefix(part.size() + 1);
  }
  return io_error("cannot create", path_ + "/" + file.name, errno);
}

StoreStatus PartFolder::remove_strangers(const FileManifest& manifest) const {
  // A file of the manifest, or a folder of one. Names are sorted.
  const auto wanted = [&](const std::string& name) {
    const auto first = [&](const std::string& prefix) {
      return std::ranges::lower_bound(manifest.files, prefix, {}, &ManifestFile::name);
    };
    const auto file = first(name), inside = first(name + "/");
    return (file != manifest.files.end() && file->name == name) ||
           (inside != manifest.files.end() && inside->name.starts_with(name + "/"));
  };
  std::vector<fs::path> strangers;
  std::error_code error;
  for (fs::recursive_directory_iterator it(path_, error), end; !error && it != end;
       it.increment(error))
    if (!wanted(it->path().lexically_relative(path_).generic_string()))
      strangers.push_back(it->path());
  for (const fs::path& stranger : strangers)
    if (!error) fs::remove_all(stranger, error);
  if (error) return io_error("cannot clear", path_, error.value());
  return {};
}

void PartFolder::make_private() const { (void)!::fchmod(root_.get(), kPrivate); }

// mkdir applies the umask, which can only be read by setting it for all threads.
StoreResult<mode_t> PartFolder::usual_mode() const {
  const std::string probe = std::string("mode") + kPartSuffix;  // no file of a manifest
  struct stat info;
  if (::mkdirat(root_.get(), probe.c_str(), 0755) != 0 ||
      ::fstatat(root_.get(), probe.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0 ||
      ::unlinkat(root_.get(), probe.c_str(), AT_REMOVEDIR) != 0)
    return io_error("cannot create", path_, errno);
  return (info.st_mode & 0755) | kPrivate;
}

void PartFolder::discard() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void PartFolder::remove_abandoned(const std::string& path) {
  const Descriptor root(::open(path.c_str(), kFolderFlags));
  std::error_code ignored;
  struct stat info;
  if (root.get() >= 0 && ::fstat(root.get(), &info) == 0 && is_ours(info) &&
      ::flock(root.get(), LOCK_EX | LOCK_NB) == 0 && is_named(root.get(), path))
    fs::remove_all(path, ignored);
}

StoreResult<std::string> PartFolder::commit(
    const FileManifest& manifest, bool force,
    const std::function<StoreStatus(const std::string&)>& check, std::span<const std::string> known,
    std::string& kept) {
  if (StoreStatus s = remove_strangers(manifest); !s.ok()) return s;
  if (check)
    if (StoreStatus s = check(manifest.is_folder ? path_ : path_ + "/" + manifest.name); !s.ok())
      return s;
  const auto mode = usual_mode();
  if (!mode) return mode.status();
  for (const ManifestFile& file : manifest.files) {
    auto opened = open_file(file);
    if (!opened) return opened.status();
    // The owner may always read and write, others never write.
    ::fchmod(opened->fd(), (file.mode & *mode) | 0600);
    if (manifest.is_folder) continue;
    if (StoreStatus s = opened->sync(); !s.ok()) return s;
  }
  const std::string final = folder_ + "/" + manifest.name;
  if (manifest.is_folder) {
    open_to_others(*mode);
    StoreStatus s = store::sync_folder(path_);
    if (s.ok()) s = store::check_stop(final);
    if (s.ok()) s = replace_folder(path_, final, force, known, kept);
    if (!s.ok()) return make_private(), s;
  } else {
    if (StoreStatus s = store::check_stop(final); !s.ok()) return s;
    if (StoreStatus s = store::rename_path(path_ + "/" + manifest.name, final, force); !s.ok())
      return s;
    ::rmdir(path_.c_str());
    store::sync_parent(final);
  }
  return final;
}

void PartFolder::open_to_others(mode_t mode) const {
  const auto perms = static_cast<fs::perms>(mode);
  std::error_code error;
  for (fs::recursive_directory_iterator it(path_, error), end; !error && it != end;
       it.increment(error))
    if (it->is_directory(error)) fs::permissions(it->path(), perms, error);
  (void)!::fchmod(root_.get(), mode);
}

}  // namespace snug::transfer
