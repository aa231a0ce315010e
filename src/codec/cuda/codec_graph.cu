#include <cstring>
#include <utility>

#include "codec/cuda/codec_graph.h"
#include "codec/cuda/frame/work.cuh"

namespace snug::cuda {
namespace {

// The number of arguments of a kernel of the codec, whose first one is Work; 0 for another kernel.
std::size_t count_arguments(const void* kernel) {
  std::size_t count = 0, offset = 0, size = 0;
  while (cudaFuncGetParamInfo(kernel, count, &offset, &size) == cudaSuccess)
    if (count++ == 0 && size != sizeof(Work)) return 0;
  (void)cudaGetLastError();
  return count;
}
static_assert(sizeof(Work) % sizeof(std::uint64_t) == 0);

}  // namespace

bool CodecGraph::find_nodes(const Call& call) {
  std::size_t num_nodes = 0;
  if (cudaGraphGetNodes(owner_.graph, nullptr, &num_nodes) != cudaSuccess) return false;
  std::vector<cudaGraphNode_t> list(num_nodes);
  if (cudaGraphGetNodes(owner_.graph, list.data(), &num_nodes) != cudaSuccess) return false;
  for (const cudaGraphNode_t node : list) {
    Node found{node, {}, {}, std::vector<std::uint64_t>(sizeof(Work) / sizeof(std::uint64_t))};
    if (cudaGraphKernelNodeGetParams(node, &found.params) != cudaSuccess ||
        found.params.kernelParams == nullptr)
      return false;
    const std::size_t count = count_arguments(found.params.func);
    if (count == 0) return false;
    // A kernel of another call would have other values here: then there is no graph.
    Work work;
    std::memcpy(&work, found.params.kernelParams[0], sizeof work);
    if (work.single.tensor != call.tensor || work.single.frame != call.frame ||
        work.single.frame_bytes != call.frame_bytes || work.results != call.result ||
        work.num_segments != call.num_pieces)
      return false;
    std::memcpy(found.work.data(), &work, sizeof work);
    found.arguments.assign(found.params.kernelParams, found.params.kernelParams + count);
    nodes_.push_back(std::move(found));
    Node& kept = nodes_.back();
    kept.arguments[0] = kept.work.data();
    kept.params.kernelParams = kept.arguments.data();
  }
  return true;
}

bool CodecGraph::launch(const Call& call, cudaStream_t stream) {
  for (Node& node : nodes_) {
    Work& work = *reinterpret_cast<Work*>(node.work.data());
    work.single.tensor = call.tensor;
    work.single.frame = call.frame;
    work.single.frame_bytes = call.frame_bytes;
    work.results = call.result;
    work.num_segments = static_cast<std::uint32_t>(call.num_pieces);
    if (cudaGraphExecKernelNodeSetParams(owner_.exec, node.node, &node.params) != cudaSuccess) {
      (void)cudaGetLastError();
      return false;
    }
  }
  if (cudaGraphLaunch(owner_.exec, stream) == cudaSuccess) return true;
  (void)cudaGetLastError();
  return false;
}

}  // namespace snug::cuda
