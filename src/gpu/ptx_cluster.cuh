// gpu/ptx_cluster.cuh - clusters of thread blocks, which reach each other's shared memory; sm_90
// on.
#pragma once
#include <cstdint>

namespace snug::cuda {

__device__ __forceinline__ std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// Does not wait for memory: enough where only barriers were written, and barrier_init_fence() was
// called.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// The address of the same place in the shared memory of another block of the cluster.
__device__ __forceinline__ std::uint32_t cluster_address(std::uint32_t address,
                                                         std::uint32_t rank) {
  std::uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}
__device__ __forceinline__ void store_cluster(std::uint32_t address, float4 v) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(v.x), "f"(v.y),
               "f"(v.z), "f"(v.w)
               : "memory");
}
__device__ __forceinline__ void barrier_arrive_cluster(std::uint32_t address) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
}

__device__ __forceinline__ void barrier_arrive_cluster_if(bool condition, std::uint32_t address) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.u32 p, %1, 0;\n"
      "@p mbarrier.arrive.shared::cluster.b64 _, [%0];\n"
      "}" ::"r"(address),
      "r"(static_cast<std::uint32_t>(condition))
      : "memory");
}

// Copies a box of a matrix to the same place in each block of the mask, and signals the barrier
// of each.
__device__ __forceinline__ void tensor_copy_multicast(std::uint16_t block_mask, std::uint32_t to,
                                                      const void* tensor_map, std::uint32_t col,
                                                      std::uint32_t row, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(tensor_map), "r"(col), "r"(row), "r"(barrier), "h"(block_mask)
      : "memory");
}
__device__ __forceinline__ void prefetch_tensor_map(const void* tensor_map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(tensor_map) : "memory");
}

}  // namespace snug::cuda
