// codec/cuda/codec_graph.h - a call of snug/cuda.h recorded as a CUDA graph, and launched again
// with other addresses in half the time of the call.
#pragma once
#include <cuda_runtime_api.h>

#include <vector>

#include "gpu/owners.h"
#include "snug/cuda.h"

namespace snug::cuda {

class CodecGraph {
 public:
  // What may change from launch to launch. The size of the tensor may not, nor whether its address
  // is a multiple of 16. The array of segments of a paged tensor stays where it is.
  struct Call {
    void* tensor = nullptr;  // null: paged
    void* frame = nullptr;
    std::size_t frame_bytes = 0;
    DeviceResult* result = nullptr;
    std::size_t num_pieces = 0;  // at most as many as in the recorded call
  };

  // Records what `start` enqueues on `stream` for `call`, without running it. Where that fails,
  // there is no graph.
  template <class Start>
  void record(const Call& call, cudaStream_t stream, Start start) {
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess) {
      const Status started = start(stream);
      const cudaError_t ended = cudaStreamEndCapture(stream, &owner_.graph);
      if (started.ok() && ended == cudaSuccess && find_nodes(call)) (void)owner_.instantiate();
    }
    (void)cudaGetLastError();
  }
  bool exists() const { return owner_.exec != nullptr; }
  // False: nothing was started, and the caller has to make the call itself.
  bool launch(const Call& call, cudaStream_t stream);

 private:
  struct Node {
    cudaGraphNode_t node;
    cudaKernelNodeParams params;
    std::vector<void*> arguments;
    std::vector<std::uint64_t> work;  // the first argument, which is patched
  };
  bool find_nodes(const Call& call);

  GraphOwner owner_;
  std::vector<Node> nodes_;
};

}  // namespace snug::cuda
