// gpu/ptx_barrier.cuh - mbarriers in shared memory, and the order of kernels on a stream.
#pragma once
#include "gpu/ptx_memory.cuh"

namespace snug::cuda {

// By one thread; needs a fence before the copy engine or other blocks of a cluster use it.
__device__ __forceinline__ void barrier_init(std::uint32_t barrier, unsigned count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile("{\n\t.reg .b64 t;\n\tmbarrier.arrive.shared.b64 t, [%0];\n\t}" ::"r"(barrier)
               : "memory");
}

// Whether barrier_wait would return at once.
__device__ __forceinline__ bool barrier_test(std::uint32_t barrier, unsigned parity) {
  unsigned done;
  asm volatile(
      "{\n\t.reg .pred p;\n\t"
      "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n\t"
      "selp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, unsigned parity) {
#if __CUDA_ARCH__ >= 900
  unsigned done = 0;
  while (done == 0)
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
#else
  while (!barrier_test(barrier, parity)) {
  }
#endif
}

// Around the bulk loads of num_bytes that complete one phase, by the thread that counts for them:
// it arrives before them and the copies complete the phase; before sm_90 it arrives after them.
__device__ __forceinline__ void barrier_expect(std::uint32_t barrier, std::uint32_t num_bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(num_bytes)
               : "memory");
#endif
}
__device__ __forceinline__ void barrier_loads_issued(std::uint32_t barrier) {
#if __CUDA_ARCH__ < 900
  barrier_arrive(barrier);
#endif
}

// ---- programmatic dependent launch (gpu/launch.h): a kernel starts before its predecessor ends
// ----

// By all threads before they touch what earlier kernels of the stream wrote.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel may start when all thread blocks of this one have called this or ended.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace snug::cuda
