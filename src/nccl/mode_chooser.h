// nccl/mode_chooser.h - which codec makes a connection fastest right now.
//
// The modes are in order: raw, fixed rate, every other chunk entropy-coded, all of
// them. Each needs less of the link and more of the CPU than the one before. Speed
// therefore has one peak, and only the neighbours of the best mode can beat it.
// A connection starts raw, which is never slower than without Snug. A neighbour gets
// a window of traffic now and then and is compared with the windows of the best mode
// around it. What is compared is measured, not modelled: bytes that left the machine
// per second of streaming. The peer's decoding counts, because a slow reader fills
// the link; pauses of the application do not.
#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "nccl/settings.h"
#include "snug/tensor.h"

namespace snug::nccl {

class ModeChooser {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ModeChooser(CodecChoice choice) noexcept : choice_(choice) {}

  // The codec for the next chunk: kRaw, kFixed or kEntropy. Only BF16 has a fixed
  // rate; other types are entropy-coded instead.
  Codec next_codec(DType dtype) noexcept;
  // False: the setting names the mode, and the calls below are unnecessary.
  bool is_measuring() const noexcept { return choice_ == CodecChoice::kAuto; }

  // The connection has something to send; `queued` bytes are in the kernel's buffers.
  void busy(Clock::time_point now, std::int64_t queued) noexcept;
  // A chunk was given to the kernel in the current mode.
  void sent(std::size_t raw_bytes, std::size_t wire_bytes) noexcept;
  // Everything was given to the kernel.
  void idle(Clock::time_point now, std::int64_t queued) noexcept;
  // Enough bytes for a verdict? Then `turn` closes the window.
  bool window_is_full(Clock::time_point now) const noexcept;
  void turn(Clock::time_point now, std::int64_t queued) noexcept;

  // A window has at least kWindowBytes and lasts at least kWindowTime, unless it
  // reaches kMostWindowBytes first.
  static constexpr std::int64_t kWindowBytes = 8 << 20, kMostWindowBytes = 64 << 20;
  static constexpr std::chrono::milliseconds kWindowTime{6};

 private:
  enum Mode { kAllRaw, kAllFixed, kHalfEntropy, kAllEntropy, kModes };
  struct Window {
    double seconds = 0;
    double drained = 0;  // bytes that left the machine
    std::int64_t raw_bytes = 0, wire_bytes = 0;
  };
  // A neighbour of the best mode: its rate over the best mode's, in the last looks.
  struct Rival {
    std::array<double, 3> ratios{};
    unsigned looks = 0;
    // The median, so that one outlier decides nothing; 0 before enough looks.
    double advantage() const noexcept;
    bool wins() const noexcept;
  };
  void judge(double rate) noexcept;
  void watch(double rate) noexcept;
  void compare(Rival& rival, double ratio) noexcept;
  void promote(int mode) noexcept;
  void set_best(int mode) noexcept;

  CodecChoice choice_;
  bool flip_ = false;
  int best_ = kAllRaw;
  int current_ = kAllRaw;
  int rival_ = -1;  // looked at last and not yet judged
  double rival_rate_ = 0;
  double best_rate_ = 0;   // of the last window in the best mode; 0: none yet
  double usual_rate_ = 0;  // of many such windows
  int unusual_ = 0;        // windows in a row that were much faster or slower
  std::array<Rival, kModes> rivals_{};
  int looks_left_ = 3;  // before looks become rarer
  int pause_ = 0;       // windows of the best mode between two looks; 0: look closely
  int windows_left_ = 1;
  bool is_settling_ = true;  // right after a change of mode nothing is judged
  Window window_;
  bool is_busy_ = false;
  Clock::time_point since_{};     // begin of this stretch, or end of the last one
  std::int64_t queued_then_ = 0;  // at that moment
  std::int64_t wire_then_ = 0;
};

}  // namespace snug::nccl
