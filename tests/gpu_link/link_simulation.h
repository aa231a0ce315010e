// tests/gpu_link/link_simulation.h - a link by arithmetic: the loop of LinkSender around a real
// LinkScheduler, with a clock of its own and stages that take what they took on one H200.
#pragma once
#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>
#include <vector>

#include "gpu_link/link_scheduler.h"

namespace snug::test {

inline constexpr double kMicro = 1e-6;

// What the stages take, whatever the scheduler believes.
struct TrueCosts {
  double copy_call = 4 * kMicro, encode_call = 7 * kMicro, decode_call = 7 * kMicro;
  double look = 0.7 * kMicro;  // around the loop
  double slowness = 1;         // of everything on the GPU
  double contention = 1;       // how much longer copies take while an encoder runs

  double encode(wire::Mode mode, std::size_t n) const {
    return slowness * (mode == wire::Mode::kFixed
                           ? (15.5 + 1.1 * mib(n)) * kMicro
                           : (25 + 0.7 * mib(n) + (mib(n) < 4 ? 0 : 7)) * kMicro);
  }
  double place(wire::Mode mode, std::size_t n) const {
    if (mode == wire::Mode::kRaw) return slowness * (6 + 0.5 * mib(n)) * kMicro;
    return slowness * (mode == wire::Mode::kFixed
                           ? (12 + 0.8 * mib(n)) * kMicro
                           : (19 + 0.3 * mib(n) + (mib(n) < 4 ? 0 : 8.5)) * kMicro);
  }
  static double ratio(wire::Mode mode, std::size_t n) {
    return mode == wire::Mode::kFixed ? 0.7531 : mib(n) < 4 ? 0.6802 : 0.6702;
  }
  static double mib(std::size_t n) { return static_cast<double>(n) / 1048576; }
};

class LinkSimulation {
 public:
  LinkSimulation(double rate, wire::Mode mode, TrueCosts costs = {})
      : rate_(rate), costs_(costs), scheduler_(mode, kEncoders, std::size_t{4} << 20) {}

  // Seconds from the answer of the receiver until the sender knows that all is in its place.
  double send(std::uint64_t num_bytes) {
    start_message(num_bytes);
    while (rest_ > 0 || !flying_.empty() || num(kEncoding) + num(kReady) > 0) {
      now_ += costs_.look;
      land_copy();
      collect_frames();
      feed_link();
      feed_encoder();
    }
    const double seconds = end_ - start_ + 2 * kMicro + std::exchange(stall_, 0);
    now_ = std::max(now_, end_) + 10 * kMicro;
    scheduler_.message_done(num_bytes, num_frames_ > 0, seconds);
    return seconds;
  }
  // The next message waits that long, as for memory or a thread that sleeps.
  void stall_next(double seconds) { stall_ = seconds; }
  int num_frames() const { return num_frames_; }  // of the last message
  std::uint64_t wire_bytes() const { return wire_bytes_; }

 private:
  static constexpr int kEncoders = 3, kFrames = 4;
  static constexpr std::size_t kMaxFlying = 3;
  static constexpr double kCall = 6 * kMicro, kEarly = 16 * kMicro;
  enum Stage { kIdle, kEncoding, kReady, kFlying };
  struct Frame {
    Stage stage = kIdle;
    gpu_link::LinkPlan plan;
    double since = 0, ready = 0, asked = 0;
  };
  struct Copy {
    gpu_link::LinkPlan plan;
    std::size_t payload = 0;
    double since = 0, arrives = 0, due = 0;  // due: as LinkSender believes
    int frame = -1;
  };

