// nccl/launch_rule.h - for which kernels of NCCL workers are launched.
//
// Workers take multiprocessors from the program. Small operations get none. Where connections send
// raw, because the link is fast or the data does not shrink, crews find no orders: then only every
// second operation gets one, every fourth and so on, until one finds orders again.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace snug::nccl {

class LaunchRule {
 public:
  static constexpr std::size_t kLeastBytes = 4 << 20;
  static constexpr std::uint32_t kMostSkipped = 63;

  // An operation of this size was called. Several of them can share a kernel, and one can have
  // several kernels.
  void called(std::size_t num_bytes) {
    const std::lock_guard lock(mutex_);
    if (has_launched_) bytes_ = 0;
    has_launched_ = false;
    bytes_ += num_bytes;
  }

  // A kernel is about to be launched; all crews together have taken `orders` so far.
  bool is_worth_it(std::uint64_t orders) {
    const std::lock_guard lock(mutex_);
    has_launched_ = true;
    if (bytes_ < kLeastBytes) return false;
    if (orders != orders_seen_) idle_launches_ = skips_left_ = skips_ = 0;
    orders_seen_ = orders;
    if (skips_left_ > 0) return --skips_left_, false;
    // Crews report when they leave, and several may be queued.
    if (++idle_launches_ > kLaunchesInFlight) {
      skips_ = std::min(2 * skips_ + 1, kMostSkipped);
      skips_left_ = skips_;
    }
    return true;
  }

 private:
  static constexpr std::uint32_t kLaunchesInFlight = 32;

  std::mutex mutex_;
  std::size_t bytes_ = 0;
  bool has_launched_ = false;
  std::uint64_t orders_seen_ = 0;
  std::uint32_t idle_launches_ = 0, skips_left_ = 0, skips_ = 0;
};

}  // namespace snug::nccl
