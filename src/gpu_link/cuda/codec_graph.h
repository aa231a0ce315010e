// gpu_link/cuda/codec_graph.h - a call of snug/cuda.h that is made again and again with other
// addresses: recorded once as a CUDA graph, it starts in half the time.
#pragma once
#include <cuda_runtime_api.h>

#include <vector>

#include "snug/cuda.h"
#include "gpu_link/link_scheduler.h"

namespace snug::cuda {

class CodecGraph {
 public:
  // What changes from call to call. Sizes of tensors do not; whether they are 16-byte aligned
  // must not either. Where they lie in pieces, the list of these stays in its place.
  struct Call {
    void* tensor = nullptr;  // null: pieces, no more than in the call that was recorded
    void* frame = nullptr;
    std::size_t frame_bytes = 0;
    DeviceResult* result = nullptr;
    std::size_t num_pieces = 0;
  };

  CodecGraph() = default;
  CodecGraph(CodecGraph&& other) noexcept;
  ~CodecGraph();

  // Records what `start` launches on `stream` for `call`, which does not run. Where that fails,
  // there is no graph.
  template <class Start>
  void record(const Call& call, cudaStream_t stream, Start start) {
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess) {
      const Status started = start(stream);
      const cudaError_t ended = cudaStreamEndCapture(stream, &graph_);
      if (started.ok() && ended == cudaSuccess) instantiate(call);
    }
    (void)cudaGetLastError();
  }
  bool exists() const { return exec_ != nullptr; }
  // False where it did not start: then the call itself is to be made.
  bool launch(const Call& call, cudaStream_t stream);

 private:
  struct Node {
    cudaGraphNode_t node;
    cudaKernelNodeParams params;
    std::vector<void*> arguments;
    std::vector<std::uint64_t> first;  // of them, which changes
  };
  void instantiate(const Call& call);
  bool find_nodes(const Call& call);

  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  std::vector<Node> nodes_;
};

// A copy from device memory to device memory, for the same reason.
class CopyGraph {
 public:
  CopyGraph() = default;
  CopyGraph(const CopyGraph&) = delete;
  ~CopyGraph();
  cudaError_t copy(void* to, const void* from, std::size_t num_bytes, cudaStream_t stream);

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  cudaGraphNode_t node_ = nullptr;
  bool is_tried_ = false;
};

// Graphs for chunks of one dtype, of all sizes and codecs.
class GraphSet {
 public:
  // `make(codec, num_bytes, is_paged)` makes each.
  template <class Make>
  void record(DType dtype, Make make) {
    dtype_ = dtype;
    for (const Codec codec : {Codec::kFixed, Codec::kEntropy})
      for (const std::size_t num_bytes : wire::LinkScheduler::kChunks)
        for (const bool is_paged : {false, true})
          entries_.push_back({codec, num_bytes, is_paged, make(codec, num_bytes, is_paged)});
  }
  // Null where there is none: then the call itself is made. No tensor: in pieces.
  CodecGraph* find(DType dtype, Codec codec, std::size_t num_bytes, const void* tensor) {
    if (dtype != dtype_ || reinterpret_cast<std::uintptr_t>(tensor) % 16 != 0) return nullptr;
    for (Entry& entry : entries_)
      if (entry.codec == codec && entry.num_bytes == num_bytes &&
          entry.is_paged == (tensor == nullptr) && entry.graph.exists())
        return &entry.graph;
    return nullptr;
  }

 private:
  struct Entry {
    Codec codec;
    std::size_t num_bytes;
    bool is_paged;
    CodecGraph graph;
  };
  DType dtype_ = DType::kBytes;
  std::vector<Entry> entries_;
};

}  // namespace snug::cuda
