// The hash of a tensor on the GPU, without a delta.
#include <algorithm>

#include "delta/cuda/gpu_delta_host.h"

namespace snug::cuda {
namespace deltas {
namespace {

constexpr std::uint32_t kHashThreads = 512;

__global__ void __launch_bounds__(kHashThreads)
    hash_kernel(Source tensor, CallState* state, std::uint64_t* hash) {
  const std::uint8_t* bytes = static_cast<const std::uint8_t*>(tensor.data);
  const std::uint64_t num_pairs = (tensor.num_bytes + 7) / 8;
  std::uint64_t sum = 0;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * kHashThreads + threadIdx.x; i < num_pairs;
       i += std::uint64_t{gridDim.x} * kHashThreads) {
    uint2 pair = {0, 0};
    if (8 * i + 8 <= tensor.num_bytes) {
      pair = reinterpret_cast<const uint2*>(bytes)[i];
    } else {
      for (std::uint64_t k = 8 * i; k < tensor.num_bytes; ++k)
        (k % 8 < 4 ? pair.x : pair.y) |= std::uint32_t{bytes[k]} << 8 * (k % 4);
    }
    sum += delta::hash_term(pair.x, pair.y, i);
  }
  sum = warp_sum(sum);
  if (lane_id() == 0) atomicAdd(&state->base_sum, sum);
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&state->done, 1u) + 1 == gridDim.x)
    *hash = delta::hash_finish(read_state(&state->base_sum), tensor.num_bytes);
}

}  // namespace
}  // namespace deltas

using namespace deltas;

Status tensor_hash(Source tensor, std::uint64_t* hash, Target workspace, Stream stream) noexcept {
  if (Status s = check_workspace(workspace.data, workspace.num_bytes, kStateBytes); !s.ok())
    return s;
  if (!is_aligned(tensor.data, 8)) return usage("tensor is not 8-byte aligned");
  cudaError_t error = cudaMemsetAsync(workspace.data, 0, kStateBytes, stream);
  if (error != cudaSuccess) return from_cuda(error);
  const std::uint64_t num_blocks = tensor.num_bytes / (8 * kHashThreads * 8) + 1;
  const auto grid = static_cast<std::uint32_t>(std::min<std::uint64_t>(num_blocks, 1024));
  hash_kernel<<<grid, kHashThreads, 0, stream>>>(tensor, static_cast<CallState*>(workspace.data),
                                                 hash);
  return from_cuda(cudaGetLastError());
}

}  // namespace snug::cuda
