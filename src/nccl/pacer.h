// nccl/pacer.h - limits what a process sends to a link speed, for benchmarks.
//
// Loopback then behaves like a link of that speed that all connections of the
// process share.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace snug::nccl {

class Pacer {
 public:
  explicit Pacer(double gbps) noexcept : bytes_per_ns_(gbps / 8) {}

  bool is_on() const noexcept { return bytes_per_ns_ > 0; }
  // Returns when the link is free for these bytes, which then occupy it.
  void wait(std::size_t num_bytes) noexcept;
  // Occupies the link without waiting, for threads that must not sleep.
  void count(std::size_t num_bytes) noexcept { (void)reserve(num_bytes); }

 private:
  std::int64_t reserve(std::size_t num_bytes) noexcept;

  double bytes_per_ns_;
  std::atomic<std::int64_t> free_at_ns_{0};
};

}  // namespace snug::nccl
