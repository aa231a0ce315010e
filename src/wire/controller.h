// wire/controller.h - which mode the next chunk gets.
//
// It tries the modes on the stream itself, for a few chunks each, and keeps the one with the
// highest goodput: original bytes a second that reached the receiver. That covers link, codecs,
// disks and whatever else uses the CPUs. Later trials of the other modes take less than 1/100 of
// the bytes. Data that does not shrink is sent raw whatever the mode.
#pragma once
#include <cstdint>
#include <mutex>

#include "snug/wire.h"
#include "wire/message_rules.h"
#include "wire/protocol.h"

namespace snug::wire {

class Controller {
 public:
  explicit Controller(Mode wanted) noexcept : wanted_(wanted) {}

  // The mode for the next chunk, of raw_bytes.
  Mode pick(std::uint64_t raw_bytes) noexcept;
  // A report of the receiver.
  void progress(const ReceiveProgress& now) noexcept;
  // Original bytes a second; 0 before the first trial.
  double goodput(Mode mode) const noexcept;

 private:
  void plan() noexcept;
  void close_sample(std::uint64_t min_bytes) noexcept;
  void choose() noexcept;

  struct Sample {
    double raw_bytes = 0, wire_bytes = 0, seconds = 0;
  };
  struct Arm {
    Sample sum;  // of samples, with exponentially fading weights
    double goodput() const noexcept { return sum.seconds > 0 ? sum.raw_bytes / sum.seconds : 0; }
    double wire_rate() const noexcept { return sum.seconds > 0 ? sum.wire_bytes / sum.seconds : 0; }
  };

  const Mode wanted_;
  mutable std::mutex mutex_;
  Arm arms_[kNumModes];
  ReceiveProgress last_;
  Sample sample_;  // still growing
  int sample_mode_ = 0;
  Mode best_ = Mode::kEntropy;
  Mode trial_ = Mode::kRaw;
  std::uint64_t trial_left_ = 0, until_trial_ = 0;
  int num_plans_ = 0;
};

// Exponential backoff for chunks of one message that do not compress: after a failure the next
// chunks are sent raw untried, twice as many each time.
class CompressionProbe {
 public:
  bool worth_trying() noexcept {
    const std::lock_guard lock(mutex_);
    if (skip_ == 0) return true;
    --skip_;
    return false;
  }
  void tried(std::uint64_t raw_bytes, std::uint64_t coded_bytes) noexcept {
    const std::lock_guard lock(mutex_);
    streak_ = helps(raw_bytes, coded_bytes) ? 0 : streak_ < kMaxSkip ? 2 * streak_ + 1 : kMaxSkip;
    skip_ = streak_;
  }

 private:
  static constexpr int kMaxSkip = 255;
  std::mutex mutex_;
  int skip_ = 0, streak_ = 0;
};

}  // namespace snug::wire
