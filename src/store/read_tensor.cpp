#include "store/read_tensor.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "store/block_scan.h"

namespace snug::store {
namespace {

// The bytes [first, first + dst.size()) of one tensor, a few blocks at a time.
class RangeRead {
 public:
  RangeRead(const TensorFile& file, std::size_t idx, std::uint64_t first, std::span<std::byte> dst)
      : file_(file), idx_(idx), first_(first), dst_(dst.data()), end_(first + dst.size()) {}

  StoreStatus run(int num_threads) {
    if (file_.is_frame(idx_)) {
      auto head = file_.load_head(idx_);
      if (!head) return head.status();
      head_ = std::move(*head);
      const std::uint64_t block_bytes = head_->header.block_bytes();
      step_ = std::max<std::uint64_t>(1, kChunkBytes / block_bytes) * block_bytes;
    }
    next_ = first_ / step_;
    const std::uint64_t num_steps = (end_ + step_ - 1) / step_ - next_;
    return workers_.run(codec::thread_count(store_threads(num_threads), num_steps),
                        [this] { return work(); });
  }

 private:
  StoreStatus work() {
    const std::unique_ptr<codec::Workspace> workspace(head_ != nullptr ? new codec::Workspace
                                                                       : nullptr);
    Buffer payload, partial;
    for (std::uint64_t i; !workers_.failed() && (i = next_.fetch_add(1)) * step_ < end_;) {
      const std::uint64_t from = std::max(first_, i * step_), to = std::min(end_, (i + 1) * step_);
      StoreStatus status =
          head_ != nullptr
              ? decode(from, to, payload, partial, *workspace)
              : file_.read_unframed(idx_, from,
                                    {dst_ + (from - first_), static_cast<std::size_t>(to - from)});
      if (!status.ok()) return status;
    }
    return {};
  }

  StoreStatus decode(std::uint64_t from, std::uint64_t to, Buffer& payload, Buffer& partial,
                     codec::Workspace& workspace) {
    const frame::Header& header = head_->header;
    const std::uint64_t block_bytes = header.block_bytes();
    const std::uint64_t blocks_end = header.num_elems * elem_bytes(header.dtype);
    std::byte* out = dst_ + (from - first_);
    if (to > blocks_end) {  // the tail of less than an element
      const std::uint64_t tail_from = std::max(from, blocks_end);
      std::memcpy(out + (tail_from - from), header.tail + (tail_from - blocks_end),
                  static_cast<std::size_t>(to - tail_from));
      to = blocks_end;
      if (from >= to) return {};
    }
    const std::uint64_t block = from / block_bytes,
                        block_end = (to + block_bytes - 1) / block_bytes;
    const std::uint64_t covered_from = block * block_bytes,
                        covered_to = std::min(block_end * block_bytes, blocks_end);
    if (covered_from == from && covered_to == to)
      return read_blocks(file_, idx_, *head_, block, block_end - block, out, payload, workspace);
    std::byte* all = partial.span(static_cast<std::size_t>(covered_to - covered_from)).data();
    if (StoreStatus s =
            read_blocks(file_, idx_, *head_, block, block_end - block, all, payload, workspace);
        !s.ok())
      return s;
    std::memcpy(out, all + (from - covered_from), static_cast<std::size_t>(to - from));
    return {};
  }

  const TensorFile& file_;
  const std::size_t idx_;
  const std::uint64_t first_;
  std::byte* const dst_;
  const std::uint64_t end_;
  std::shared_ptr<const FrameHead> head_;  // frames only
  std::uint64_t step_ = kChunkBytes;
  std::atomic<std::uint64_t> next_{0};
  Workers workers_;
};

}  // namespace

StoreStatus read_tensor(const TensorFile& file, std::size_t idx, std::uint64_t first,
                        std::span<std::byte> dst, int num_threads) {
  if (dst.empty()) return {};
  return RangeRead(file, idx, first, dst).run(num_threads);
}

}  // namespace snug::store
