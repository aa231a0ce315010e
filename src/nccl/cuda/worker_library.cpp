// libnccl-snug-workers.so: launches the codec workers around NCCL's kernels. Everything here runs
// on the thread that launches them.
#include "nccl/worker_library.h"

#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "gpu/relaxed_capture.h"
#include "nccl/cuda/workers.h"

namespace snug::nccl {
namespace {

using cuda::RelaxedCapture;

struct Launcher {
  std::mutex mutex;
  int device = -1, num_sms = 0;
  WorkerBoard* board = nullptr;
  GpuFloor* floor = nullptr;
  std::byte* scratch = nullptr;
  cudaStream_t stream{}, capture_stream{};
  cudaEvent_t before{}, capture_before{}, joined{};
  unsigned num_captured = 0;  // launches in graphs
};
Launcher launcher;

const char* reason_of(cudaError_t error) {
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

cudaError_t make_streams() {
  int low = 0, high = 0;
  cudaError_t error = cudaDeviceGetStreamPriorityRange(&low, &high);
  for (cudaStream_t* stream : {&launcher.stream, &launcher.capture_stream})
    if (error == cudaSuccess)
      error = cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, high);
  for (cudaEvent_t* event : {&launcher.before, &launcher.capture_before, &launcher.joined})
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
  return error;
}

// What open() took before it failed. The runtime forgets the error, which has been reported.
void release(void* host, void* frames, void* floor, void* scratch) {
  for (void* memory : {host, frames}) (void)cudaFreeHost(memory);
  for (void* memory : {floor, scratch}) (void)cudaFree(memory);
  for (cudaStream_t* stream : {&launcher.stream, &launcher.capture_stream})
    if (*stream != nullptr) (void)cudaStreamDestroy(std::exchange(*stream, nullptr));
  for (cudaEvent_t* event : {&launcher.before, &launcher.capture_before, &launcher.joined})
    if (*event != nullptr) (void)cudaEventDestroy(std::exchange(*event, nullptr));
  (void)cudaGetLastError();
}

const char* open(int num_sms, std::size_t buffer_bytes, WorkerBoard** board, std::byte** buffers) {
  const char* blocking = std::getenv("CUDA_LAUNCH_BLOCKING");
  if (blocking != nullptr && std::strcmp(blocking, "0") != 0 && *blocking != '\0')
    return "CUDA_LAUNCH_BLOCKING is set";
  const RelaxedCapture relaxed;
  const std::lock_guard lock(launcher.mutex);
  int major = 0, reaches_host = 0;
  cudaError_t error = cudaGetDevice(&launcher.device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, launcher.device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&reaches_host, cudaDevAttrCanUseHostPointerForRegisteredMem,
                                   launcher.device);
  if (error == cudaSuccess && (major < 8 || reaches_host == 0))
    return "this GPU cannot use host memory at its own address, or is older than Ampere";
  launcher.num_sms = num_sms;
  void *host = nullptr, *frames = nullptr, *floor = nullptr, *scratch = nullptr;
  constexpr unsigned kFlags = cudaHostAllocMapped | cudaHostAllocPortable;
  if (error == cudaSuccess) error = make_streams();
  if (error == cudaSuccess) error = cudaHostAlloc(&host, sizeof(WorkerBoard), kFlags);
  if (error == cudaSuccess) error = cudaHostAlloc(&frames, buffer_bytes, kFlags);
  if (error == cudaSuccess) error = cudaMalloc(&floor, gpu_floor_bytes());
  if (error == cudaSuccess)
    error = cudaMalloc(&scratch, static_cast<std::size_t>(num_sms) * worker_scratch_bytes());
  if (error == cudaSuccess) error = cudaMemsetAsync(floor, 0, gpu_floor_bytes(), launcher.stream);
  if (error == cudaSuccess) error = prepare_workers(static_cast<GpuFloor*>(floor), launcher.stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(launcher.stream);
  if (error != cudaSuccess) {
    release(host, frames, floor, scratch);
    return reason_of(error);
  }
  std::memset(host, 0, sizeof(WorkerBoard));
  launcher.board = *board = static_cast<WorkerBoard*>(host);
  launcher.board->idle_ns = kIdleNs;
  *buffers = static_cast<std::byte*>(frames);
  launcher.floor = static_cast<GpuFloor*>(floor);
  launcher.scratch = static_cast<std::byte*>(scratch);
  return nullptr;
}

bool is_same_device() {
  int device = -1;
  return cudaGetDevice(&device) == cudaSuccess && device == launcher.device;
}

bool is_mapped(void* p) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, p) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return attributes.type == cudaMemoryTypeHost && attributes.devicePointer == p;
}

bool can_reach(void* data, std::size_t num_bytes) {
  const RelaxedCapture relaxed;
  return num_bytes > 0 && is_mapped(data) &&
         is_mapped(static_cast<std::byte*>(data) + num_bytes - 1);
}

struct Capture {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
};
Capture capture_of(cudaStream_t stream) {
  Capture capture;
  if (cudaStreamGetCaptureInfo(stream, &capture.status, &capture.id) != cudaSuccess)
    capture.status = cudaStreamCaptureStatusInvalidated;
  return capture;
}

// What a capture forks it must join.
void join_capture(cudaStream_t stream) {
  if (cudaEventRecord(launcher.joined, launcher.capture_stream) == cudaSuccess)
    (void)cudaStreamWaitEvent(stream, launcher.joined, 0);
}

// The side stream joins the capture of `stream`. A stream can take part in one capture only.
bool launch_captured(cudaStream_t stream, const Capture& capture) {
  const Capture side = capture_of(launcher.capture_stream);
  if (side.status != cudaStreamCaptureStatusNone && side.id != capture.id) return false;
  if (launcher.num_captured + 1 >= kMaxLaunches) return false;
  if (cudaEventRecord(launcher.capture_before, stream) != cudaSuccess ||
      cudaStreamWaitEvent(launcher.capture_stream, launcher.capture_before, 0) != cudaSuccess)
    return false;
  const bool is_launched =
      launch_workers(launcher.board, launcher.floor, launcher.scratch, launcher.num_sms,
                     ++launcher.num_captured, false, launcher.capture_stream) == cudaSuccess;
  if (!is_launched) join_capture(stream);
  return is_launched;
}

bool launch_now(cudaStream_t stream) {
  return cudaEventRecord(launcher.before, stream) == cudaSuccess &&
         cudaStreamWaitEvent(launcher.stream, launcher.before, 0) == cudaSuccess &&
         launch_workers(launcher.board, launcher.floor, launcher.scratch, launcher.num_sms, 0, true,
                        launcher.stream) == cudaSuccess;
}

bool before_kernel(void* stream_pointer) {
  auto* const stream = static_cast<cudaStream_t>(stream_pointer);
  const std::lock_guard lock(launcher.mutex);
  if (!is_same_device()) return false;
  const Capture capture = capture_of(stream);
  bool is_launched = false;
  if (capture.status == cudaStreamCaptureStatusActive)
    is_launched = launch_captured(stream, capture);
  else if (capture.status == cudaStreamCaptureStatusNone)
    is_launched = launch_now(stream);
  if (!is_launched) (void)cudaGetLastError();  // not the program's
  return is_launched;
}

void after_kernel(void* stream_pointer) {
  auto* const stream = static_cast<cudaStream_t>(stream_pointer);
  const std::lock_guard lock(launcher.mutex);
  if (launch_mark(launcher.floor, stream) != cudaSuccess)
    (void)cudaGetLastError();  // not the program's
  if (capture_of(stream).status == cudaStreamCaptureStatusActive) join_capture(stream);
}

}  // namespace
}  // namespace snug::nccl

extern "C" __attribute__((visibility("default"))) const snug::nccl::WorkerLibrary snugNcclWorkers;
const snug::nccl::WorkerLibrary snugNcclWorkers = {
    snug::nccl::kWorkerLibraryVersion, snug::nccl::open,
    snug::nccl::is_same_device,        snug::nccl::can_reach,
    snug::nccl::before_kernel,         snug::nccl::after_kernel};
