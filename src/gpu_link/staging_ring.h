// gpu_link/staging_ring.h - allocates the staging memory: chunks of any size, each in one piece,
// freed in the order in which they came.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace snug::gpu_link {

class StagingRing {
 public:
  static constexpr std::size_t kAlign = 256;

  explicit StagingRing(std::size_t num_bytes) noexcept : size_(num_bytes / kAlign * kAlign) {}

  // The offset of num_bytes, or nothing until more has been freed.
  std::optional<std::size_t> take(std::size_t num_bytes) {
    const std::size_t n = (num_bytes + kAlign - 1) / kAlign * kAlign;
    if (n > size_ || n == 0) return std::nullopt;
    std::size_t start = head_, skipped = 0;
    if (start + n > size_) {  // does not fit before the end
      skipped = size_ - start;
      start = 0;
    }
    if (used_ + skipped + n > size_) return std::nullopt;
    used_ += skipped + n;
    head_ = start + n;
    taken_.push_back(skipped + n);
    return start;
  }
  // Frees the oldest chunk.
  void free_oldest() {
    used_ -= taken_.front();
    taken_.pop_front();
    if (taken_.empty()) head_ = 0;  // leaves the most room in one piece
  }
  std::size_t num_taken() const noexcept { return taken_.size(); }

 private:
  const std::size_t size_;
  std::size_t head_ = 0, used_ = 0;
  std::deque<std::size_t> taken_;
};

}  // namespace snug::gpu_link
