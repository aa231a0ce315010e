#include "mount/server.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <utility>

#include "mount/request.h"

namespace snug::mount {

namespace {

// Most of them wait: for the kernel, or for a piece to be decoded.
constexpr int kRequestThreads = 16;
constexpr std::size_t kBufferBytes = std::size_t{64} << 10;
constexpr std::size_t kMaxKnownLines = 1000;
constexpr int kWakeSignal = SIGUSR1;

}  // namespace

// ---- threads ----------------------------------------------------------------

StoreStatus Server::serve(const std::function<bool()>& keep_going) {
  // A read that waits for the kernel returns when its thread gets this signal.
  struct sigaction action = {}, old_action;
  action.sa_handler = [](int) {};
  ::sigaction(kWakeSignal, &action, &old_action);
  // All other signals are the caller's.
  sigset_t blocked, old_mask;
  sigfillset(&blocked);
  sigdelset(&blocked, kWakeSignal);
  ::pthread_sigmask(SIG_SETMASK, &blocked, &old_mask);
  std::vector<std::thread> threads;
  StoreStatus status = store::guarded([&]() -> StoreStatus {
    cache_ = std::make_unique<PieceCache>(*tree_, std::max(options_.cache_bytes, kMinCacheBytes),
                                          store::store_threads(options_.num_threads));
    threads.reserve(kRequestThreads);
    for (int i = 0; i < kRequestThreads; ++i) {
      threads.emplace_back([this] { work(); });
      const std::lock_guard lock(mutex_);
      ++num_running_;
    }
    return {};
  });
  ::pthread_sigmask(SIG_SETMASK, &old_mask, nullptr);
  if (!threads.empty()) status = {};  // fewer do the same work
  if (status.ok()) channel_.raise_kernel_read_ahead();

  std::unique_lock lock(mutex_);
  const auto all_ended = [this] { return num_running_ == 0; };
  while (status.ok() && keep_going() && !is_gone_ && !all_ended())
    thread_ended_.wait_for(lock, std::chrono::milliseconds(100));
  if (is_gone_) {
    channel_.forget_mount();
  } else if (all_ended() && status.ok()) {
    status = {{Code::kInternal, "no thread is left to answer: out of memory"}, channel_.folder()};
  }
  stopping_ = true;
  lock.unlock();
  const StoreStatus unmounted = channel_.unmount();
  lock.lock();
  // A signal between a thread's look at `stopping_` and its read is lost: hence again and again. It
  // also ends a write of `options_.log` that nobody reads.
  while (!all_ended()) {
    for (std::thread& thread : threads) ::pthread_kill(thread.native_handle(), kWakeSignal);
    thread_ended_.wait_for(lock, std::chrono::milliseconds(10));
  }
  lock.unlock();
  // Somebody else may have been faster.
  if (status.ok() && !unmounted.ok() && !is_gone_) status = unmounted;
  for (std::thread& thread : threads) thread.join();
  cache_.reset();
  ::sigaction(kWakeSignal, &old_action, nullptr);
  return status;
}

void Server::work() {
  (void)store::guarded([this]() -> StoreStatus {
    std::vector<std::byte> buffer(kBufferBytes), content;
    while (!stopping_ && answer_next(buffer, content)) continue;
    return {};
  });
  const std::lock_guard lock(mutex_);
  --num_running_;
  thread_ended_.notify_all();
}

// False when the kernel has no more requests.
bool Server::answer_next(std::vector<std::byte>& buffer, std::vector<std::byte>& content) noexcept {
  const ssize_t n = ::read(channel_.fd(), buffer.data(), buffer.size());
  if (n < 0 && errno == ENODEV) is_gone_ = true;
  if (n < 0) return errno == EINTR || errno == EAGAIN || errno == ENOENT;
  if (static_cast<std::size_t>(n) < sizeof(fuse_in_header)) return true;
  const auto* header = reinterpret_cast<const fuse_in_header*>(buffer.data());
  const Request request{header, std::span<const std::byte>(buffer)
                                    .first(static_cast<std::size_t>(n))
                                    .subspan(sizeof(fuse_in_header))};
  const StoreStatus status = store::guarded([&]() -> StoreStatus {
    answer(request, content);
    return {};
  });
  if (!status.ok()) {  // no memory
    reply_error(request, EIO);
    (void)store::guarded([&]() -> StoreStatus {
      log(name_of(header->nodeid), status);
      return {};
    });
  }
  return true;
}

void Server::answer(const Request& request, std::vector<std::byte>& content) {
  switch (request.header->opcode) {
    case FUSE_INIT: return init(request);
    case FUSE_LOOKUP: return lookup(request);
    case FUSE_GETATTR: return get_attributes(request);
    case FUSE_OPEN:
    case FUSE_OPENDIR: return open_file(request);
    case FUSE_READ: return read_file(request, content);
    case FUSE_READDIR: return read_folder(request);
    case FUSE_STATFS: return statistics(request);
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
    case FUSE_DESTROY: return reply(request, nullptr, 0);
    // These want no answer. All nodes stay, and requests are short.
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT: return;
    default: return reply_error(request, ENOSYS);  // the kernel does without, or says EROFS itself
  }
}

// ---- answers ----------------------------------------------------------------

void Server::reply(const Request& request, std::vector<struct iovec> parts) {
  fuse_out_header header = {};
  header.unique = request.header->unique;
  std::size_t num_bytes = sizeof header;
  for (const struct iovec& part : parts) num_bytes += part.iov_len;
  header.len = static_cast<std::uint32_t>(num_bytes);
  parts.insert(parts.begin(), to_iovec(&header, sizeof header));
  // Nobody waits any more if this fails: the request was interrupted, or the mount is gone.
  (void)!::writev(channel_.fd(), parts.data(), static_cast<int>(parts.size()));
}

void Server::reply(const Request& request, const void* bytes, std::size_t num_bytes) {
  std::vector<struct iovec> parts;
  parts.reserve(2);
  if (num_bytes > 0) parts.push_back(to_iovec(bytes, num_bytes));
  reply(request, std::move(parts));
}

void Server::reply_error(const Request& request, int error) {
  const fuse_out_header header{sizeof header, -error, request.header->unique};
  (void)!::write(channel_.fd(), &header, sizeof header);
}

// ---- log --------------------------------------------------------------------

std::string Server::name_of(std::uint64_t number) const {
  std::string name;
  for (const MountTree::Node* node = tree_->node(number); node != nullptr && !node->name.empty();
       node = tree_->node(node->parent))
    name = node->name + (name.empty() ? "" : "/") + name;
  return name;
}

// Readers try again, and neighbours read ahead into the same damage: each line is said once. One
// thread at a time logs, so that the others still answer where `options_.log` waits.
void Server::log(const std::string& name, const StoreStatus& status) {
  if (!options_.log) return;
  std::unique_lock lock(mutex_);
  if (known_lines_.size() > kMaxKnownLines || !known_lines_.insert(to_string(status)).second)
    return;
  lines_.push_back(known_lines_.size() <= kMaxKnownLines
                       ? name + ": " + to_string(status)
                       : "there are more errors; no more of them are reported");
  if (std::exchange(is_logging_, true)) return;
  while (!lines_.empty()) {
    const std::string line = std::move(lines_.front());
    lines_.pop_front();
    lock.unlock();
    (void)store::guarded([&]() -> StoreStatus {
      options_.log(line);
      return {};
    });
    lock.lock();
  }
  is_logging_ = false;
}

}  // namespace snug::mount
