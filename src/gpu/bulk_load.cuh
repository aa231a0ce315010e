// gpu/bulk_load.cuh - one load of the bulk copy engine (sm_90 on), for blocks of tensors
// and tiles of weights alike.
#pragma once
#include <cstdint>

namespace snug::cuda {

// One copy by one thread to shared memory; addresses and sizes are multiples of 16. kOnce: nobody
// reads these bytes again, the cache may drop them. Older GPUs copy with loads and stores, and the
// barrier is not told.
template <bool kOnce = false>
__device__ __forceinline__ void bulk_load(std::uint32_t shared, const void* global,
                                          std::uint32_t num_bytes, std::uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  if constexpr (kOnce) {
    std::uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(shared),
        "l"(global), "r"(num_bytes), "r"(barrier), "l"(policy)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared),
        "l"(global), "r"(num_bytes), "r"(barrier)
        : "memory");
  }
#else
  auto* to = static_cast<uint4*>(__cvta_shared_to_generic(shared));
  for (std::uint32_t i = 0; i < num_bytes / 16; ++i) to[i] = static_cast<const uint4*>(global)[i];
#endif
}

}  // namespace snug::cuda
