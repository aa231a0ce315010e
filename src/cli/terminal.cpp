#include "cli/terminal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "cli/units.h"

namespace snug::cli {
namespace {

// Written by a handler and read by all threads.
std::atomic<int> g_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "a handler must not take a lock");
// After end_on_signals: a signal ends the process wherever it waits.
std::atomic<bool> g_ends_at_once{false};

void on_signal(int signal) { g_signal.store(signal, std::memory_order_relaxed); }

void end_at_once(int signal) {
  on_signal(signal);
  print_stderr("snug: interrupted\n");
  ::_exit(128 + signal);
}

bool write_all(int fd, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t n = write_some(fd, text);
    if (n < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(n));
    if (!text.empty() && pending_signal() != 0) return errno = EINTR, false;
  }
  return true;
}

std::size_t terminal_columns() noexcept {
  struct winsize size;
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

void open_standard_streams() noexcept {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is `fd`. The wrong direction, so that using the stream still fails.
    (void)::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

ssize_t write_some(int fd, std::string_view text) noexcept {
  // A signal may interrupt another thread than this one, so nobody may wait for long. A pipe that
  // is ready takes PIPE_BUF bytes without waiting; more may have to wait for the reader.
  constexpr int kWaitMs = 100;
  constexpr std::size_t kSureBytes = PIPE_BUF;
  struct pollfd entry = {fd, POLLOUT, 0};
  const int ready = ::poll(&entry, 1, kWaitMs);
  if (ready == 0) return 0;
  if (ready > 0 && !g_ends_at_once) text = text.substr(0, kSureBytes);
  const ssize_t n = ready < 0 ? -1 : ::write(fd, text.data(), text.size());
  return n < 0 && (errno == EINTR || errno == EAGAIN) ? 0 : n;
}

void print_stderr(std::string_view text) noexcept { (void)write_all(STDERR_FILENO, text); }

std::string error_line(const StoreStatus& status) {
  return "snug: " + printable(to_string(status)) + "\n";
}

int print_out_of_memory() noexcept {
  print_stderr("snug: internal: out of memory\n");
  return static_cast<int>(Code::kInternal);
}

int print_error(const StoreStatus& status) {
  if (pending_signal() != 0) {
    print_stderr("snug: interrupted\n");
    return 128 + pending_signal();
  }
  print_stderr(error_line(status));
  return static_cast<int>(status.status.code);
}

int print_error(Code code, const std::string& message) {
  print_stderr(fmt::format("snug: {}: {}\n", code_name(code), printable(message)));
  return static_cast<int>(code);
}

void print_kept(const std::string& path) {
  if (path.empty()) return;
  print_stderr("snug: files were put into the old folder meanwhile; it is now " + printable(path) +
               "\n");
}

void catch_signals() noexcept {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction inherited;
    // Signals that the caller ignores stay ignored (nohup, background jobs).
    if (::sigaction(signal, nullptr, &inherited) == 0 && inherited.sa_handler != SIG_IGN)
      ::sigaction(signal, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);
  // Past a file size limit, write() fails with EFBIG instead of killing.
  std::signal(SIGXFSZ, SIG_IGN);
}

void end_on_signals() noexcept {
  g_ends_at_once = true;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction current;
    if (::sigaction(signal, nullptr, &current) == 0 && current.sa_handler == on_signal)
      std::signal(signal, end_at_once);
  }
  if (pending_signal() != 0) end_at_once(pending_signal());  // it came before
}

int pending_signal() noexcept { return g_signal.load(std::memory_order_relaxed); }

bool is_terminal(int fd) noexcept { return ::isatty(fd) == 1; }

bool write_stdout(const void* bytes, std::size_t num_bytes) noexcept {
  return write_all(STDOUT_FILENO, {static_cast<const char*>(bytes), num_bytes});
}

int print_stdout(const std::string& text) {
  return write_stdout(text.data(), text.size()) ? 0 : stdout_error();
}

int stdout_error() {
  if (pending_signal() != 0) return print_error(StoreStatus{});
  if (errno == EPIPE) return static_cast<int>(Code::kIo);
  return print_error(Code::kIo, std::string("stdout: ") + std::strerror(errno));
}

ProgressBar::ProgressBar(std::string title)
    : title_(printable(title)), enabled_(is_terminal(STDERR_FILENO)) {}

ProgressBar::~ProgressBar() {
  if (shown_) print_stderr("\r\033[K");
}

bool ProgressBar::update(const Progress& progress) {
  if (pending_signal() != 0) return false;
  const Clock::time_point now = Clock::now();
  // Short jobs end before a bar would be readable.
  if (!enabled_ || now - start_ < std::chrono::milliseconds(200) ||
      now - last_draw_ < std::chrono::milliseconds(100))
    return true;
  last_draw_ = now;
  try {
    draw(progress, std::chrono::duration<double>(now - start_).count());
  } catch (const std::exception&) {  // a bar is no reason to stop the work
  }
  return true;
}

void ProgressBar::draw(const Progress& progress, double seconds) {
  const double share = progress.total_bytes == 0 ? 1.0
                                                 : static_cast<double>(progress.done_bytes) /
                                                       static_cast<double>(progress.total_bytes);
  const double left = share > 0 ? seconds / share - seconds : 0;
  const std::string before = fmt::format("{:<11} {}  ", progress.phase, title_);
  const std::string after =
      fmt::format("  {:>3.0f} %  {}  {} left", share * 100,
                  format_rate(progress.done_bytes, seconds), format_seconds(left));
  const std::size_t used = display_width(before) + display_width(after) + 3;
  const std::size_t columns = terminal_columns();
  std::string line = before;
  if (columns > used + 8) line += "▕" + bar(share, std::min<std::size_t>(columns - used, 40)) + "▏";
  // A line wider than the terminal would scroll with every update.
  line =
      display_width(line + after) < columns ? line + after : fmt::format("{:>3.0f} %", share * 100);
  print_stderr("\r" + line + "\033[K");
  shown_ = true;
}

}  // namespace snug::cli