  void start_message(std::uint64_t num_bytes) {
    start_ = now_;
    rest_ = num_bytes;
    num_frames_ = 0;
    wire_bytes_ = 0;
    may_code_ = scheduler_.begin_message(num_bytes);
  }
  int num(Stage stage) const {
    return static_cast<int>(std::count_if(std::begin(frames_), std::end(frames_),
                                          [&](const Frame& f) { return f.stage == stage; }));
  }
  double link_busy() const {
    return flying_.empty() ? 0 : std::max(0.0, flying_.back().due - now_);
  }
  std::vector<gpu_link::LinkFrame> open_frames() const {
    std::vector<gpu_link::LinkFrame> open;
    for (const Frame& f : frames_) {
      if (f.stage != kEncoding && f.stage != kReady) continue;
      const auto [mode, n] = f.plan;
      const double ready =
          f.stage == kReady ? 0 : std::abs(scheduler_.encode_seconds(mode, n) - (now_ - f.since));
      open.push_back({ready,
                      scheduler_.ratio(mode, n) * static_cast<double>(n) / scheduler_.link_rate(),
                      scheduler_.place_seconds(mode, n)});
    }
    std::sort(open.begin(), open.end(), [](auto& a, auto& b) { return a.ready < b.ready; });
    return open;
  }
  void land_copy() {
    if (flying_.empty()) return;
    if (flying_.front().arrives > now_) {
      asked_ = now_;
      return;
    }
    const Copy copy = flying_.front();
    flying_.pop_front();
    const double then = std::max(std::min(copy.due, now_), asked_);
    scheduler_.sent(copy.payload, now_ - copy.since, copy.since < landed_ ? then - landed_ : 0);
    landed_ = then;
    for (Copy& other : flying_) other.due += then - copy.due;
    const bool is_frame = copy.frame >= 0;
    const double taken = std::max(receiver_free_, now_ + 0.8 * kMicro);
    receiver_free_ = taken + (is_frame ? costs_.decode_call : costs_.copy_call);
    const double placed = receiver_free_ + costs_.place(copy.plan.mode, copy.plan.num_bytes);
    scheduler_.placed(copy.plan.mode, copy.plan.num_bytes, placed - taken);
    end_ = std::max(end_, placed);
    if (is_frame) frames_[copy.frame].stage = kIdle;
  }
  void collect_frames() {
    for (int i = 0; i < kFrames; ++i) {
      Frame& f = frames_[i];
      if (f.stage != kEncoding) continue;
      if (f.ready > now_) {
        f.asked = now_;
        continue;
      }
      f.stage = kReady;
      ready_.push_back(i);
      const auto [mode, n] = f.plan;
      const double seconds =
          std::max(std::min(scheduler_.encode_seconds(mode, n), now_ - f.since), f.asked - f.since);
      scheduler_.encoded(mode, n, payload(f.plan), seconds);
    }
  }
  static std::size_t payload(const gpu_link::LinkPlan& plan) {
    return static_cast<std::size_t>(TrueCosts::ratio(plan.mode, plan.num_bytes) *
                                    static_cast<double>(plan.num_bytes));
  }
  void feed_link() {
    if (flying_.size() >= kMaxFlying) return;
    if (!ready_.empty()) {
      if (num(kFlying) >= 2) return;
      const int i = ready_.front();
      ready_.pop_front();
      frames_[i].stage = kFlying;
      ++num_frames_;
      copy({frames_[i].plan, payload(frames_[i].plan), now_, 0, 0, i});
    } else if (rest_ > 0) {
      std::size_t n = scheduler_.raw_piece(rest_);
      if (const auto open = open_frames(); !open.empty()) {
        const double busy = link_busy(), gap = open.front().ready - busy;
        if (gap <= gpu_link::LinkScheduler::kMaxFrameWait || busy > kEarly) return;
        n = std::min(n, scheduler_.gap_piece(rest_, gap));
      }
      rest_ -= n;
      copy({{wire::Mode::kRaw, n}, n, now_, 0, 0, -1});
    }
  }
  void copy(Copy copy) {
    const double rate = num(kEncoding) > 0 ? rate_ / costs_.contention : rate_;
    link_free_ = std::max(link_free_, now_) + static_cast<double>(copy.payload) / rate;
    copy.arrives = std::max(link_free_, now_ + costs_.copy_call + 5 * kMicro);
    copy.due = std::max(now_, flying_.empty() ? now_ : flying_.back().due);
    if (scheduler_.link_rate() > 0)
      copy.due += static_cast<double>(copy.payload) / scheduler_.link_rate();
    wire_bytes_ += copy.payload;
    flying_.push_back(copy);
    now_ += costs_.copy_call;
  }
  void feed_encoder() {
    if (rest_ == 0 || !may_code_ || scheduler_.link_rate() == 0 || num(kEncoding) >= kEncoders)
      return;
    Frame* const idle = std::find_if(std::begin(frames_), std::end(frames_),
                                     [](const Frame& f) { return f.stage == kIdle; });
    if (idle == std::end(frames_)) return;
    const auto open = open_frames();
    if (!open.empty() && std::max(open.front().ready, link_busy()) < kCall) return;
    const auto plan = scheduler_.plan_coded(rest_, link_busy(), open);
    if (!plan && open.empty()) may_code_ = false;
    if (!plan) return;
    rest_ -= plan->num_bytes;
    const double since = now_;
    now_ += costs_.encode_call;
    *idle = {kEncoding, *plan, since, now_ + costs_.encode(plan->mode, plan->num_bytes), since};
  }

  const double rate_;
  const TrueCosts costs_;
  gpu_link::LinkScheduler scheduler_;
  Frame frames_[kFrames];
  std::deque<int> ready_;
  std::deque<Copy> flying_;
  double stall_ = 0, now_ = 0, start_ = 0, end_ = 0, link_free_ = 0, landed_ = 0,
         receiver_free_ = 0;
  double asked_ = 0;
  std::uint64_t rest_ = 0, wire_bytes_ = 0;
  int num_frames_ = 0;
  bool may_code_ = false;
};

}  // namespace snug::test
