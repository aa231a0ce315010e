// The codec workers: a kernel that lives beside a kernel of NCCL, takes orders from host memory and
// ends when that kernel has ended. See nccl/worker_queue.h.
#include "gpu/launch.h"
#include "nccl/cuda/worker_codec.cuh"

namespace snug::nccl {
namespace {

constexpr unsigned kThreads = kWorkerWarps * kWarpSize;
constexpr std::uint32_t kSharedBytes = kRowBytes + kWorkerWarps * sizeof(WarpRoom);

__global__ void __launch_bounds__(kThreads, 2)
    workers_kernel(WorkerBoard* board, GpuFloor* floor, WarpScratch* scratch, unsigned launch_idx,
                   bool may_linger) {
  extern __shared__ __align__(1024) u8 shared[];
  __shared__ bool dispatches;
  CrewLaunch& launch = floor->queue.launches[launch_idx];
  const u32 uniform = kept_shared_address(shared);
  if (threadIdx.x == 0) dispatches = arrive<GpuTeam>(launch);
  if (warp_id() == 0) fill_uniform_row(uniform);
  __syncthreads();
  const u32 num_workers = gridDim.x * kWorkerWarps - 1;
  if (dispatches && warp_id() == 0) {
    Dispatcher<GpuTeam> dispatcher(*board, floor->queue, launch, num_workers, gridDim.x);
    if (dispatcher.open(may_linger))
      dispatcher.serve([&](const Order& order, u32 box) {
        floor->states[box] = {};
        for (u32 i = 0; i < order.num_blocks; ++i) floor->sizes[box][i] = 0;
      });
    return;
  }
  const Worker worker{board, floor, reinterpret_cast<WarpRoom*>(shared + kRowBytes) + warp_id(),
                      scratch + blockIdx.x * kWorkerWarps + warp_id(), uniform};
  bool works = lane_id() != 0 || is_opened<GpuTeam>(launch);
  works = GpuTeam::first(works ? 1u : 0u) != 0;
  while (works) {
    Ticket ticket{};
    if (lane_id() == 0) ticket = next_ticket<GpuTeam>(floor->queue);
    ticket = {GpuTeam::first(ticket.box), GpuTeam::first(ticket.block)};
    if (ticket.is_end()) break;
    work_on(worker, ticket.box, ticket.block);
  }
  if (lane_id() == 0) leave<GpuTeam>(floor->queue, launch, num_workers);
}

__global__ void mark_kernel(GpuFloor* floor) { mark_end<GpuTeam>(floor->queue); }
__global__ void clear_kernel(GpuFloor* floor) { clear_floor(floor->queue); }

}  // namespace

std::size_t gpu_floor_bytes() { return sizeof(GpuFloor); }
std::size_t worker_scratch_bytes() { return kWorkerWarps * sizeof(WarpScratch); }

cudaError_t prepare_workers(GpuFloor* floor, cudaStream_t stream) {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, mark_kernel);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, workers_kernel);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(workers_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(kSharedBytes));
  if (error != cudaSuccess) return error;
  clear_kernel<<<1, 1, 0, stream>>>(floor);
  return cudaGetLastError();
}

// Launches beside the program's own work say what became of them alone: cudaGetLastError() would
// take an error away that the program's calls left behind.
cudaError_t launch_workers(WorkerBoard* board, GpuFloor* floor, std::byte* scratch, int num_sms,
                           unsigned launch_idx, bool may_linger, cudaStream_t stream) {
  return launch_as_is(workers_kernel,
                      {.num_ctas = static_cast<std::uint64_t>(num_sms),
                       .num_threads = kThreads,
                       .smem_bytes = kSharedBytes,
                       .stream = stream},
                      board, floor, reinterpret_cast<WarpScratch*>(scratch), launch_idx,
                      may_linger);
}

cudaError_t launch_mark(GpuFloor* floor, cudaStream_t stream) {
  return launch_as_is(mark_kernel,
                      {.num_ctas = 1, .num_threads = 1, .smem_bytes = 0, .stream = stream}, floor);
}

}  // namespace snug::nccl
