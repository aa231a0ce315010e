// gpu_link/cuda/link_gpu.h - the GPU at the two ends of a link (gpu_link/link_engine.h): chunks are
// encoded and decoded by snug/cuda.h and copied from GPU memory to GPU memory; the host
// only starts work and sees it end.
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

// The peer's staging memory as this process sees it, mapped or its own.
struct PeerMemory {
  void* data = nullptr;
  bool is_mapped = false;  // to be unmapped in the end
};

std::unique_ptr<gpu_link::SendEngine> make_gpu_sender(int device, PeerMemory staging);
std::unique_ptr<gpu_link::ReceiveEngine> make_gpu_receiver(void* staging);

}  // namespace snug::cuda
