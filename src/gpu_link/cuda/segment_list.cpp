#include <algorithm>

#include "gpu_link/cuda/segment_copy.h"

namespace snug::cuda {

Status check_segments(std::span<const Segment> segments) {
  std::uint64_t sum = 0;
  for (const Segment& segment : segments) {
    if (segment.num_bytes > ~sum)
      return {Code::kUsage, "the segments of this message are larger than any memory"};
    sum += segment.num_bytes;
  }
  return {};
}

SegmentList::SegmentList(std::span<const Segment> segments) {
  for (const Segment& segment : segments) {
    if (segment.num_bytes == 0) continue;
    starts_.push_back(num_bytes_);
    segments_.push_back(segment);
    num_bytes_ += segment.num_bytes;
  }
}

std::size_t SegmentList::segment_at(std::uint64_t offset) const {
  const auto next = std::upper_bound(starts_.begin(), starts_.end(), offset);
  return static_cast<std::size_t>(next - starts_.begin() - 1);
}

std::byte* SegmentList::in_one_piece(std::uint64_t offset, std::size_t num_bytes) const {
  const std::size_t i = segment_at(offset);
  const std::uint64_t inside = offset - starts_[i];
  if (segments_[i].num_bytes - inside < num_bytes) return nullptr;
  return static_cast<std::byte*>(segments_[i].data) + inside;
}

std::size_t SegmentList::cut(std::uint64_t offset, std::size_t num_bytes,
                             std::span<Segment> out) const {
  std::size_t num_pieces = 0, done = 0;
  for (std::size_t i = segment_at(offset); done < num_bytes; ++i, ++num_pieces) {
    const std::uint64_t inside = offset + done - starts_[i];
    const std::uint64_t n =
        std::min<std::uint64_t>(num_bytes - done, segments_[i].num_bytes - inside);
    if (num_pieces < out.size())
      out[num_pieces] = {static_cast<std::byte*>(segments_[i].data) + inside, n};
    done += static_cast<std::size_t>(n);
  }
  return num_pieces;
}

std::size_t SegmentList::max_pieces(std::size_t num_bytes) const {
  std::size_t most = 0, last = 0;
  for (std::size_t first = 0; first < starts_.size(); ++first) {
    // A stretch that begins with the last byte of `first` reaches farthest.
    const std::uint64_t end = starts_[first] + segments_[first].num_bytes - 1 + num_bytes;
    while (last < starts_.size() && starts_[last] < end) ++last;
    most = std::max(most, last - first);
  }
  return most;
}

}  // namespace snug::cuda
