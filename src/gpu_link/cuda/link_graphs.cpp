#include "gpu_link/cuda/link_graphs.h"

#include <utility>

namespace snug::cuda {

CopyGraph::~CopyGraph() {
  if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
  if (graph_ != nullptr) cudaGraphDestroy(graph_);
}

cudaError_t CopyGraph::copy(void* to, const void* from, std::size_t num_bytes,
                            cudaStream_t stream) {
  constexpr auto kWay = cudaMemcpyDeviceToDevice;
  if (!std::exchange(is_tried_, true) &&
      (cudaGraphCreate(&graph_, 0) != cudaSuccess ||
       cudaGraphAddMemcpyNode1D(&node_, graph_, nullptr, 0, to, from, num_bytes, kWay) !=
           cudaSuccess ||
       cudaGraphInstantiate(&exec_, graph_, 0) != cudaSuccess))
    exec_ = nullptr;
  if (exec_ != nullptr &&
      cudaGraphExecMemcpyNodeSetParams1D(exec_, node_, to, from, num_bytes, kWay) == cudaSuccess &&
      cudaGraphLaunch(exec_, stream) == cudaSuccess)
    return cudaSuccess;
  (void)cudaGetLastError();
  return cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDefault, stream);
}

}  // namespace snug::cuda
