#include "mount/read_ahead.h"

#include <algorithm>

namespace snug::mount {
namespace {

// A request this close to the last one continues it: the kernel reads ahead itself, and threads
// take its requests in another order than it makes them. First guesses are more careful.
constexpr std::uint64_t kSlackBytes = std::uint64_t{1} << 20, kFirstSlackBytes = kSlackBytes / 8;
constexpr std::uint64_t kFirstWindow = std::uint64_t{512} << 10;

}  // namespace

ReadAhead::Range ReadAhead::next(std::uint64_t begin, std::uint64_t end, std::uint64_t max_window) {
  const std::lock_guard lock(mutex_);
  ++num_requests_;
  Stream* oldest = &streams_[0];
  for (Stream& stream : streams_) {
    if (stream.used < oldest->used) oldest = &stream;
    const std::uint64_t slack = stream.window > 0 ? kSlackBytes : kFirstSlackBytes;
    if (stream.used == 0 || begin > stream.end + slack || begin + slack < stream.end) continue;
    stream.used = num_requests_;
    if (end <= stream.end) return {};
    stream.end = end;
    stream.window = std::min(max_window, std::max(kFirstWindow, 2 * stream.window));
    const Range range{std::max(stream.ahead, end), end + stream.window};
    // Half a window at a time, so that neighbours are decoded together.
    if (range.begin + stream.window / 2 > range.end) return {};
    stream.ahead = range.end;
    return range;
  }
  *oldest = {end, end, 0, num_requests_};
  return {};
}

}  // namespace snug::mount
