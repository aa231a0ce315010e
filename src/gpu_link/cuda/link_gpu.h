// gpu_link/cuda/link_gpu.h - the engines of gpu_link/link_engine.h on a GPU. They encode and decode
// chunks with snug/cuda.h and copy them from GPU memory to GPU memory. The host only starts work
// and polls for its end.
#pragma once
#include <memory>

#include "gpu_link/cuda/segment_copy.h"
#include "gpu_link/link_engine.h"
#include "snug/cuda.h"

namespace snug::cuda {

inline constexpr std::size_t kLinkChunkBytes = wire::kMaxChunkBytes;
inline constexpr std::size_t kLinkStagingBytes = 3 * kLinkChunkBytes;

struct GpuTensor : gpu_link::LinkTensor {
  GpuTensor(DType type, std::span<const Segment> list) : segments(list) {
    dtype = type;
    num_bytes = segments.num_bytes();
  }
  const SegmentList segments;
};

// The peer's staging memory in this process: mapped, or of this process.
struct PeerMemory {
  void* data = nullptr;
  bool is_mapped = false;  // and to be unmapped
};

std::unique_ptr<gpu_link::SendEngine> make_gpu_sender(int device, PeerMemory staging);
std::unique_ptr<gpu_link::ReceiveEngine> make_gpu_receiver(void* staging);

}  // namespace snug::cuda
