// codec/target_list.h - a list with one entry an instruction set, which allocates nothing: it is
// made on the first call, and those calls must not fail.
#pragma once
#include <cassert>
#include <cstddef>

namespace snug::codec {

template <class T>
class TargetList {
 public:
  void push_back(T item) noexcept {
    assert(size_ < kMaxTargets);
    items_[size_++] = item;
  }
  // Enough to be a range, for loops and spans.
  const T* data() const noexcept { return items_; }
  const T* begin() const noexcept { return items_; }
  const T* end() const noexcept { return items_ + size_; }
  std::size_t size() const noexcept { return size_; }
  T front() const noexcept { return items_[0]; }

 private:
  static constexpr std::size_t kMaxTargets = 8;
  T items_[kMaxTargets] = {};
  std::size_t size_ = 0;
};

}  // namespace snug::codec
