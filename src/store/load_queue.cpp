#include "store/load_queue.h"

#include <algorithm>

namespace snug::store {

StoreResult<std::vector<LoadTarget>> whole_tensors(const TensorFile& file,
                                                   std::span<const TensorTarget> targets) {
  std::vector<LoadTarget> whole;
  whole.reserve(targets.size());
  const auto& slots = file.plain().slots;
  for (const TensorTarget& target : targets) {
    if (target.idx >= slots.size())
      return StoreStatus{
          frame::failure(Code::kUsage, "no tensor with this number", target.idx, slots.size()),
          file.path()};
    const Slot slot = slots[target.idx];
    if (target.dst.size() != slot.num_bytes())
      return StoreStatus{frame::failure(Code::kUsage, "buffer is not as large as the tensor",
                                        target.dst.size(), slot.num_bytes()),
                         file.path(), std::string(slot.name)};
    whole.push_back({target.idx, 0, target.dst});
  }
  return whole;
}

bool LoadQueue::next(LoadPiece& piece, StoreStatus& status) {
  const std::lock_guard lock(mutex_);
  while (next_target_ < targets_.size() && targets_[next_target_].dst.empty()) ++next_target_;
  if (next_target_ == targets_.size()) return false;
  const LoadTarget& target = targets_[next_target_];
  if (next_byte_ == 0) {
    head_ = nullptr;
    step_ = piece_bytes_;
    if (file_.is_frame(target.idx)) {
      auto head = file_.load_head(target.idx);
      status = head.status();
      if (!head) {
        next_target_ = targets_.size();
        return false;
      }
      head_ = std::move(*head);
      const std::uint64_t block_bytes = head_->header.block_bytes();
      step_ = std::max<std::uint64_t>(1, piece_bytes_ / block_bytes) * block_bytes;
    }
  }
  const std::uint64_t from = target.first + next_byte_, end = target.first + target.dst.size();
  const std::uint64_t to = std::min(end, (from / step_ + 1) * step_);
  piece = {target.idx, head_, from, to, target.dst.data() + next_byte_};
  next_byte_ += to - from;
  if (to == end) {
    ++next_target_;
    next_byte_ = 0;
  }
  return true;
}

std::uint64_t LoadQueue::num_pieces() const noexcept {
  std::uint64_t count = 0;
  for (const LoadTarget& target : targets_)
    if (!target.dst.empty())
      count +=
          (target.first + target.dst.size() - 1) / piece_bytes_ - target.first / piece_bytes_ + 1;
  return count;
}

}  // namespace snug::store
