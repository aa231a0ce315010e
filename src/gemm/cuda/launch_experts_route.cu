// Launches the kernels before and after the products of experts.
#include <algorithm>

#include "gemm/cuda/experts_host.h"
#include "gemm/cuda/experts_route.cuh"

namespace snug::gemm {

cudaError_t launch_route_experts(const Device& device, const RouteParams& p, bool many_rows,
                                 cudaStream_t stream) noexcept {
  if (many_rows)
    return launch_sm90(device, route_many_experts,
                       {kRouteTeam, kRouteThreads, 0, stream, cuda::Start::kEarly, kRouteTeam}, p);
  const std::uint64_t units = std::uint64_t{p.m} * p.x_units;
  const std::uint64_t blocks = std::min<std::uint64_t>(
      (units + kRouteThreads - 1) / kRouteThreads, 2 * static_cast<std::uint64_t>(device.num_sms));
  return launch_sm90(device, route_experts,
                     {1 + blocks, kRouteThreads, 0, stream, cuda::Start::kEarly}, p);
}

cudaError_t launch_sum_experts(const Device& device, const SumParams& p,
                               cudaStream_t stream) noexcept {
  const std::uint64_t threads = std::uint64_t{p.m} * ((p.k + 7) / 8);
  return launch_sm90(device, sum_experts,
                     {(threads + 255) / 256, 256, 0, stream, cuda::Start::kEarly}, p);
}

cudaError_t launch_ids_of_counts(const std::int32_t* counts, std::uint32_t each, std::uint32_t m,
                                 std::int32_t* ids, cudaStream_t stream) noexcept {
  return cuda::launch_as_is(ids_of_counts,
                            {(std::uint64_t{m} + 255) / 256, 256, 0, stream, cuda::Start::kEarly},
                            counts, each, m, ids);
}

}  // namespace snug::gemm
