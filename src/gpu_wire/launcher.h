// gpu_wire/launcher.h - a thread that makes calls to the GPU for another one, which has no
// time for them: each takes about 10 us, as long as a link needs for half a megabyte.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "snug/status.h"

namespace snug::cuda {

class Launcher {
 public:
  using Job = std::function<Status()>;

  ~Launcher() { stop(); }

  // Jobs run in order; after one that failed, none does. Starts the thread if need be,
  // and throws std::system_error where that is not possible.
  void add(Job job) {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    jobs_.push_back(std::move(job));
    num_jobs_.fetch_add(1);
    if (asleep_) changed_.notify_one();
  }
  // Why no job runs any more.
  Status status() const {
    if (!failed_.load()) return {};
    const std::lock_guard lock(mutex_);
    return status_;
  }
  // Returns when the job at work, if any, is done. The others are dropped.
  void stop() noexcept {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_one();
    }
    num_jobs_.fetch_add(1);
    if (thread_.joinable()) thread_.join();
  }

 private:
  void run() {
    for (std::uint64_t done = 0;; ++done) {
      // A thread that sleeps takes longer to wake than a job: the next one may come soon.
      const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
      while (num_jobs_.load() == done && std::chrono::steady_clock::now() < limit)
        std::this_thread::yield();
      std::unique_lock lock(mutex_);
      asleep_ = true;
      changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      asleep_ = false;
      if (stopping_) return;
      const Job job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      const Status s = failed_ ? Status{} : job();
      if (s.ok()) continue;
      lock.lock();
      status_ = s;
      failed_ = true;
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::atomic<std::uint64_t> num_jobs_{0};  // ever added
  std::atomic<bool> failed_{false};
  Status status_;
  bool asleep_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace snug::cuda
