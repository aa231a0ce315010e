// gpu_link/cuda/link_gpu_parts.h - what the engines of gpu_link/cuda/link_gpu.h are made of.
#pragma once
#include <cuda_runtime_api.h>

#include <initializer_list>

#include "gpu_link/cuda/enter_thread.h"
#include "gpu_link/cuda/link_gpu.h"

namespace snug::cuda {

inline Status cuda_status(cudaError_t error) {
  if (error == cudaSuccess) return {};
  return {Code::kNoDevice, cudaGetErrorString(error), kNowhere, kNowhere,
          static_cast<std::uint64_t>(error)};
}
// The first that is not good.
inline Status cuda_status(std::initializer_list<cudaError_t> errors) {
  for (const cudaError_t error : errors)
    if (error != cudaSuccess) return cuda_status(error);
  return {};
}

// Device memory and pinned host memory that free themselves.
class Memory {
 public:
  enum class Where { kDevice, kHost };
  explicit Memory(Where where = Where::kDevice) : on_host_(where == Where::kHost) {}
  Memory(const Memory&) = delete;
  ~Memory() { release(); }
  // At least that much; what was in it may be lost.
  cudaError_t ensure(std::size_t num_bytes) {
    if (num_bytes <= num_bytes_) return cudaSuccess;
    release();
    const cudaError_t error =
        on_host_ ? cudaMallocHost(&data_, num_bytes) : cudaMalloc(&data_, num_bytes);
    num_bytes_ = error == cudaSuccess ? num_bytes : 0;
    return error;
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  Target target() const { return {data_, num_bytes_}; }

 private:
  void release() {
    (void)(on_host_ ? cudaFreeHost(data_) : cudaFree(data_));
    data_ = nullptr;
    num_bytes_ = 0;
  }

  const bool on_host_;
  void* data_ = nullptr;
  std::size_t num_bytes_ = 0;
};

class StreamOwner {
 public:
  StreamOwner() = default;
  StreamOwner(const StreamOwner&) = delete;
  ~StreamOwner() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  cudaError_t ensure() {
    return stream_ != nullptr ? cudaSuccess
                              : cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  }
  void wait() const {
    if (stream_ != nullptr) (void)cudaStreamSynchronize(stream_);
  }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class EventOwner {
 public:
  EventOwner() = default;
  EventOwner(const EventOwner&) = delete;
  ~EventOwner() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  cudaError_t ensure() {
    return event_ != nullptr ? cudaSuccess
                             : cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
  }
  cudaError_t record(cudaStream_t stream) { return cudaEventRecord(event_, stream); }
  Result<bool> happened() const {
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) return false;
    if (error != cudaSuccess) return cuda_status(error);
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// The pieces of one chunk.
class PieceTable {
 public:
  cudaError_t ensure() { return host_.ensure(kBytes); }
  // What `segments` has at the span. False where that is one piece: no table needed.
  Result<bool> load(const SegmentList& segments, gpu_link::LinkSpan span) {
    if (segments.in_one_piece(span.offset, span.num_bytes) != nullptr) return false;
    if (Status s = cuda_status(ensure()); !s.ok()) return s;
    num_pieces_ = segments.cut(span.offset, span.num_bytes, {host_.as<Segment>(), kMaxPipePieces});
    if (num_pieces_ > kMaxPipePieces) return Status{Code::kUsage, "too many pieces in a chunk"};
    return true;
  }
  Status copy(CopyWay way, void* memory, cudaStream_t stream) const {
    return cuda_status(copy_segments(way, {host_.as<Segment>(), num_pieces_}, memory, stream));
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
    return status.ok() ? cuda_status(event_.record(stream)) : status;
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
