#include "nccl/mode_chooser.h"

#include <algorithm>

namespace snug::nccl {
namespace {

// A rival must be this much faster in most looks to replace the best mode, or
// this much in two.
constexpr double kMargin = 1.03, kClearMargin = 1.15;
// A rate that differs by this much twice in a row means that conditions changed.
constexpr double kUnusual = 1.25;
constexpr int kLooks = 3;  // at each neighbour of a new best mode, one after the other
constexpr std::chrono::milliseconds kGap{2};
// Windows between looks: enough that looks cost 1 % if the rival is as slow as it was
// last time, and twice as many each time while nothing changes.
constexpr int kShortestPause = 16, kLongestPause = 1024;
constexpr double kPauseOfLoss = 150;

double seconds_of(ModeChooser::Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

Codec ModeChooser::next_codec(DType dtype) noexcept {
  switch (choice_) {
    case CodecChoice::kOff: return Codec::kRaw;
    case CodecChoice::kFixed: return dtype == DType::kBF16 ? Codec::kFixed : Codec::kRaw;
    case CodecChoice::kEntropy: return Codec::kEntropy;
    case CodecChoice::kAuto: break;
  }
  if (current_ == kAllRaw) return Codec::kRaw;
  if (current_ == kAllEntropy || dtype != DType::kBF16) return Codec::kEntropy;
  if (current_ == kHalfEntropy) flip_ = !flip_;
  return current_ == kHalfEntropy && flip_ ? Codec::kEntropy : Codec::kFixed;
}

// ---- what is measured ------------------------------------------------------------

// A short gap is a pipeline bubble and counts as streaming.
void ModeChooser::busy(Clock::time_point now, std::int64_t queued) noexcept {
  is_busy_ = true;
  if (now - since_ < kGap) return;
  since_ = now;
  queued_then_ = queued;
  wire_then_ = window_.wire_bytes;
}

void ModeChooser::sent(std::size_t raw_bytes, std::size_t wire_bytes) noexcept {
  window_.raw_bytes += static_cast<std::int64_t>(raw_bytes);
  window_.wire_bytes += static_cast<std::int64_t>(wire_bytes);
}

void ModeChooser::idle(Clock::time_point now, std::int64_t queued) noexcept {
  if (!is_busy_) return;
  window_.seconds += seconds_of(now - since_);
  window_.drained += static_cast<double>(window_.wire_bytes - wire_then_ - (queued - queued_then_));
  is_busy_ = false;
  since_ = now;
  queued_then_ = queued;
  wire_then_ = window_.wire_bytes;
}

bool ModeChooser::window_is_full(Clock::time_point now) const noexcept {
  const double seconds = window_.seconds + (is_busy_ ? seconds_of(now - since_) : 0);
  const int share = is_settling_ ? 2 : 1;
  return (window_.raw_bytes >= kWindowBytes / share &&
          seconds * share >= seconds_of(kWindowTime)) ||
         window_.raw_bytes >= kMostWindowBytes / share;
}

void ModeChooser::turn(Clock::time_point now, std::int64_t queued) noexcept {
  const bool was_busy = is_busy_;
  idle(now, queued);
  const int before = current_;
  if (!is_settling_ && window_.seconds > 0 && window_.wire_bytes > 0) {
    const double expansion =
        static_cast<double>(window_.raw_bytes) / static_cast<double>(window_.wire_bytes);
    judge(std::max(window_.drained, 1.0) * expansion / window_.seconds);
  }
  is_settling_ = current_ != before;
  window_ = {};
  wire_then_ = 0;
  is_busy_ = was_busy;
}

// ---- what is decided -------------------------------------------------------------

double ModeChooser::Rival::advantage() const noexcept {
  if (looks < ratios.size()) return 0;
  std::array<double, 3> sorted = ratios;
  std::ranges::sort(sorted);
  return sorted[1];
}

bool ModeChooser::Rival::wins() const noexcept {
  return advantage() > kMargin ||
         (looks == 2 && ratios[0] > kClearMargin && ratios[1] > kClearMargin);
}

// The rate of a whole window in the current mode; decides the next one.
void ModeChooser::judge(double rate) noexcept {
  if (current_ != best_) {
    rival_ = current_;
    rival_rate_ = rate;
    current_ = best_;
    return;
  }
  const double around = best_rate_ > 0 ? (best_rate_ + rate) / 2 : rate;
  best_rate_ = rate;
  watch(rate);
  if (rival_ >= 0) {
    Rival& rival = rivals_[static_cast<std::size_t>(rival_)];
    compare(rival, rival_rate_ / around);
    const int judged = rival_;
    rival_ = -1;
    if (rival.wins()) return promote(judged);
  }
  if (--windows_left_ > 0) return;
  // The neighbour that was looked at less often.
  const int left = best_ - 1, right = best_ + 1;
  const auto looks = [&](int mode) { return rivals_[static_cast<std::size_t>(mode)].looks; };
  current_ = left < 0 || (right < kModes && looks(right) <= looks(left)) ? right : left;
}

// Starts over when the link or the load has changed.
void ModeChooser::watch(double rate) noexcept {
  const bool is_usual =
      usual_rate_ > 0 && rate < usual_rate_ * kUnusual && rate > usual_rate_ / kUnusual;
  if (is_usual || usual_rate_ == 0) {
    unusual_ = 0;
    usual_rate_ = usual_rate_ == 0 ? rate : 0.8 * usual_rate_ + 0.2 * rate;
  } else if (++unusual_ == 2) {
    set_best(best_);
  }
}

void ModeChooser::compare(Rival& rival, double ratio) noexcept {
  rival.ratios[rival.looks++ % rival.ratios.size()] = ratio;
  windows_left_ = 1;
  if (looks_left_ > 0 && --looks_left_ > 0) return;
  const double loss = 1 / std::clamp(ratio, 0.1, 1.0) - 1;
  pause_ = std::max({kShortestPause, 2 * pause_, static_cast<int>(kPauseOfLoss * loss)});
  pause_ = std::min(pause_, kLongestPause);
  windows_left_ = pause_;
}

// The mode that lost needs no further look: the peak is on the other side.
void ModeChooser::promote(int mode) noexcept {
  const int loser = best_;
  set_best(mode);
  rivals_[static_cast<std::size_t>(loser)].looks = kLooks;
  looks_left_ = std::max(1, looks_left_ - kLooks);
}

void ModeChooser::set_best(int mode) noexcept {
  best_ = current_ = mode;
  rivals_ = {};
  rival_ = -1;
  best_rate_ = usual_rate_ = 0;
  unusual_ = 0;
  looks_left_ = mode == 0 || mode == kModes - 1 ? kLooks : 2 * kLooks;
  pause_ = 0;
  windows_left_ = 1;
}

}  // namespace snug::nccl
