// gpu/ptx_barrier.cuh - mbarriers in shared memory, and the order of kernels on a stream.
#pragma once
#include "gpu/ptx_memory.cuh"

namespace snug::cuda {

// By one thread; needs a fence before the copy engine or other blocks of a cluster use it.
__device__ __forceinline__ void barrier_init(std::uint32_t barrier, unsigned count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// Makes initialised barriers visible to the copy engine and to the cluster; sm_90 on.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile("{\n\t.reg .b64 t;\n\tmbarrier.arrive.shared.b64 t, [%0];\n\t}" ::"r"(barrier)
               : "memory");
}

// Without a branch around it.
__device__ __forceinline__ void barrier_arrive_if(bool condition, std::uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.u32 p, %1, 0;\n"
      "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n"
      "}" ::"r"(barrier),
      "r"(static_cast<std::uint32_t>(condition))
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
// The same in one piece, so that no branch around it is left in the code, and with a suspend hint
// of 10 ms; sm_90 on. Matrix kernels are smaller with it, the codec's grow by up to 170
// instructions.
__device__ __forceinline__ void barrier_wait_hinted(std::uint32_t barrier, std::uint32_t parity,
                                                    bool condition = true) {
  asm volatile(
      "{\n"
      ".reg .pred done, skip;\n"
      "setp.eq.u32 skip, %2, 0;\n"
      "@skip bra over;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 0x989680;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}" ::"r"(barrier),
      "r"(parity), "r"(static_cast<std::uint32_t>(condition))
      : "memory");
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
