// gemm/cuda/experts_sort.cuh - sorts pairs (row, expert) by expert, within one thread block.
#pragma once
#include "gemm/cuda/experts_params.h"
#include "gpu/warp.cuh"

namespace snug::gemm {

// Up to here, every thread block may sort for itself.
inline constexpr std::uint32_t kMaxLocalPairs = 128;

// Shared memory that sorting needs.
struct SortScratch {
  std::uint32_t counts[kMaxExperts];
  uint3 warp_sums[32];
  std::uint32_t first_bad, num_active;
  alignas(16) std::int32_t ids[kMaxLocalPairs];
};

// Sums over this thread and those below it, of all threads of the block.
template <int kThreads>
__device__ __forceinline__ uint3 block_inclusive_sum(uint3 v, uint3* warp_sums) {
  using namespace cuda;
  v = {warp_inclusive_sum(v.x), warp_inclusive_sum(v.y), warp_inclusive_sum(v.z)};
  if (lane_id() == 31) warp_sums[warp_id()] = v;
  __syncthreads();
  const uint3 mine = lane_id() < kThreads / 32 ? warp_sums[lane_id()] : uint3{0, 0, 0};
  const bool below = lane_id() < warp_id();
  return {v.x + __reduce_add_sync(kAllLanes, below ? mine.x : 0),
          v.y + __reduce_add_sync(kAllLanes, below ? mine.y : 0),
          v.z + __reduce_add_sync(kAllLanes, below ? mine.z : 0)};
}

// Calls f for this thread's share of the pairs. Loads several ids before the first is used.
template <int kThreads, class F>
__device__ __forceinline__ void for_each_id(const std::int32_t* ids, std::uint32_t num_pairs,
                                            const F& f) {
  constexpr std::uint32_t kAtOnce = 8;
  for (std::uint32_t first = threadIdx.x; first < num_pairs; first += kAtOnce * kThreads) {
    std::int32_t some[kAtOnce];
#pragma unroll
    for (std::uint32_t i = 0; i < kAtOnce; ++i)
      if (first + i * kThreads < num_pairs) some[i] = ids[first + i * kThreads];
#pragma unroll
    for (std::uint32_t i = 0; i < kAtOnce; ++i)
      if (first + i * kThreads < num_pairs) f(first + i * kThreads, some[i]);
  }
}

// Of the pairs before this one, those of the same expert.
__device__ __forceinline__ std::uint32_t rank_of(const std::int32_t* ids, std::uint32_t pair) {
  const std::int32_t id = ids[pair];
  std::uint32_t rank = 0;
#pragma unroll 4
  for (std::uint32_t i = 0; i < pair; i += 4) {
    const int4 v = *reinterpret_cast<const int4*>(ids + i);
    rank += (v.x == id) + (v.y == id && i + 1 < pair) + (v.z == id && i + 2 < pair) +
            (v.w == id && i + 3 < pair);
  }
  return rank;
}

// first_bad: the first pair whose id is out of range, or ~0.
__device__ __forceinline__ void report_routing(DeviceResult* result, std::uint32_t first_bad,
                                               const RouteShape& shape) {
  const bool good = first_bad == ~0u;
  if (result != nullptr)
    *result = {0, static_cast<std::uint32_t>(good ? Code::kOk : Code::kUsage), 0,
               good ? kNowhere : first_bad / shape.top_k};
}

// Lists the experts that have rows, and one entry behind them with the sums, unless `active` is
// null. rows_of(expert) is called once for each; set_start(expert, row), with the row that its rows
// begin at, for those that have some.
template <int kThreads, class RowsOf, class SetStart>
__device__ __forceinline__ void list_experts(const RouteShape& shape, SortScratch& scratch,
                                             ActiveExpert* active, const RowsOf& rows_of,
                                             const SetStart& set_start) {
  constexpr std::uint32_t kEach = (kMaxExperts + kThreads - 1) / kThreads;
  const std::uint32_t thread = threadIdx.x;
  std::uint32_t rows[kEach];
  uint3 sum{0, 0, 0};
#pragma unroll
  for (std::uint32_t i = 0; i < kEach; ++i) {
    const std::uint32_t expert = thread * kEach + i;
    rows[i] = expert < shape.experts ? rows_of(expert) : 0;
    sum.x += rows[i];
    sum.y += (rows[i] + shape.chunk_rows - 1) / shape.chunk_rows;
    sum.z += rows[i] != 0;
  }
  const uint3 end = block_inclusive_sum<kThreads>(sum, scratch.warp_sums);
  uint3 at{end.x - sum.x, end.y - sum.y, end.z - sum.z};
#pragma unroll
  for (std::uint32_t i = 0; i < kEach; ++i) {
    const std::uint32_t expert = thread * kEach + i;
    if (rows[i] == 0) continue;
    if (active != nullptr) active[at.z++] = {expert, at.x, rows[i], at.y};
    set_start(expert, at.x);
    at.x += rows[i];
    at.y += (rows[i] + shape.chunk_rows - 1) / shape.chunk_rows;
  }
  if (thread != kThreads - 1) return;
  if (active != nullptr) active[end.z] = {0, end.x, 0, end.y};
  scratch.num_active = end.z;
}

// Counts the pairs of each expert, of which `ids` are the first `num_pairs` from `first` on. Begins
// with a barrier and needs one after it.
template <int kThreads, class F>
__device__ __forceinline__ void count_pairs(const std::int32_t* ids, std::uint32_t first,
                                            std::uint32_t num_pairs, const RouteShape& shape,
                                            SortScratch& scratch, const F& each) {
  for (std::uint32_t i = threadIdx.x; i < shape.experts; i += kThreads) scratch.counts[i] = 0;
  if (threadIdx.x == 0) scratch.first_bad = ~0u;
  __syncthreads();
  for_each_id<kThreads>(ids + first, num_pairs, [&](std::uint32_t i, std::int32_t id) {
    each(i, id);
    if (static_cast<std::uint32_t>(id) < shape.experts)
      atomicAdd(scratch.counts + id, 1u);
    else if (id != -1)
      atomicMin(&scratch.first_bad, first + i);
  });
}

// A counting sort; returns the number of experts that have rows. `active` and `pairs` may be shared
// memory. Ends with a barrier. kStable: the pairs of an expert stay in order, so that all thread
// blocks that sort get the same list. Else their order varies from run to run; no result depends on
// it.
template <int kThreads, bool kStable>
__device__ __forceinline__ std::uint32_t sort_pairs(const std::int32_t* ids,
                                                    const RouteShape& shape, SortScratch& scratch,
                                                    ActiveExpert* active, std::uint32_t* pairs,
                                                    DeviceResult* result) {
  std::uint32_t* const counts = scratch.counts;
  count_pairs<kThreads>(ids, 0, shape.num_pairs, shape, scratch,
                        [&](std::uint32_t i, std::int32_t id) {
                          if (kStable) scratch.ids[i] = id;
                        });
  __syncthreads();
  list_experts<kThreads>(
      shape, scratch, active, [&](std::uint32_t expert) { return counts[expert]; },
      [&](std::uint32_t expert, std::uint32_t row) { counts[expert] = row; });
  if (threadIdx.x == 0) report_routing(result, scratch.first_bad, shape);
  __syncthreads();
  for_each_id<kThreads>(
      kStable ? scratch.ids : ids, shape.num_pairs, [&](std::uint32_t i, std::int32_t id) {
        if (static_cast<std::uint32_t>(id) >= shape.experts) return;
        pairs[kStable ? counts[id] + rank_of(scratch.ids, i) : atomicAdd(counts + id, 1u)] = i;
      });
  __syncthreads();
  return scratch.num_active;
}

}  // namespace snug::gemm
