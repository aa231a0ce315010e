// store/load_queue.h - pieces of many tensors, for threads that load them side by side.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "store/tensor_file.h"

namespace snug::store {

// Bytes [first, first + dst.size()) of tensor `idx`, which has them. `dst` may be on a device: the
// queue does not touch it.
struct LoadTarget {
  std::size_t idx = 0;
  std::uint64_t first = 0;
  std::span<std::byte> dst = {};
};

// Targets that are whole tensors. kUsage if a tensor is not there or not as large as its target.
StoreResult<std::vector<LoadTarget>> whole_tensors(const TensorFile& file,
                                                   std::span<const TensorTarget> targets);

// Bytes [from, to) of a tensor. In a frame they start and end at blocks, or where the target does.
struct LoadPiece {
  std::size_t idx = 0;
  std::shared_ptr<const FrameHead> head;  // frames only
  std::uint64_t from = 0, to = 0;
  std::byte* dst = nullptr;
};

// Hands out the pieces in the order of the targets, and reads the head of a frame when its turn
// comes.
class LoadQueue {
 public:
  // Pieces have at most `piece_bytes`, or one block of a frame that has larger ones.
  LoadQueue(const TensorFile& file, std::span<const LoadTarget> targets, std::size_t piece_bytes)
      : file_(file), targets_(targets), piece_bytes_(piece_bytes) {}

  // False at the end, or if `status` says why there is no next one.
  bool next(LoadPiece& piece, StoreStatus& status);

  // The number of pieces, if no block is larger than a piece.
  std::uint64_t num_pieces() const noexcept;

 private:
  const TensorFile& file_;
  const std::span<const LoadTarget> targets_;
  const std::size_t piece_bytes_;
  std::mutex mutex_;
  std::size_t next_target_ = 0;
  std::uint64_t next_byte_ = 0;  // of the target at hand
  std::shared_ptr<const FrameHead> head_;
  std::uint64_t step_ = 0;
};

}  // namespace snug::store
