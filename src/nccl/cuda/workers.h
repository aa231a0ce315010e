// nccl/cuda/workers.h - the kernels of the codec workers.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "nccl/worker_queue.h"

namespace snug::nccl {

inline constexpr unsigned kWorkerWarps = 8;  // of a thread block
inline constexpr std::uint32_t kWorkerBlockBytes = 16 << 10;

struct GpuFloor;

// Bytes of a GpuFloor, and of the scratch memory of each thread block.
std::size_t gpu_floor_bytes();
std::size_t worker_scratch_bytes();

// Loads the code of all kernels, and puts zeroed device memory in order.
cudaError_t prepare_workers(GpuFloor* floor, cudaStream_t stream);
// `launch_idx` names the CrewLaunch; crews in a graph do not linger, because the graph waits for
// them.
cudaError_t launch_workers(WorkerBoard* board, GpuFloor* floor, std::byte* scratch, int num_sms,
                           unsigned launch_idx, bool may_linger, cudaStream_t stream);
cudaError_t launch_mark(GpuFloor* floor, cudaStream_t stream);

}  // namespace snug::nccl
