// wire/arrival_meter.h - how fast original bytes arrive, for the sender's controller. Its clock
// runs from the first chunk of a message to the last.
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

  // No message is arriving.
  void stop() noexcept {
    const std::lock_guard lock(mutex_);
    running_ = false;
  }

  // The chunk is in its place. True if it is time to report to the sender; then `sums` is set.
  bool end(Mode mode, std::uint64_t raw_bytes, std::uint64_t wire_bytes,
           ReceiveProgress& sums) noexcept {
    const std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    sums_.active_nanoseconds += static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(now - last_).count());
    last_ = now;
    sums_.raw_bytes[static_cast<int>(mode)] += raw_bytes;
    sums_.wire_bytes[static_cast<int>(mode)] += wire_bytes;
    unreported_bytes_ += raw_bytes;
    if (unreported_bytes_ < kReportBytes && now - reported_ < kReportAfter) return false;
    unreported_bytes_ = 0;
    reported_ = now;
    sums = sums_;
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kReportAfter{50};
  static constexpr std::uint64_t kReportBytes = std::uint64_t{4} << 20;

  std::mutex mutex_;
  ReceiveProgress sums_;
  bool running_ = false;
  std::uint64_t unreported_bytes_ = 0;
  Clock::time_point last_{}, reported_{};
};

}  // namespace snug::wire
