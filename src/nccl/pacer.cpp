#include "nccl/pacer.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace snug::nccl {
namespace {

// A thread that wakes late may catch up by this much, so that late wake-ups do not
// lower the rate.
constexpr std::int64_t kCatchUpNs = 2'000'000;

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace

std::int64_t Pacer::reserve(std::size_t num_bytes) noexcept {
  if (!is_on()) return 0;
  const auto duration = static_cast<std::int64_t>(static_cast<double>(num_bytes) / bytes_per_ns_);
  const std::int64_t earliest = now_ns() - kCatchUpNs;
  std::int64_t free_at = free_at_ns_.load();
  std::int64_t start;
  do start = std::max(free_at, earliest);
  while (!free_at_ns_.compare_exchange_weak(free_at, start + duration));
  return start + duration;
}

void Pacer::wait(std::size_t num_bytes) noexcept {
  if (!is_on()) return;
  thread_local const int precise = ::prctl(PR_SET_TIMERSLACK, 1000);
  (void)precise;
  // The last byte leaves at the end of the slot; the peer must not have it earlier.
  const std::chrono::steady_clock::time_point end{std::chrono::nanoseconds(reserve(num_bytes))};
  std::this_thread::sleep_until(end);
}

}  // namespace snug::nccl
