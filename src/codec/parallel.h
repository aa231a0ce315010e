// codec/parallel.h - threads over blocks.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "snug/status.h"

namespace snug::codec {

// Threads to use for `num_tasks`: as asked, or one per CPU for 0.
inline int thread_count(int asked, std::uint64_t num_tasks) noexcept {
  std::uint64_t n =
      asked > 0 ? static_cast<std::uint64_t>(asked) : std::thread::hardware_concurrency();
  if (n > 256) n = 256;
  if (n > num_tasks) n = num_tasks;
  return n < 1 ? 1 : static_cast<int>(n);
}

// Runs body on num_threads threads, this one included, and waits. If the system
// gives fewer threads, those that run do all the work.
template <class Body>
void parallel(int num_threads, Body body) noexcept {
  std::vector<std::thread> threads;
  try {
    threads.reserve(static_cast<std::size_t>(num_threads));
    for (int i = 1; i < num_threads; ++i) threads.emplace_back([&body] { body(); });
  } catch (const std::exception&) {
    // Fewer threads, same result.
  }
  body();
  for (auto& thread : threads) thread.join();
}

// Hands out block numbers in order, and lets the holders pass in order with the
// position each may write to.
class Turnstile {
 public:
  explicit Turnstile(std::uint64_t start) noexcept : position_(start) {}

  std::uint64_t take_ticket() noexcept { return next_ticket_.fetch_add(1); }

  // Waits until all earlier tickets passed; false once one failed. Tasks are short and alike, so a
  // turn mostly comes within microseconds: spin a few times before going to sleep.
  bool wait_for(std::uint64_t ticket, std::uint64_t& position) noexcept {
    constexpr int kLooks = 64;
    const auto my_turn = [&] {
      return turn_.load(std::memory_order_acquire) == ticket || failed();
    };
    for (int i = 0; i < kLooks && !my_turn(); ++i) std::this_thread::yield();
    if (!my_turn()) {
      std::unique_lock lock(mutex_);
      passed_.wait(lock, my_turn);
    }
    position = position_.load(std::memory_order_relaxed);
    return !failed();
  }
  void pass(std::uint64_t new_position) noexcept {
    position_.store(new_position, std::memory_order_relaxed);
    wake([&] { turn_.fetch_add(1, std::memory_order_release); });
  }
  void fail() noexcept {
    wake([&] { failed_.store(true, std::memory_order_release); });
  }
  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  std::uint64_t position() const noexcept { return position_.load(std::memory_order_relaxed); }

 private:
  // Without the lock a thread could miss the change between its look and its sleep.
  template <class Change>
  void wake(Change change) noexcept {
    {
      const std::lock_guard lock(mutex_);
      change();
    }
    passed_.notify_all();
  }

  std::atomic<std::uint64_t> next_ticket_{0};
  std::atomic<std::uint64_t> turn_{0};
  std::atomic<std::uint64_t> position_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable passed_;
};

// The error of the earliest task, whichever thread saw it first.
template <class Why = Status>
class FirstError {
 public:
  explicit operator bool() const noexcept { return any_.load(std::memory_order_relaxed); }

  void keep(std::uint64_t task, Why status) noexcept {
    if (status.ok()) return;
    const std::lock_guard lock(mutex_);
    if (!any_ || task < task_) {
      task_ = task;
      status_ = std::move(status);
    }
    any_ = true;
  }
  const Why& status() const noexcept { return status_; }

 private:
  std::mutex mutex_;
  std::atomic<bool> any_{false};
  std::uint64_t task_ = 0;
  Why status_;
};

}  // namespace snug::codec
