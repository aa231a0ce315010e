// gpu_link/cuda/enter_thread.h - the threads of the link and of GPU buffers.
#pragma once
#include <cuda_runtime_api.h>

namespace snug::cuda {

// To be called first by such a thread. It allocates and queries events, which must not break a
// graph capture that the user runs on another thread. The device comes first: what is called before
// would begin to use device 0, which takes half a gigabyte there.
inline cudaError_t enter_thread(int device) {
  if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess) return error;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  return cudaThreadExchangeStreamCaptureMode(&mode);
}

}  // namespace snug::cuda
