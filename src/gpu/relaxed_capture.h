// gpu/relaxed_capture.h - calls beside a graph that somebody captures.
#pragma once
#include <cuda_runtime_api.h>

namespace snug::cuda {

// In its scope this thread may allocate and query events while it, or another thread, captures a
// graph: by default such calls fail and break the capture. What is called must not belong to the
// graph. A thread that has set no device begins to use device 0 here: set it before.
class RelaxedCapture {
 public:
  RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace snug::cuda
