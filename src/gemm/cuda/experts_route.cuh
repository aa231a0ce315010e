// gemm/cuda/experts_route.cuh - before and after the products of a mixture of experts: sorting
// pairs by expert, bringing x into the order of mma, the weighted sum.
#pragma once
#include "gemm/cuda/experts_sort.cuh"
#include "gemm/cuda/linear_output.cuh"

namespace snug::gemm {

inline constexpr std::uint32_t kRouteThreads = 1024;

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

// y = the sum of the weighted products of a row in the order of its experts, eight columns a
// thread.
__global__ void __launch_bounds__(256) sum_experts(const __grid_constant__ SumParams p) {
  let_next_kernel_start();
  const std::uint32_t units = (p.k + 7) / 8;
  const std::uint64_t i = blockIdx.x * std::uint64_t{256} + threadIdx.x;
  const std::uint64_t row = i / units;
  const auto unit = static_cast<std::uint32_t>(i % units);
  if (row >= p.m) return wait_for_previous_kernel();
  wait_for_previous_kernel();
  float sums[8] = {};
#pragma unroll 8
  for (std::uint32_t j = 0; j < p.top_k; ++j) {
    const std::uint64_t pair = row * p.top_k + j;
    if (static_cast<std::uint32_t>(p.ids[pair]) >= p.experts) continue;
    const uint4 v = p.parts[pair * p.part_units + unit];
    const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      sums[2 * w] += __uint_as_float(words[w] << 16);
      sums[2 * w + 1] += __uint_as_float(words[w] & 0xFFFF0000u);
    }
  }
  const uint4 out{pack_bf16(sums[0], sums[1]), pack_bf16(sums[2], sums[3]),
                  pack_bf16(sums[4], sums[5]), pack_bf16(sums[6], sums[7])};
  std::uint16_t* const y = p.y + row * p.ldy + unit * 8;
  if (p.y_wide && unit * 8 + 8 <= p.k) return store_global(y, out);
  const std::uint32_t words[4] = {out.x, out.y, out.z, out.w};
#pragma unroll
  for (std::uint32_t c = 0; c < 8; ++c)
    if (unit * 8 + c < p.k) y[c] = static_cast<std::uint16_t>(words[c / 2] >> c % 2 * 16);
}

}  // namespace snug::gemm
