// gpu_link/cuda/link_gpu_parts.h - copies and pending codec calls of the engines in link_gpu.h.
#pragma once
#include "gpu_link/cuda/chunk_coder.h"
#include "gpu_link/cuda/enter_thread.h"
#include "gpu_link/cuda/link_gpu.h"

namespace snug::cuda {

// A copy within device memory. A graph starts sooner than cudaMemcpyAsync.
class CopyGraph {
 public:
  cudaError_t copy(void* to, const void* from, std::size_t num_bytes, cudaStream_t stream) {
    constexpr auto kWay = cudaMemcpyDeviceToDevice;
    if (!std::exchange(is_tried_, true) && cudaGraphCreate(&graph_.graph, 0) == cudaSuccess &&
        cudaGraphAddMemcpyNode1D(&node_, graph_.graph, nullptr, 0, to, from, num_bytes, kWay) ==
            cudaSuccess)
      (void)graph_.instantiate();
    if (graph_.exec != nullptr &&
        cudaGraphExecMemcpyNodeSetParams1D(graph_.exec, node_, to, from, num_bytes, kWay) ==
            cudaSuccess &&
        cudaGraphLaunch(graph_.exec, stream) == cudaSuccess)
      return cudaSuccess;
    (void)cudaGetLastError();
    return cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDefault, stream);
  }

 private:
  GraphOwner graph_;
  cudaGraphNode_t node_ = nullptr;
  bool is_tried_ = false;
};

// A codec call under way. The kernel writes the result into pinned memory, where the host sees it
// earlier than a copy. An event then tells that the kernel has ended: others may use its output
// only then.
class CodecCall {
 public:
  cudaError_t ensure() {
    const cudaError_t error = result_.ensure(sizeof(DeviceResult));
    return error == cudaSuccess ? event_.ensure() : error;
  }
  DeviceResult* expect_result() {
    for (std::size_t i = 0; i < kWords; ++i) words()[i] = kUnset;
    return result_.as<DeviceResult>();
  }
  Status started(const Status& status, cudaStream_t stream) {
    return status.ok() ? from_cuda(event_.record(stream)) : status;
  }
  // A kernel that ends without a result had wrong arguments, or the GPU has failed.
  Result<bool> is_done() {
    if (!has_result() && ++num_polls_ % 1024 != 0) return false;
    const auto ended = event_.happened();
    if (!ended || !*ended) return ended;
    if (!has_result()) return Status{Code::kCorrupt, "a frame left the GPU without a result"};
    return true;
  }
  const DeviceResult& result() const { return *result_.as<DeviceResult>(); }

 private:
  static constexpr std::size_t kWords = sizeof(DeviceResult) / 4;
  static constexpr std::uint32_t kUnset = 0x5A5A'5A5A;  // neither a size nor a code

  volatile std::uint32_t* words() const { return result_.as<std::uint32_t>(); }
  // The words arrive one by one.
  bool has_result() const {
    for (std::size_t i = 0; i < kWords; ++i)
      if (words()[i] == kUnset) return false;
    return true;
  }

  Memory result_{Memory::Where::kHost};
  EventOwner event_;
  std::uint64_t num_polls_ = 0;
};

}  // namespace snug::cuda
