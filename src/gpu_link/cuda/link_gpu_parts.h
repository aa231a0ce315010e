// gpu_link/cuda/link_gpu_parts.h - what the engines of gpu_link/cuda/link_gpu.h are made of.
#pragma once
#include "gpu/owners.h"
#include "gpu_link/cuda/enter_thread.h"
#include "gpu_link/cuda/link_gpu.h"

namespace snug::cuda {

inline Target target_of(const Memory& memory) { return {memory.as(), memory.num_bytes()}; }

// The pieces of one chunk.
class PieceTable {
 public:
  cudaError_t ensure() { return host_.ensure(kBytes); }
  // What `segments` has at the span. False where that is one piece: no table needed.
  Result<bool> load(const SegmentList& segments, gpu_link::LinkSpan span) {
    if (segments.in_one_piece(span.offset, span.num_bytes) != nullptr) return false;
    if (Status s = from_cuda(ensure()); !s.ok()) return s;
    num_pieces_ = segments.cut(span.offset, span.num_bytes, {host_.as<Segment>(), kMaxPipePieces});
    if (num_pieces_ > kMaxPipePieces) return Status{Code::kUsage, "too many pieces in a chunk"};
    return true;
  }
  Status copy(CopyWay way, void* memory, cudaStream_t stream) const {
    return from_cuda(copy_segments(way, {host_.as<Segment>(), num_pieces_}, memory, stream));
  }
  // For kernels, which read it where it is: that is sooner done than a copy, for which copies of
  // chunks would be in the way. Not to be loaded again before they end.
  const Segment* list() const { return host_.as<Segment>(); }
  std::size_t num_pieces() const { return num_pieces_; }

 private:
  static constexpr std::size_t kBytes = kMaxPipePieces * sizeof(Segment);
  Memory host_{Memory::Where::kHost};
  std::size_t num_pieces_ = 0;
};

// The result of a codec call, which the kernel writes into host memory: that is seen
// earlier than a copy would be. Every word is checked, for they arrive one by one.
class ResultSlot {
 public:
  cudaError_t ensure() { return host_.ensure(sizeof(DeviceResult)); }
  DeviceResult* get() const { return host_.as<DeviceResult>(); }
  void expect() {
    volatile std::uint32_t* words = host_.as<std::uint32_t>();
    for (std::size_t i = 0; i < kWords; ++i) words[i] = kUnset;
  }
  bool is_there() const {
    const volatile std::uint32_t* words = host_.as<std::uint32_t>();
    for (std::size_t i = 0; i < kWords; ++i)
      if (words[i] == kUnset) return false;
    return true;
  }

 private:
  static constexpr std::size_t kWords = sizeof(DeviceResult) / 4;
  static constexpr std::uint32_t kUnset = 0x5A5A'5A5A;  // no size of a chunk, no code
  Memory host_{Memory::Where::kHost};
};

// A call whose result comes in host memory, and what tells that its kernel has ended: only
// then may others use what it has written.
class CodecCall {
 public:
  cudaError_t ensure() {
    const cudaError_t error = result_.ensure();
    return error == cudaSuccess ? event_.ensure() : error;
  }
  DeviceResult* expect_result() {
    result_.expect();
    return result_.get();
  }
  Status started(const Status& status, cudaStream_t stream) {
    return status.ok() ? from_cuda(event_.record(stream)) : status;
  }
  // A kernel that ends without a result was given nonsense, or the GPU has failed.
  Result<bool> is_done() {
    if (!result_.is_there() && ++num_polls_ % 1024 != 0) return false;
    const auto ended = event_.happened();
    if (!ended || !*ended) return ended;
    if (!result_.is_there()) return Status{Code::kCorrupt, "a frame left the GPU without a result"};
    return true;
  }
  const DeviceResult& result() const { return *result_.get(); }

 private:
  ResultSlot result_;
  EventOwner event_;
  std::uint64_t num_polls_ = 0;
};

}  // namespace snug::cuda
