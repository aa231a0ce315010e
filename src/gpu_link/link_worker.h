// gpu_link/link_worker.h - the thread at one end of one direction of a link: runs its
// owner's steps, spins while work is on its way (a GPU wakes nobody), sleeps otherwise,
// and notices a peer that is gone or stuck.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

#include "gpu_link/link_mailbox.h"

namespace snug::gpu_link {

using wire::Mode;
using wire::Stats;
using wire::Transfer;

using LinkClock = std::chrono::steady_clock;

struct LinkOptions {
  Mode mode = Mode::kAuto;
  std::chrono::milliseconds timeout{30'000};
  std::function<Status()> check_peer = [] { return Status{}; };  // asked now and then
  std::function<Status()> enter = [] { return Status{}; };       // by each thread, first of all
};

class LinkWorker {
 public:
  LinkWorker(LinkDirection& direction, Bell& own_bell, Bell& other_bell, LinkOptions options)
      : direction_(direction),
        own_bell_(own_bell),
        other_bell_(other_bell),
        options_(std::move(options)) {}
  LinkWorker(const LinkWorker&) = delete;
  virtual ~LinkWorker() = default;  // after stop()

  Status status() const {
    const std::lock_guard lock(mutex_);
    return status_;
  }
  // Starts the thread, which otherwise starts with the first message. kIo if it cannot.
  Status start();
  // Ends the thread; messages that are not done fail. The peer is told.
  void stop() noexcept;

 protected:
  // Does what can be done at once; sets `moved` if there was something.
  virtual Status step(bool& moved) = 0;
  // Whether something is on its way that makes progress without a ring of the bell.
  virtual bool is_busy() const = 0;
  // Called once, by the thread: nothing touches memory of a message afterwards.
  virtual void finish_all(const Status& status) noexcept = 0;

  Status start_locked();  // with mutex_ held

  LinkDirection& direction_;
  Bell& own_bell_;
  Bell& other_bell_;
  const LinkOptions options_;
  mutable std::mutex mutex_;
  Status status_;  // guarded by mutex_

 private:
  void run() noexcept;
  Status look_around(bool moved);
  void rest(std::uint32_t seen);

  std::thread thread_;
  std::atomic<bool> stopping_{false};
  LinkClock::time_point last_moved_{}, last_look_{};
  std::uint64_t num_looks_ = 0;
};

}  // namespace snug::gpu_link
