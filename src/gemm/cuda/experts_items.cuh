// gemm/cuda/experts_items.cuh - the work of a product of experts, item after item.
#pragma once
#include "gemm/cuda/experts_params.h"
#include "gemm/cuda/warp_mma.cuh"

namespace snug::gemm {

// One item, found in the list of experts.
struct ExpertItem {
  std::uint32_t expert, strips, first_row, num_rows;
};

// Items in order. They lie strip after strip, chunks of rows of a strip side by side: these read
// the same weights, which are then in the cache.
struct ItemWalk {
  std::uint32_t active, at = 0;  // address of the list; the entry that the last item belongs to

  // Fetches the list from routing, which has ended; returns the number of experts in it. Needs a
  // barrier after it.
  template <int kThreads>
  __device__ __forceinline__ std::uint32_t load(const Routing& routing,
                                                std::uint32_t experts) const {
    for (std::uint32_t i = threadIdx.x; i <= experts; i += kThreads)
      store_shared(active + i * 16, __ldcg(reinterpret_cast<const uint4*>(routing.active) + i));
    return __ldcg(routing.num_active);
  }
  __device__ __forceinline__ std::uint64_t num_items(std::uint32_t num_active,
                                                     std::uint32_t per_expert) const {
    return std::uint64_t{entry(num_active).first_chunk} * per_expert;
  }
  __device__ __forceinline__ ActiveExpert entry(std::uint32_t i) const {
    const uint4 v = load_shared_b128(active + i * 16);
    return {v.x, v.y, v.z, v.w};
  }
  __device__ __forceinline__ void find(std::uint32_t item, std::uint32_t per_expert,
                                       std::uint32_t num_active) {
    std::uint32_t end = num_active;  // entry(at) begins at or before the item
    while (at + 1 < end) {
      const std::uint32_t middle = (at + end) / 2;
      (entry(middle).first_chunk * per_expert <= item ? at : end) = middle;
    }
  }
  __device__ __forceinline__ ExpertItem next(std::uint32_t item, std::uint32_t per_expert) {
    ActiveExpert e = entry(at), after = entry(at + 1);
    while (item >= after.first_chunk * per_expert) e = after, after = entry(++at + 1);
    const std::uint32_t local = item - e.first_chunk * per_expert,
                        chunks = after.first_chunk - e.first_chunk;
    if (chunks == 1) return {e.expert, local, e.first_row, e.num_rows};
    // Chunks are equal, but for the last: as many rows as it takes to fill all of them.
    const std::uint32_t rows = ((e.num_rows + chunks - 1) / chunks + 7) / 8 * 8,
                        first = local % chunks * rows;
    return {e.expert, local / chunks, e.first_row + first, min(e.num_rows - first, rows)};
  }
};

}  // namespace snug::gemm
