#include "cli/printer.h"

#include <array>
#include <climits>

#include "cli/terminal.h"

namespace snug::cli {
namespace {

constexpr std::size_t kMaxWaitingBytes = std::size_t{1} << 20;

}  // namespace

Printer::Printer() : thread_([this] { run(); }) {}

Printer::~Printer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Printer::put(Stream& stream, std::string_view lines) {
  const std::lock_guard lock(mutex_);
  if (stream.waiting.size() + lines.size() > kMaxWaitingBytes) {
    stream.lost = true;
  } else {
    stream.waiting += lines;
  }
  changed_.notify_one();
}

void Printer::run() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !idle(); });
    if (idle()) return;
    write(out_, lock);
    write(error_, lock);
  }
}

void Printer::write(Stream& stream, std::unique_lock<std::mutex>& lock) noexcept {
  if (stream.waiting.empty()) return;
  std::array<char, PIPE_BUF> text;
  const std::size_t num_bytes = stream.waiting.copy(text.data(), text.size());
  lock.unlock();
  const ssize_t n = write_some(stream.fd, {text.data(), num_bytes});
  if (n < 0 && &stream == &out_ && pending_signal() == 0) (void)stdout_error();
  lock.lock();
  // In the end, Ctrl-C has to wait for one try only.
  const bool give_up = n < 0 || (stopping_ && pending_signal() != 0);
  stream.waiting.erase(0, give_up ? std::string::npos : static_cast<std::size_t>(n));
  if (!stream.lost || !stream.waiting.empty()) return;
  stream.lost = false;
  (void)write_some(STDERR_FILENO, "snug: lines were lost, because nobody read them\n");
}

}  // namespace snug::cli
