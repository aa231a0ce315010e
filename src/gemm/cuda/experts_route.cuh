// gemm/cuda/experts_route.cuh - before and after the products of a mixture of experts: sorting
// pairs by expert, bringing x into the order of mma, the weighted sum.
#pragma once
#include "gemm/cuda/experts_output.cuh"
#include "gemm/cuda/experts_sort.cuh"
#include "gpu/ptx_cluster.cuh"

namespace snug::gemm {

inline constexpr std::uint32_t kRouteThreads = 1024;
inline constexpr std::int32_t kBadCount = -2;   // as an id, which is then reported
inline constexpr std::uint32_t kRouteTeam = 8;  // thread blocks that sort many pairs together

__device__ __forceinline__ std::uint32_t x_pair(const RouteParams& p, std::uint64_t row,
                                                std::uint32_t col) {
  const std::uint16_t* at = p.x + row * p.ldx + col;
  if (col + 1 < p.k && p.x_pairs) return *reinterpret_cast<const std::uint32_t*>(at);
  return (col < p.k ? at[0] : 0u) | (col + 1 < p.k ? std::uint32_t{at[1]} << 16 : 0u);
}

// Of 32 columns, lane c of four gets those that mma wants of it in two steps of sixteen.
__device__ __forceinline__ void order_x(const RouteParams& p, std::uint64_t first,
                                        std::uint64_t stride) {
  const std::uint64_t units = std::uint64_t{p.m} * p.x_units;
  for (std::uint64_t i = first; i < units; i += stride) {
    const std::uint64_t row = i / p.x_units;
    const auto unit = static_cast<std::uint32_t>(i % p.x_units);
    const std::uint32_t col = unit / 4 * 32 + unit % 4 * 2;
    p.x_to[i] = {x_pair(p, row, col), x_pair(p, row, col + 8), x_pair(p, row, col + 16),
                 x_pair(p, row, col + 24)};
  }
}

__global__ void __launch_bounds__(kRouteThreads)
    route_experts(const __grid_constant__ RouteParams p) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  if (blockIdx.x == 0) {
    __shared__ SortScratch scratch;
    const std::uint32_t num_active = sort_pairs<kRouteThreads, false>(
        p.ids, p.shape, scratch, p.to.active, p.to.pairs, p.result);
    if (threadIdx.x == 0) *p.to.num_active = num_active;
    return;
  }
  order_x(p, (blockIdx.x - 1) * std::uint64_t{kRouteThreads} + threadIdx.x,
          (gridDim.x - 1) * std::uint64_t{kRouteThreads});
}

__device__ __forceinline__ std::uint32_t load_of_block(const std::uint32_t* local,
                                                       std::uint32_t block) {
  const std::uint32_t address = cuda::cluster_address(shared_address(local), block);
  std::uint32_t v;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

// The same for many pairs, by a cluster of thread blocks: each sorts a part of them, in the places
// that the counts of all leave to it.
__global__ void __launch_bounds__(kRouteThreads)
    route_many_experts(const __grid_constant__ RouteParams p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using namespace cuda;
  __shared__ SortScratch scratch;
  __shared__ std::uint32_t starts[kMaxExperts];
  let_next_kernel_start();
  wait_for_previous_kernel();
  const std::uint32_t rank = cluster_rank();
  const std::uint32_t each = (p.shape.num_pairs + kRouteTeam - 1) / kRouteTeam,
                      first = min(rank * each, p.shape.num_pairs),
                      num_pairs = min(each, p.shape.num_pairs - first);
  count_pairs<kRouteThreads>(p.ids, first, num_pairs, p.shape, scratch,
                             [](std::uint32_t, std::int32_t) {});
  cluster_sync();
  list_experts<kRouteThreads>(
      p.shape, scratch, rank == 0 ? p.to.active : nullptr,
      [&](std::uint32_t expert) {
        std::uint32_t before = 0, total = 0;
#pragma unroll
        for (std::uint32_t block = 0; block < kRouteTeam; ++block) {
          const std::uint32_t count = load_of_block(scratch.counts + expert, block);
          total += count;
          before += block < rank ? count : 0;
        }
        starts[expert] = before;
        return total;
      },
      [&](std::uint32_t expert, std::uint32_t row) { starts[expert] += row; });
  if (rank == 0 && threadIdx.x == kRouteThreads - 1) {
    std::uint32_t first_bad = ~0u;
    for (std::uint32_t block = 0; block < kRouteTeam; ++block)
      first_bad = min(first_bad, load_of_block(&scratch.first_bad, block));
    report_routing(p.result, first_bad, p.shape);
    *p.to.num_active = scratch.num_active;
  }
  cluster_arrive();  // this block has read the counts of others
  __syncthreads();
  for_each_id<kRouteThreads>(p.ids + first, num_pairs, [&](std::uint32_t i, std::int32_t id) {
    if (static_cast<std::uint32_t>(id) < p.shape.experts)
      p.to.pairs[atomicAdd(starts + id, 1u)] = first + i;
  });
  cluster_wait();
#endif
}

// Rows of each expert begin at equal distances; the first counts[expert] of them have it.
__global__ void __launch_bounds__(256) ids_of_counts(const std::int32_t* counts, std::uint32_t each,
                                                     std::uint32_t m, std::int32_t* ids) {
  let_next_kernel_start();
  const std::uint32_t row = blockIdx.x * 256 + threadIdx.x;
  wait_for_previous_kernel();
  if (row >= m) return;
  const auto expert = static_cast<std::int32_t>(row / each);
  const auto count = static_cast<std::uint32_t>(counts[expert]);
  ids[row] = count > each ? kBadCount : row % each < count ? expert : -1;
}

// y from the weighted products, eight columns a thread.
__global__ void __launch_bounds__(256) sum_experts(const __grid_constant__ SumParams p) {
  let_next_kernel_start();
  const std::uint32_t units = (p.k + 7) / 8;
  const std::uint64_t i = blockIdx.x * std::uint64_t{256} + threadIdx.x;
  const std::uint64_t row = i / units;
  wait_for_previous_kernel();
  if (row < p.m && !(p.skip_empty && static_cast<std::uint32_t>(p.ids[row]) >= p.experts))
    sum_parts(p, row, static_cast<std::uint32_t>(i % units), [&](std::uint32_t j) {
      return static_cast<std::uint32_t>(p.ids[row * p.top_k + j]) < p.experts;
    });
}

}  // namespace snug::gemm
