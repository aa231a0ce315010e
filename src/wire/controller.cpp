#include "wire/controller.h"

#include <algorithm>

namespace snug::wire {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
// Short, because links that need compression are slow.
constexpr std::uint64_t kFirstTrialBytes = 8 * kMiB;
constexpr std::uint64_t kSecondTrialBytes = 24 * kMiB;
constexpr std::uint64_t kTrialBytes = 16 * kMiB;
constexpr std::uint64_t kFirstRunBytes = 256 * kMiB;
constexpr std::uint64_t kRunBytes = 120 * kTrialBytes;
// Chunks come in bursts: shorter samples would measure bursts, not rates.
constexpr std::uint64_t kMinSampleBytes = 4 * kMiB;
constexpr std::uint64_t kSampleBytes = 8 * kMiB;

constexpr double kDecay = 0.8;  // of a sum, with each new sample

constexpr int idx(Mode mode) { return static_cast<int>(mode); }

}  // namespace

Mode Controller::pick(std::uint64_t raw_bytes) noexcept {
  if (wanted_ != Mode::kAuto) return wanted_;
  const std::lock_guard lock(mutex_);
  if (trial_left_ == 0 && until_trial_ == 0) plan();
  if (trial_left_ > 0) {
    trial_left_ -= std::min(trial_left_, raw_bytes);
    return trial_;
  }
  until_trial_ -= std::min(until_trial_, raw_bytes);
  return best_;
}

// Raw and entropy first, fixed if entropy coding is slower than the link, later one of the modes
// not in use.
void Controller::plan() noexcept {
  const Arm& raw = arms_[idx(Mode::kRaw)];
  const Arm& entropy = arms_[idx(Mode::kEntropy)];
  const bool codec_bound = entropy.wire_rate() < 0.9 * raw.wire_rate();
  switch (num_plans_++) {
    case 0: trial_ = Mode::kRaw, trial_left_ = kFirstTrialBytes; return;
    case 1: trial_ = Mode::kEntropy, trial_left_ = kSecondTrialBytes; return;
    case 2:
      // If the link is the bottleneck, fewest bytes win: no need to try again soon.
      if (codec_bound) trial_ = Mode::kFixed, trial_left_ = kTrialBytes;
      until_trial_ = codec_bound ? kFirstRunBytes : kRunBytes;
      return;
    default: break;
  }
  Mode other = best_ == Mode::kRaw ? Mode::kEntropy : Mode::kRaw;
  if (codec_bound && best_ != Mode::kFixed && num_plans_ % 2 == 0) other = Mode::kFixed;
  trial_ = other;
  trial_left_ = kTrialBytes;
  // A trial of a slow mode costs more time, so it comes later.
  const double best_rate = arms_[idx(best_)].goodput(), rate = arms_[idx(other)].goodput();
  const double slower = rate > 0 ? std::clamp(best_rate / rate, 1.0, 100.0) : 1.0;
  until_trial_ = static_cast<std::uint64_t>(slower * static_cast<double>(kRunBytes));
}

void Controller::progress(const ReceiveProgress& now) noexcept {
  const std::lock_guard lock(mutex_);
  // Lanes report concurrently: one report may overtake another.
  if (now.active_nanoseconds <= last_.active_nanoseconds) return;
  std::uint64_t raw[kNumModes], sum = 0;
  int main_mode = 0;
  for (int i = 0; i < kNumModes; ++i) {
    raw[i] = now.raw_bytes[i] - last_.raw_bytes[i];
    sum += raw[i];
    if (raw[i] > raw[main_mode]) main_mode = i;
  }
  const bool pure = raw[main_mode] >= sum - sum / 8;
  if (!pure || main_mode != sample_mode_) {
    close_sample(kMinSampleBytes);
    sample_ = {};
    sample_mode_ = main_mode;
  }
  if (pure) {
    sample_.raw_bytes += static_cast<double>(sum);
    for (int i = 0; i < kNumModes; ++i)
      sample_.wire_bytes += static_cast<double>(now.wire_bytes[i] - last_.wire_bytes[i]);
    sample_.seconds +=
        static_cast<double>(now.active_nanoseconds - last_.active_nanoseconds) * 1e-9;
    close_sample(kSampleBytes);
  }
  last_ = now;
}

void Controller::close_sample(std::uint64_t min_bytes) noexcept {
  if (sample_.raw_bytes < static_cast<double>(min_bytes) || sample_.seconds <= 0) return;
  // Sums, not rates, are averaged: a burst out of a buffer must not count for more than the wait
  // before it.
  Sample& sum = arms_[sample_mode_].sum;
  sum.raw_bytes = kDecay * sum.raw_bytes + sample_.raw_bytes;
  sum.wire_bytes = kDecay * sum.wire_bytes + sample_.wire_bytes;
  sum.seconds = kDecay * sum.seconds + sample_.seconds;
  sample_ = {};
  choose();
}

// The fastest; among equals the one that sends fewest bytes.
void Controller::choose() noexcept {
  if (arms_[idx(Mode::kEntropy)].goodput() == 0) return;
  double top = 0;
  for (const Arm& arm : arms_) top = std::max(top, arm.goodput());
  for (const Mode mode : {Mode::kEntropy, Mode::kFixed, Mode::kRaw}) {
    if (arms_[idx(mode)].goodput() < 0.99 * top) continue;
    best_ = mode;
    return;
  }
}

double Controller::goodput(Mode mode) const noexcept {
  const std::lock_guard lock(mutex_);
  return arms_[idx(mode)].goodput();
}

}  // namespace snug::wire
