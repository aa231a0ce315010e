// gpu/owners.h - memory, streams, events and graphs that free themselves. They are made on demand.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "gpu/relaxed_capture.h"
#include "gpu/status.h"

namespace snug::cuda {

// Device memory or pinned host memory.
class Memory {
 public:
  enum class Where { kDevice, kHost };
  explicit Memory(Where where = Where::kDevice) : on_host_(where == Where::kHost) {}
  Memory(const Memory&) = delete;
  ~Memory() { release(); }

  // At least that many bytes; what it held may be lost.
  cudaError_t ensure(std::size_t num_bytes) {
    if (num_bytes <= num_bytes_) return cudaSuccess;
    release();
    const cudaError_t error =
        on_host_ ? cudaMallocHost(&data_, num_bytes) : cudaMalloc(&data_, num_bytes);
    num_bytes_ = error == cudaSuccess ? num_bytes : 0;
    return error;
  }
  template <class T = void>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t num_bytes() const { return num_bytes_; }

 private:
  void release() {
    if (data_ == nullptr) return;
    const RelaxedCapture relaxed;  // the last owner may be any thread
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
  cudaError_t wait() const {
    return stream_ != nullptr ? cudaStreamSynchronize(stream_) : cudaSuccess;
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
  cudaEvent_t get() const { return event_; }
  Result<bool> happened() const {
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) return false;
    if (error != cudaSuccess) return from_cuda(error);
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// A graph and what launches it.
struct GraphOwner {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;  // null until instantiate() succeeds

  GraphOwner() = default;
  GraphOwner(GraphOwner&& other) noexcept
      : graph(std::exchange(other.graph, nullptr)), exec(std::exchange(other.exec, nullptr)) {}
  ~GraphOwner() {
    if (exec != nullptr) cudaGraphExecDestroy(exec);
    if (graph != nullptr) cudaGraphDestroy(graph);
  }

  bool instantiate() {
    if (cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) exec = nullptr;
    return exec != nullptr;
  }
};

}  // namespace snug::cuda
