// store/cuda/load_lane.h - what one thread of a loader needs of the GPU.
#pragma once
#include <cstddef>
#include <span>

#include "gpu/owners.h"
#include "snug/cuda.h"
#include "store/cuda/pinned_memory.h"
#include "store/load_queue.h"

namespace snug::cuda {

// One piece on its way: read into pinned memory, copied to the GPU, decoded into the tensor.
class LoadSlot {
 public:
  // Reads a piece and starts its way to the tensor, after `ready`. Waits for the slot's last piece
  // first, and returns its error if it had one.
  StoreStatus start(const store::TensorFile& file, const store::LoadPiece& piece,
                    std::size_t piece_bytes, cudaEvent_t ready);
  // Waits for the last piece.
  StoreStatus finish(const store::TensorFile& file);

 private:
  StoreStatus reserve(std::size_t frame_bytes, std::size_t piece_bytes);
  StoreStatus copy_unframed(const store::TensorFile& file, const store::LoadPiece& piece,
                            std::size_t piece_bytes);
  StoreStatus decode_blocks(const store::TensorFile& file, const store::LoadPiece& piece,
                            std::size_t piece_bytes);
  DeviceResult* host_result() const { return reinterpret_cast<DeviceResult*>(host_.data()); }
  std::byte* host_frame() const { return host_.data() + kResultBytes; }
  std::byte* device_frame() const { return device_.as<std::byte>() + kResultBytes; }

  // Memory starts with a DeviceResult. A frame follows.
  static constexpr std::size_t kResultBytes = 256;
  PinnedMemory host_;
  Memory device_, workspace_;
  StreamOwner stream_;
  store::LoadPiece piece_;  // in work
  bool is_busy_ = false, is_decoding_ = false;
};

struct LoadLane {
  LoadSlot slots[2];
};

}  // namespace snug::cuda
