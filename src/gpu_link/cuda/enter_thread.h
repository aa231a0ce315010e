// gpu_link/cuda/enter_thread.h - threads of ours beside those of the user.
#pragma once
#include <cuda_runtime_api.h>

namespace snug::cuda {

// What a thread of ours begins with. It may allocate and query events, which must not break
// the capture of a graph that a user has under way on another thread.
inline cudaError_t enter_thread(int device) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  const cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode);
  return error == cudaSuccess ? cudaSetDevice(device) : error;
}

}  // namespace snug::cuda
