// gpu/prepared_launch.cuh - launches of kernels that start while the one before them on
// the stream still runs, and wait for its end when they need it.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace snug::cuda {

// By all threads, before they touch what the kernel before wrote: they may have started
// before its end. What was on the stream before it has ended then.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The same where that is prepare_kernel (codec/cuda/frame/workspace.cuh).
__device__ __forceinline__ void wait_for_preparation() { wait_for_kernel_before(); }
// By the kernel before: the next one may start to start.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// `early`: the kernel may start, where the hardware can, when all thread blocks of the one
// before have called let_next_kernel_start().
template <class... Params, class... Args>
cudaError_t launch_kernel(bool early, void (*kernel)(Params...), std::uint64_t num_ctas,
                          unsigned num_threads, std::uint32_t smem_bytes, cudaStream_t stream,
                          const Args&... args) {
  int device = 0, major = 0, most_smem = 0;
  cudaFuncAttributes attributes;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
  // Always the same limit: other threads may be launching with other sizes.
  if (error == cudaSuccess && smem_bytes + attributes.sharedSizeBytes > 48 * 1024) {
    error = cudaDeviceGetAttribute(&most_smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error == cudaSuccess)
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   most_smem - static_cast<int>(attributes.sharedSizeBytes));
  }
  if (error != cudaSuccess) return error;
  // Code translated from that of older GPUs does not wait.
  const bool waits = major >= 9 && (attributes.ptxVersion == 0 || attributes.ptxVersion >= 90);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_ctas));
  config.blockDim = dim3(num_threads);
  config.dynamicSmemBytes = smem_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early && waits ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

// Starting takes a while: that runs beside the preparation.
template <class... Params, class... Args>
cudaError_t launch_prepared(void (*kernel)(Params...), std::uint64_t num_ctas, unsigned num_threads,
                            std::uint32_t smem_bytes, cudaStream_t stream, const Args&... args) {
  return launch_kernel(true, kernel, num_ctas, num_threads, smem_bytes, stream, args...);
}

// Shared memory that a thread block of `kernel` can have for stages.
struct StageRoom {
  std::uint32_t num_bytes = 0;

  unsigned stages_of(std::uint32_t stage_bytes, unsigned most) const {
    const unsigned fit = num_bytes / stage_bytes;
    return fit == 0 ? 1 : fit < most ? fit : most;
  }
};

template <class Kernel>
cudaError_t find_stage_room(Kernel kernel, StageRoom& room) {
  int device = 0, most = 0;
  cudaFuncAttributes attributes;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
  if (error != cudaSuccess) return error;
  // The start of dynamic shared memory may be moved up to a multiple of 1024.
  room.num_bytes = static_cast<std::uint32_t>(most) -
                   static_cast<std::uint32_t>(attributes.sharedSizeBytes) - 1024;
  return cudaSuccess;
}

// Of a thread block that has a multiprocessor to itself, how many warps share its blocks evenly.
inline unsigned warps_that_share(std::uint64_t num_blocks, unsigned most) {
  const std::uint64_t rounds = (num_blocks + most - 1) / most;
  return rounds == 0 ? 1 : static_cast<unsigned>((num_blocks + rounds - 1) / rounds);
}

}  // namespace snug::cuda
