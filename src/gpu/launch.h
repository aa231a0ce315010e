// gpu/launch.h - the launch of a kernel, with programmatic dependent launch and clusters.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace snug::cuda {

inline cudaError_t device_attribute(cudaDeviceAttr attribute, int& value) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  return error == cudaSuccess ? cudaDeviceGetAttribute(&value, attribute, device) : error;
}

// kEarly: the kernel may start, where the hardware can, when all thread blocks of the previous one
// have called let_next_kernel_start(); it calls wait_for_previous_kernel() (gpu/ptx_barrier.cuh).
enum class Start { kInOrder, kEarly };

struct Launch {
  std::uint64_t num_ctas;
  unsigned num_threads;
  std::size_t smem_bytes;  // dynamic
  cudaStream_t stream;
  Start start = Start::kInOrder;
  unsigned cluster_ctas = 1;
};

// Beyond this much shared memory a kernel needs raise_smem_limit().
inline constexpr std::size_t kUsualSmemBytes = 48 * 1024;

// Always to the same limit, all that a thread block can have: other threads may be launching the
// kernel with other sizes.
template <class Kernel>
cudaError_t raise_smem_limit(Kernel kernel, std::size_t max_smem, std::size_t static_smem = 0) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(max_smem - static_smem));
}

// As asked: the caller knows that the shared memory is allowed and that an early kernel waits.
template <class... Params, class... Args>
cudaError_t launch_as_is(void (*kernel)(Params...), const Launch& launch, const Args&... args) {
  cudaLaunchAttribute attributes[2] = {};
  unsigned num_attributes = 0;
  if (launch.start == Start::kEarly) {
    cudaLaunchAttribute& early = attributes[num_attributes++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  if (launch.cluster_ctas != 1) {
    cudaLaunchAttribute& cluster = attributes[num_attributes++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {launch.cluster_ctas, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(launch.num_ctas));
  config.blockDim = dim3(launch.num_threads);
  config.dynamicSmemBytes = launch.smem_bytes;
  config.stream = launch.stream;
  config.attrs = attributes;
  config.numAttrs = num_attributes;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

// On any GPU: raises the limit of shared memory where needed, and starts early where that works.
template <class... Params, class... Args>
cudaError_t launch_kernel(void (*kernel)(Params...), Launch launch, const Args&... args) {
  int major = 0, max_smem = 0;
  cudaFuncAttributes attributes;
  cudaError_t error = device_attribute(cudaDevAttrComputeCapabilityMajor, major);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
  if (error == cudaSuccess && launch.smem_bytes + attributes.sharedSizeBytes > kUsualSmemBytes) {
    error = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, max_smem);
    if (error == cudaSuccess)
      error =
          raise_smem_limit(kernel, static_cast<std::size_t>(max_smem), attributes.sharedSizeBytes);
  }
  if (error != cudaSuccess) return error;
  // Code translated from PTX of older GPUs does not wait.
  if (major < 9 || (attributes.ptxVersion != 0 && attributes.ptxVersion < 90))
    launch.start = Start::kInOrder;
  return launch_as_is(kernel, launch, args...);
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
  int most = 0;
  cudaFuncAttributes attributes;
  cudaError_t error = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, most);
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
