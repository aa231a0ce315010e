// cli/printer.h - output of commands that serve others: a reader that stops reading must not stop
// them.
#pragma once
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace snug::cli {

// Prints on a thread of its own. Lines wait for their reader, and those that do not fit into a
// megabyte are lost.
class Printer {
 public:
  Printer();
  ~Printer();  // waits until all is written; after a signal only for a moment

  // Both return at once, and may be called by any thread.
  void print_stdout(std::string_view lines) { put(out_, lines); }
  void print_stderr(std::string_view lines) { put(error_, lines); }

 private:
  struct Stream {
    int fd;
    std::string waiting;
    bool lost = false;
  };
  void put(Stream& stream, std::string_view lines);
  bool idle() const { return out_.waiting.empty() && error_.waiting.empty(); }
  void run() noexcept;
  void write(Stream& stream, std::unique_lock<std::mutex>& lock) noexcept;

  std::mutex mutex_;
  std::condition_variable changed_;
  Stream out_{STDOUT_FILENO, {}}, error_{STDERR_FILENO, {}};
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace snug::cli
