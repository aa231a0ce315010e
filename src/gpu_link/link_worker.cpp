#include "gpu_link/link_worker.h"

#include <exception>
#include <system_error>

#include "wire/message_rules.h"

namespace snug::gpu_link {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Waking a thread takes as long as sending a chunk: stay awake while the next message may come.
constexpr auto kSpin = milliseconds(5);
constexpr auto kNapBusy = microseconds(100);
constexpr auto kNapIdle = milliseconds(20);
constexpr auto kLookEvery = milliseconds(10);

constexpr Status kClosed{Code::kPeer, "the link was closed"};

// Yields to the other hyperthread, and now and then to the scheduler.
void relax(std::uint64_t num_looks, int num_pauses) {
  if (num_looks % 64 == 0) return std::this_thread::yield();
  for (int i = 0; i < num_pauses; ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
}

}  // namespace

Status LinkWorker::start() {
  const std::lock_guard lock(mutex_);
  return start_locked();
}

Status LinkWorker::start_locked() {
  if (thread_.joinable()) return {};
  last_moved_ = LinkClock::now();
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    return {Code::kIo, "cannot start a thread"};
  }
  return {};
}

void LinkWorker::stop() noexcept {
  stopping_ = true;
  own_bell_.ring();
  if (thread_.joinable()) thread_.join();
  std::uint32_t none = 0;  // the thread may never have started
  direction_.failure.compare_exchange_strong(none, static_cast<std::uint32_t>(Code::kOk) + 1);
  other_bell_.ring();
}

void LinkWorker::run() noexcept {
  const Status entered = options_.enter();
  for (;;) {
    const std::uint32_t seen = own_bell_.count.load();
    bool moved = false;
    Status s = entered;
    try {
      if (s.ok()) s = step(moved);
    } catch (const std::exception&) {
      s = {Code::kInternal, "out of memory or threads"};
    }
    if (s.ok()) s = look_around(moved);
    if (!s.ok()) {
      {
        const std::lock_guard lock(mutex_);
        status_ = s;
      }
      finish_all(s);
      std::uint32_t none = 0;
      const Code tell = stopping_ ? Code::kOk : s.code;
      direction_.failure.compare_exchange_strong(none, static_cast<std::uint32_t>(tell) + 1);
      other_bell_.ring();
      return;
    }
    if (!moved) rest(seen);
  }
}

Status LinkWorker::look_around(bool moved) {
  if (stopping_) return kClosed;
  const auto now = LinkClock::now();
  if (moved) {
    last_moved_ = now;
    return {};
  }
  if (const std::uint32_t failed = direction_.failure.load(); failed != 0)
    return wire::peer_failure(failed - 1, "the peer closed the link");
  if (now - last_look_ < kLookEvery) return {};
  last_look_ = now;
  if (is_busy() && now - last_moved_ > options_.timeout)
    return {Code::kTimeout, "the peer stopped in the middle of a message"};
  return options_.check_peer();
}

void LinkWorker::rest(std::uint32_t seen) {
  const auto waited = LinkClock::now() - last_moved_;
  if (waited < kSpin)
    relax(++num_looks_, is_busy() ? 1 : 8);
  else
    own_bell_.sleep(seen, is_busy() ? std::chrono::nanoseconds(kNapBusy) : kNapIdle);
}

}  // namespace snug::gpu_link
