#include "mount/fuse_channel.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "os/pass_descriptor.h"
#include "store/file_io.h"
#include "store/workers.h"

namespace snug::mount {
namespace {

constexpr char kHelper[] = "fusermount3";  // mounts for those who are not root

// In the table of mounts and in options, these characters mean something else.
std::string escaped(const std::string& text, const char* special, bool octal) {
  std::string out;
  for (const char c : text) {
    if (std::strchr(special, c) == nullptr) {
      out += c;
    } else if (octal) {
      const char digits[] = {'\\', static_cast<char>('0' + (c >> 6)),
                             static_cast<char>('0' + (c >> 3 & 7)),
                             static_cast<char>('0' + (c & 7))};
      out.append(digits, sizeof digits);
    } else {
      out += {'\\', c};
    }
  }
  return out;
}

StoreStatus refused(const std::string& folder, int error) {
  if (error == EPERM || error == EACCES)
    return {{Code::kIo,
             "not allowed to mount: run as root, or install fusermount3 (package fuse3). A "
             "container needs --cap-add SYS_ADMIN --device /dev/fuse"},
            folder};
  if (error == ENODEV) return {{Code::kIo, "this kernel has no FUSE (modprobe fuse)"}, folder};
  return store::io_error("cannot mount", folder, error);
}

struct HelperResult {
  int error = 0;  // why it could not be started
  bool found = false;
  bool ok = false;
  std::string message = {};
};

// Runs the helper and waits for its end.
HelperResult run_helper(const char* const* arguments, int socket_fd) {
  const std::string socket_number = std::to_string(socket_fd);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {errno};
  const os::Descriptor from_helper(ends[0]);
  os::Descriptor errors(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return {errno};
  if (pid == 0) {
    ::setpgid(0, 0);  // Ctrl-C is not for the helper
    ::dup2(errors.get(), STDERR_FILENO);
    if (socket_fd >= 0) {
      ::fcntl(socket_fd, F_SETFD, 0);
      ::setenv("_FUSE_COMMFD", socket_number.c_str(), 1);
    }
    ::execvp(kHelper, const_cast<char* const*>(arguments));
    ::_exit(127);
  }
  errors = os::Descriptor();  // reading ends when the helper closes its own
  HelperResult result;
  char piece[256];
  for (ssize_t n; (n = ::read(from_helper.get(), piece, sizeof piece)) != 0;)
    if (n > 0) result.message.append(piece, static_cast<std::size_t>(n));
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  result.found = WIFEXITED(status) && WEXITSTATUS(status) != 127;
  result.ok = result.found && WEXITSTATUS(status) == 0;
  result.message = result.message.substr(0, result.message.find('\n'));
  return result;
}

StoreResult<os::Descriptor> mount_by_helper(const std::string& options, const std::string& folder) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return store::io_error("cannot mount", folder, errno);
  os::Descriptor theirs(ends[0]);
  const os::Descriptor ours(ends[1]);
  const char* const arguments[] = {kHelper, "-o", options.c_str(), "--", folder.c_str(), nullptr};
  const HelperResult result = run_helper(arguments, theirs.get());
  theirs = os::Descriptor();  // else a helper that has sent nothing would be waited for
  os::Descriptor fd = result.ok ? os::receive_descriptor(ours.get()) : os::Descriptor();
  if (result.error != 0) return store::io_error("cannot mount", folder, result.error);
  if (!result.found) return refused(folder, EPERM);
  if (fd.get() < 0) return store::failure(Code::kIo, "cannot mount", folder, result.message);
  return fd;
}

}  // namespace

const char* unmount_command() noexcept { return ::geteuid() == 0 ? "umount" : "fusermount3 -u"; }

StoreStatus check_mount_point(const std::string& folder) {
  struct stat info;
  int error = ::stat(folder.c_str(), &info) == 0 ? 0 : errno;
  if (error == 0 && !S_ISDIR(info.st_mode)) return {{Code::kUsage, "not a folder"}, folder};
  DIR* list = error == 0 ? ::opendir(folder.c_str()) : nullptr;
  if (error == 0 && list == nullptr) error = errno;
  // The attributes of a dead mount may be known to the kernel, and its list not, so both may say
  // it.
  if (error == ENOTCONN)
    return store::failure(Code::kIo, "a mount whose process has died is there; remove it with",
                          folder, unmount_command() + (" " + folder));
  if (error == ENOENT) return {{Code::kNotFound, "no such folder; make it first"}, folder};
  if (error != 0) return store::io_error("cannot mount", folder, error);
  bool is_empty = true;
  while (const struct dirent* entry = ::readdir(list)) {
    const std::string_view name = entry->d_name;
    is_empty = is_empty && (name == "." || name == "..");
  }
  ::closedir(list);
  if (is_empty) return {};
  return {{Code::kExists, "folder is not empty, or something is mounted there already"}, folder};
}

StoreResult<FuseChannel> FuseChannel::mount(const std::string& source, const std::string& folder,
                                            bool allow_other) {
  if (StoreStatus s = check_mount_point(folder); !s.ok()) return s;
  char resolved[PATH_MAX];
  struct stat info;
  if (::realpath(folder.c_str(), resolved) == nullptr || ::stat(resolved, &info) != 0)
    return store::io_error("cannot mount", folder, errno);
  FuseChannel channel;
  channel.folder_ = resolved;
  const std::string common =
      std::string("default_permissions") + (allow_other ? ",allow_other" : "");

  os::Descriptor fd(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
  if (fd.get() < 0 && (errno == ENOENT || errno == ENODEV || errno == ENXIO))
    return StoreStatus{{Code::kIo,
                        "no /dev/fuse: load the kernel's module fuse, or start the container with "
                        "--device /dev/fuse --cap-add SYS_ADMIN"},
                       folder};
  int error = fd.get() < 0 ? errno : 0;
  if (error == 0) {
    std::ostringstream options;
    options << "fd=" << fd.get() << ",rootmode=" << std::oct << (info.st_mode & S_IFMT) << std::dec
            << ",user_id=" << ::getuid() << ",group_id=" << ::getgid() << "," << common;
    if (::mount(source.c_str(), resolved, "fuse.snug", MS_NOSUID | MS_NODEV | MS_RDONLY,
                options.str().c_str()) == 0) {
      channel.fd_ = std::move(fd);
      channel.is_mounted_ = true;
      return channel;
    }
    error = errno;
  }
  if (error != EPERM && error != EACCES) return refused(folder, error);
  auto passed = mount_by_helper(
      "ro,nosuid,nodev," + common + ",subtype=snug,fsname=" + escaped(source, ",\\", false),
      resolved);
  if (!passed) return passed.status();
  channel.fd_ = std::move(*passed);
  channel.is_mounted_ = channel.by_helper_ = true;
  return channel;
}

FuseChannel::FuseChannel(FuseChannel&& other) noexcept { *this = std::move(other); }

FuseChannel& FuseChannel::operator=(FuseChannel&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(is_mounted_, other.is_mounted_);
  std::swap(by_helper_, other.by_helper_);
  std::swap(folder_, other.folder_);
  return *this;
}

FuseChannel::~FuseChannel() { (void)unmount(); }

StoreStatus FuseChannel::unmount() noexcept {
  return store::guarded([&]() -> StoreStatus {
    constexpr const char* kFailed = "cannot unmount";  // a literal: statuses keep the pointer
    if (!std::exchange(is_mounted_, false)) return {};
    if (!by_helper_) {
      if (::umount2(folder_.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) == 0) return {};
      return store::io_error(kFailed, folder_, errno);
    }
    const char* const arguments[] = {kHelper, "-u", "-z", "--", folder_.c_str(), nullptr};
    const HelperResult result = run_helper(arguments, -1);
    if (result.error != 0) return store::io_error(kFailed, folder_, result.error);
    if (!result.ok) return store::failure(Code::kIo, kFailed, folder_, result.message);
    return {};
  });
}

void FuseChannel::raise_kernel_read_ahead() const noexcept try {
  std::ifstream table("/proc/self/mountinfo");
  const std::string wanted = escaped(folder_, " \t\n\\", true);
  std::string line, device;
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string id, parent, number, root, point;
    if (fields >> id >> parent >> number >> root >> point && point == wanted) device = number;
  }
  if (device.empty()) return;
  std::ofstream("/sys/class/bdi/" + device + "/read_ahead_kb") << "1024\n";
} catch (const std::exception&) {  // it is slower without, that is all
}

}  // namespace snug::mount
