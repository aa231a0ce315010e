// store/stop.h - whether the caller of this thread wants to stop (snug::StopScope).
//
// Every read and write of a File asks. What works for long without any asks itself.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>

#include "snug/store.h"

namespace snug::store {

bool is_stopped();
// Fails if so, naming `path`.
StoreStatus check_stop(const std::string& path);

// std::sort. Returns early, in any order, if the caller wants to stop: whoever uses it asks then.
template <class Range, class Before>
void sort_or_stop(Range& range, Before before) {
  constexpr std::uint32_t kBetween = 1 << 14;  // comparisons: a few milliseconds
  struct Stopped {};
  std::uint32_t num_compared = 0;
  const auto asking = [&](const auto& a, const auto& b) {
    if (++num_compared % kBetween == 0 && is_stopped()) throw Stopped{};
    return before(a, b);
  };
  try {
    std::sort(range.begin(), range.end(), asking);
  } catch (const Stopped&) {
  }
}

}  // namespace snug::store
