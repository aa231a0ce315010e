// gpu_link/cuda/enter_thread.h - the threads of the link and of GPU buffers.
#pragma once
#include <cuda_runtime_api.h>

namespace snug::cuda {

// To be called first by such a thread. It allocates and queries events, which must not break a
// graph capture that the user runs on another thread.
inline cudaError_t enter_thread(int device) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  const cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode);
  return error == cudaSuccess ? cudaSetDevice(device) : error;
}

}  // namespace snug::cuda
