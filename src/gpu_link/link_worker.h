// gpu_link/link_worker.h - the thread at one end of one direction of a link. It runs the steps of
// its owner, spins while work is under way (a GPU wakes no thread), sleeps otherwise, and notices a
// peer that is gone or stuck.
#pragma once
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "gpu_link/link_mailbox.h"
#include "wire/transfer_state.h"

namespace snug::gpu_link {

using wire::Mode;
using wire::Stats;
using wire::Transfer;

using LinkClock = std::chrono::steady_clock;

struct LinkOptions {
  Mode mode = Mode::kAuto;
  std::chrono::milliseconds timeout{30'000};
  std::function<Status()> check_peer = [] { return Status{}; };  // called now and then
  std::function<Status()> enter = [] { return Status{}; };       // called first by each thread
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
  // Whether something is under way that makes progress without a ring of the bell.
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

// A worker whose messages any thread may submit.
template <class Message>
class MessageWorker : public LinkWorker {
 protected:
  using LinkWorker::LinkWorker;
  using MessagePtr = std::shared_ptr<Message>;

  // `fill(message)`, called with mutex_ held, may refuse it.
  template <class Fill>
  Transfer submit(Fill fill) {
    auto message = std::make_shared<Message>();
    const std::lock_guard lock(mutex_);
    Status s = status_.ok() ? start_locked() : status_;
    if (s.ok()) s = fill(*message);
    if (!s.ok()) return wire::failed_transfer(s);
    submitted_.push_back(message);
    own_bell_.ring();
    return Transfer(message->state);
  }
  void take_submitted() {
    const std::lock_guard lock(mutex_);
    for (; !submitted_.empty(); submitted_.pop_front()) fresh_.push_back(submitted_.front());
  }
  void finish_fresh(const Status& status) noexcept {
    std::deque<MessagePtr> waiting;
    {
      const std::lock_guard lock(mutex_);
      waiting.swap(submitted_);
    }
    for (const auto* queue : {&waiting, &fresh_})
      for (const MessagePtr& message : *queue) message->state->finish(status);
  }
  // With mutex_ held.
  void count_chunk(std::uint64_t num_bytes, std::uint64_t payload_bytes, std::uint64_t mode) {
    stats_.raw_bytes += num_bytes;
    stats_.wire_bytes += payload_bytes + sizeof(LinkChunk);
    ++stats_.num_chunks[mode];
  }

  std::deque<MessagePtr> fresh_;  // taken by the thread, and not offered or matched yet
  Stats stats_;                   // guarded by mutex_

 private:
  std::deque<MessagePtr> submitted_;  // guarded by mutex_
};

}  // namespace snug::gpu_link
