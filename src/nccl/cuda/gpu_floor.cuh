// nccl/cuda/gpu_floor.cuh - device memory that all workers share.
#pragma once
#include "codec/cuda/frame/device_frame.cuh"
#include "nccl/worker_queue.h"

namespace snug::nccl {

struct GpuFloor {
  WorkerFloor queue;
  // Of each order; zeroed when it is taken.
  cuda::ItemState states[kOrderBoxes];
  unsigned long long sizes[kOrderBoxes][kMaxOrderBlocks];  // see codec/cuda/frame/look_back.cuh
  cuda::DeviceResult results[kOrderBoxes];
};

}  // namespace snug::nccl
