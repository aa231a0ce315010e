// snug mount: compressed files as their originals, without restoring them.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/json_text.h"
#include "cli/printer.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "mount/mount.h"

namespace snug::cli {
namespace {

struct MountArgs {
  std::string source, folder, cache = "256MiB";
  int num_threads = 0;
  bool background = false, allow_other = false, json = false, quiet = false;
};

// Goes on in a process of its own. In the caller's process it waits until the other one has said
// that it is ready, or has ended, and returns the exit code.
class Background {
 public:
  // True in the caller's process, which is to return `exit_code`.
  bool split(int& exit_code) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return exit_code = failed(), true;
    const pid_t pid = ::fork();
    if (pid < 0) return exit_code = failed(), true;
    if (pid == 0) {
      ::close(ends[0]);
      ready_ = ends[1];
      ::setsid();
      return false;
    }
    ::close(ends[1]);
    exit_code = wait_for(pid, ends[0]);
    return true;
  }

  // Lets the caller go, and lets go of its terminal and folder.
  void ready() {
    if (ready_ < 0) return;
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null, fd);
    ::close(null);
    (void)!::chdir("/");
    (void)!::write(ready_, "", 1);
    ::close(ready_);
  }

 private:
  // Until `pid` says that it is ready, or ends. A signal is for both, but the other process has a
  // session of its own: it is handed on.
  static int wait_for(pid_t pid, int says_ready) {
    struct pollfd heard = {says_ready, POLLIN, 0};
    while (pending_signal() == 0 && ::poll(&heard, 1, 50) <= 0) continue;
    char byte;
    if (pending_signal() != 0)
      ::kill(pid, pending_signal());
    else if (::read(says_ready, &byte, 1) == 1)
      return 0;
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : static_cast<int>(Code::kInternal);
    return code == 0 && pending_signal() != 0 ? print_error(StoreStatus{})
                                              : code;  // it was mounted, and is no more
  }

  static int failed() {
    return print_error({{Code::kIo, "cannot start a process"}, {}, {}, std::strerror(errno)});
  }
  int ready_ = -1;
};

int print_mounted(const mount::Mount& mounted, const MountArgs& args) {
  if (args.json) {
    const Json json = {{"command", "mount"},
                       {"folder", mounted.folder()},
                       {"pid", ::getpid()},
                       {"files", mounted.num_files()},
                       {"raw_bytes", mounted.raw_bytes()},
                       {"stored_bytes", mounted.stored_bytes()}};
    return print_stdout(json_text(json) + "\n");
  }
  if (args.quiet) return 0;
  print_stderr(printable(fmt::format(
                   "{} mounted at {}: {} file{}, {} of {}", args.source, mounted.folder(),
                   mounted.num_files(), mounted.num_files() == 1 ? "" : "s",
                   format_bytes(mounted.stored_bytes()), format_bytes(mounted.raw_bytes()))) +
               "\nunmount with: " + (args.background ? "" : "Ctrl-C, or ") +
               printable(mounted.how_to_unmount()) + "\n");
  return 0;
}

int run_mount(const MountArgs& args) {
  mount::MountOptions options;
  options.cache_bytes = parse_bytes(args.cache);
  if (options.cache_bytes < mount::kMinCacheBytes)
    return print_error(
        Code::kUsage,
        "--cache wants a size of at least 16MiB and at most 8000TB, not " + args.cache);
  options.num_threads = args.num_threads;
  options.allow_other = args.allow_other;
  Background background;
  if (int exit_code; args.background && background.split(exit_code)) return exit_code;
  std::optional<Printer> printer;  // whoever reads a file must not wait for our messages
  if (args.background) {
    ::openlog("snug", LOG_PID, LOG_DAEMON);
    options.log = [](const std::string& line) { ::syslog(LOG_ERR, "%s", printable(line).c_str()); };
  } else {
    printer.emplace();
    options.log = [&](const std::string& line) {
      printer->print_stderr("snug: " + printable(line) + "\n");
    };
  }
  auto mounted = mount::Mount::open(args.source, args.folder, options);
  if (!mounted) return print_error(mounted.status());
  const int exit_code = print_mounted(*mounted, args);
  if (exit_code == 0) background.ready();
  const StoreStatus status =
      mounted->serve([&] { return exit_code == 0 && pending_signal() == 0; });
  if (!status.ok()) {
    options.log(to_string(status));
    return static_cast<int>(status.status.code);
  }
  return exit_code;  // a signal is the usual way to end
}

}  // namespace

void add_mount(CLI::App& app, int& exit_code) {
  auto* cmd = app.add_subcommand("mount", "Show compressed files as their originals (FUSE)");
  auto args = std::make_shared<MountArgs>();
  cmd->add_option("COMPRESSED", args->source, "A compressed file, or a folder that compress wrote")
      ->required();
  cmd->add_option("DIR", args->folder, "An empty folder")->required();
  cmd->add_flag("-b,--background", args->background, "Return once mounted; messages go to syslog");
  cmd->add_option("--cache", args->cache, "Memory for decoded blocks")
      ->type_name("SIZE")
      ->capture_default_str();
  add_threads(*cmd, args->num_threads);
  cmd->add_flag("--allow-other", args->allow_other, "Let other users read, too");
  add_output_flags(*cmd, args->json, args->quiet);
  cmd->footer(
      "Every program sees the original files: names, sizes and bytes are those that\n"
      "decompress would write. The files are read-only, and blocks are decoded when they\n"
      "are read. Damage causes an I/O error for the reader and a message here.\n\n"
      "--allow-other: the permissions of the files and folders of COMPRESSED apply, and\n"
      "those of the folders above it do not.\n\n"
      "Needs /dev/fuse. Users other than root also need fusermount3 (package fuse3).\n\n"
      "Examples:\n"
      "  snug mount Llama-3-8B.snug /mnt/llama\n"
      "  snug mount --background model.snug.safetensors dir && sha256sum dir/*\n"
      "  fusermount3 -u dir                               # unmounts; as root: umount dir\n");
  cmd->callback([args, &exit_code] { exit_code = run_mount(*args); });
}

}  // namespace snug::cli
