// support/paced_engine.h - a slow link out of a fast one, for benchmarks and tests. Every copy is
// made for real, but it counts as arrived only when its time at the set rate has come, one copy
// after the other.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>

#include "gpu_link/link_engine.h"

namespace snug::bench {

// When things have passed a link of a set rate.
class LinkPace {
 public:
  using Clock = std::chrono::steady_clock;
  explicit LinkPace(double bytes_per_second) : rate_(bytes_per_second) {}
  Clock::time_point pass(std::size_t num_bytes, Clock::time_point now) {
    if (rate_ == 0) return now;
    free_at_ = std::max(free_at_, now) +
               std::chrono::duration_cast<Clock::duration>(
                   std::chrono::duration<double>(static_cast<double>(num_bytes) / rate_));
    return free_at_;
  }

 private:
  const double rate_;
  Clock::time_point free_at_{};
};

class PacedEngine : public gpu_link::SendEngine {
 public:
  // No rate: as fast as it goes. While `allows_frames` is false, everything travels raw.
  PacedEngine(std::unique_ptr<gpu_link::SendEngine> inner, double bytes_per_second,
              const std::atomic<bool>* allows_frames = nullptr)
      : inner_(std::move(inner)), pace_(bytes_per_second), allows_frames_(allows_frames) {}

  int num_frames() const override { return inner_->num_frames(); }
  int max_encoding() const override { return inner_->max_encoding(); }
  bool can_encode(const gpu_link::LinkTensor& tensor) override {
    return (allows_frames_ == nullptr || *allows_frames_) && inner_->can_encode(tensor);
  }
  Status encode(int frame, const gpu_link::LinkTensor& tensor, gpu_link::LinkSpan span,
                Codec codec) override {
    return inner_->encode(frame, tensor, span, codec);
  }
  Result<std::size_t> encoded(int frame) override { return inner_->encoded(frame); }
  Status copy_frame(int frame, std::size_t num_bytes, std::size_t place) override {
    due_.push_back(pace_.pass(num_bytes, LinkPace::Clock::now()));
    return inner_->copy_frame(frame, num_bytes, place);
  }
  Status copy_raw(const gpu_link::LinkTensor& tensor, gpu_link::LinkSpan span,
                  std::size_t place) override {
    due_.push_back(pace_.pass(span.num_bytes, LinkPace::Clock::now()));
    return inner_->copy_raw(tensor, span, place);
  }
  Result<bool> copied(std::uint64_t& checksum) override {
    if (due_.empty() || LinkPace::Clock::now() < due_.front()) return false;
    auto done = inner_->copied(checksum);
    if (done && *done) due_.pop_front();
    return done;
  }
  void drain() noexcept override { inner_->drain(); }

 private:
  const std::unique_ptr<gpu_link::SendEngine> inner_;
  LinkPace pace_;
  const std::atomic<bool>* const allows_frames_;
  std::deque<LinkPace::Clock::time_point> due_;
};

}  // namespace snug::bench
