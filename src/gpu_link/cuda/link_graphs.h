// gpu_link/cuda/link_graphs.h - the CUDA graphs of a link: one for each kind of chunk, and one that
// copies.
#pragma once
#include <cuda_runtime_api.h>

#include <vector>

#include "codec/cuda/codec_graph.h"
#include "gpu_link/link_scheduler.h"

namespace snug::cuda {

// A copy from device memory to device memory: as a graph it starts sooner.
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
      for (const std::size_t num_bytes : gpu_link::LinkScheduler::kChunks)
        for (const bool is_paged : {false, true})
          entries_.push_back({codec, num_bytes, is_paged, make(codec, num_bytes, is_paged)});
  }
  // Null where there is none: then the caller makes the call itself. No tensor: it is paged.
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
