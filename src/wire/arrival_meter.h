// wire/arrival_meter.h - how fast original bytes arrive, for the sender's
// controller: a clock that runs from the first chunk of a message to the last.
#pragma once
#include <chrono>
#include <mutex>

#include "wire/protocol.h"

namespace snug::wire {

class ArrivalMeter {
 public:
  // A chunk's header has arrived.
  void begin() noexcept {
    const std::lock_guard lock(mutex_);
    if (!running_) last_ = Clock::now();
    running_ = true;
  }

  // No message is on its way in.
  void stop() noexcept {
    const std::lock_guard lock(mutex_);
    running_ = false;
  }

  // It is in its place. True if it is time to tell the sender: then `sums` is set.
  bool end(Mode mode, std::uint64_t raw_bytes, std::uint64_t wire_bytes,
           ReceiveProgress& sums) noexcept {
    const std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    sums_.active_nanoseconds += static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(now - last_).count());
    last_ = now;
    sums_.raw_bytes[static_cast<int>(mode)] += raw_bytes;
    sums_.wire_bytes[static_cast<int>(mode)] += wire_bytes;
    untold_bytes_ += raw_bytes;
    if (untold_bytes_ < kTellBytes && now - told_ < kTellAfter) return false;
    untold_bytes_ = 0;
    told_ = now;
    sums = sums_;
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kTellAfter{50};
  static constexpr std::uint64_t kTellBytes = std::uint64_t{4} << 20;

  std::mutex mutex_;
  ReceiveProgress sums_;
  bool running_ = false;
  std::uint64_t untold_bytes_ = 0;
  Clock::time_point last_{}, told_{};
};

}  // namespace snug::wire
