// wire/transfer_state.h - what the handles of one message share.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "snug/wire.h"

namespace snug::wire {

struct Transfer::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<bool> done{false};  // set with the mutex held, after `status`
  Status status;
  std::atomic<std::uint64_t> done_bytes{0};

  // The first result counts.
  void finish(const Status& result) noexcept {
    const std::lock_guard lock(mutex);
    if (done) return;
    status = result;
    done = true;
    changed.notify_all();
  }
};

inline Transfer failed_transfer(const Status& status) {
  auto state = std::make_shared<Transfer::State>();
  state->finish(status);
  return Transfer(std::move(state));
}

}  // namespace snug::wire
