// nccl/cuda/gpu_team.cuh - the Team of worker_queue.h on a GPU: a warp.
#pragma once
#include "gpu/warp.cuh"
#include "nccl/worker_queue.h"

namespace snug::nccl {

struct GpuTeam {
  static constexpr std::uint32_t kSize = cuda::kWarpSize;

  __device__ static std::uint32_t lane() { return cuda::lane_id(); }
  // The first and last lane's value.
  __device__ static std::uint32_t first(std::uint32_t v) { return __shfl_sync(~0u, v, 0); }
  __device__ static std::uint32_t last(std::uint32_t v) { return __shfl_sync(~0u, v, 31); }
  // How many lanes have it set, and how many of them in a row from the first one on.
  __device__ static std::uint32_t count(bool v) {
    return static_cast<std::uint32_t>(__popc(__ballot_sync(~0u, v)));
  }
  __device__ static std::uint32_t leading(bool v) {
    const unsigned missing = ~__ballot_sync(~0u, v);
    return missing == 0 ? kSize : static_cast<std::uint32_t>(__ffs(static_cast<int>(missing)) - 1);
  }
  __device__ static std::uint32_t sum_before(std::uint32_t v) {
    return cuda::warp_inclusive_sum(v) - v;
  }

  // Polling with acquire would empty the L1 cache of the warps beside.
  __device__ static std::uint64_t peek_host(const std::uint64_t* p) {
    std::uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
  }
  __device__ static void acquire_host(const std::uint64_t*) { __threadfence_system(); }
  __device__ static std::uint64_t peek(const std::uint64_t* p) {
    std::uint64_t v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
  }
  __device__ static std::uint32_t load_host(const std::uint32_t* p) {
    std::uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
  }
  __device__ static std::uint64_t load_host(const std::uint64_t* p) {
    std::uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
  }
  __device__ static void store_host(std::uint32_t* p, std::uint32_t v) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
  }
  __device__ static void store_host(std::uint64_t* p, std::uint64_t v) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
  }
  __device__ static Order load_order(const Order* p) {
    union {
      uint4 vecs[2];
      Order order;
    } v;
    v.vecs[0] = __ldcv(reinterpret_cast<const uint4*>(p));
    v.vecs[1] = __ldcv(reinterpret_cast<const uint4*>(p) + 1);
    return v.order;
  }

  __device__ static std::uint32_t load(const std::uint32_t* p) {
    std::uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
  }
  __device__ static std::uint64_t load(const std::uint64_t* p) {
    std::uint64_t v;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
  }
  __device__ static void store(std::uint32_t* p, std::uint32_t v) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
  }
  __device__ static void store(std::uint64_t* p, std::uint64_t v) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
  }
  // A release is a fence, and an order has many tickets.
  __device__ static void store_after_fence(std::uint64_t* p, std::uint64_t v) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
  }
  __device__ static std::uint32_t add(std::uint32_t* p, std::uint32_t v) {
    std::uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(p), "r"(v)
                 : "memory");
    return before;
  }
  __device__ static std::uint32_t exchange(std::uint32_t* p, std::uint32_t v) {
    std::uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.exch.b32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(p), "r"(v)
                 : "memory");
    return before;
  }
  __device__ static void fence() { __threadfence(); }
  __device__ static void pause() { __nanosleep(200); }
  __device__ static std::uint64_t now_ns() {
    std::uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
  }
};

}  // namespace snug::nccl
