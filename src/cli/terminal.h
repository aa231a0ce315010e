// cli/terminal.h - what all commands share: errors, signals, the progress bar.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <string>
#include <string_view>

#include "snug/store.h"

namespace snug::cli {

// Opens 0, 1 and 2 on /dev/null where the caller has closed them: a file that gets one of these
// numbers would receive our messages. Call it before anything opens a file.
void open_standard_streams() noexcept;

// Writes a part of `text`, as much as goes without waiting; waits at most 0.1 s for a reader.
// Returns the number of bytes, or -1 with the reason in errno.
ssize_t write_some(int fd, std::string_view text) noexcept;

// Ignores errors: losing the terminal must not end the work. After a signal, what nobody reads is
// given up.
void print_stderr(std::string_view text) noexcept;

std::string error_line(const StoreStatus& status);  // "snug: <one line>"

// Prints "snug: <one line>" to stderr; returns the exit code.
int print_error(const StoreStatus& status);
int print_error(Code code, const std::string& message);
int print_out_of_memory() noexcept;  // allocates nothing

// Says where a folder is that --force has replaced and not deleted, if there is one.
void print_kept(const std::string& path);

// From here on SIGINT, SIGTERM and SIGHUP only set a flag, so that commands can
// remove their temporary files; a second one kills. Writing to a closed pipe is an
// ordinary error.
void catch_signals() noexcept;
int pending_signal() noexcept;  // 0: none
// For commands that have nothing to clean up: from here on these signals end the process at once.
void end_on_signals() noexcept;

bool is_terminal(int fd) noexcept;

// Writes to stdout. False if it cannot be written, or a signal came meanwhile; a reader that has
// gone away is no reason for a message.
bool write_stdout(const void* bytes, std::size_t num_bytes) noexcept;
int print_stdout(const std::string& text);  // returns an exit code
int stdout_error();                         // the exit code after write_stdout has failed

// A bar with rate and time left on stderr, if that is a terminal. Erased at the end.
class ProgressBar {
 public:
  explicit ProgressBar(std::string title);
  ~ProgressBar();

  // For StoreOptions::progress: also where a signal stops the work.
  bool update(const Progress& progress);

 private:
  void draw(const Progress& progress, double seconds);

  using Clock = std::chrono::steady_clock;
  std::string title_;
  bool shown_ = false;
  const bool enabled_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_draw_{};
};

}  // namespace snug::cli
