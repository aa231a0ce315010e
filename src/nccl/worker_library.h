// nccl/worker_library.h - what the plugin calls in libnccl-snug-workers.so, the only part of it
// that uses CUDA. Only the profiler's functions call it, on the thread that launches NCCL's
// kernels.
#pragma once
#include <cstddef>
#include <cstdint>

#include "nccl/worker_queue.h"

namespace snug::nccl {

inline constexpr std::uint32_t kWorkerLibraryVersion = 1;
inline constexpr const char* kWorkerLibraryFile = "libnccl-snug-workers.so";
inline constexpr const char* kWorkerLibrarySymbol = "snugNcclWorkers";

struct WorkerLibrary {
  std::uint32_t version;
  // Once, for the calling thread's device: takes all memory and loads all code, so that nothing
  // has to wait for the device later. Gives zeroed memory that the GPU reaches at the same
  // addresses. Returns null, or why there are no workers.
  const char* (*open)(int num_sms, std::size_t buffer_bytes, WorkerBoard** board,
                      std::byte** buffers);
  // Whether the calling thread's device is the one of open().
  bool (*is_same_device)();
  // Whether the GPU can use this host memory at its own address.
  bool (*can_reach)(void* data, std::size_t num_bytes);
  // Before and after the launch of a kernel of NCCL on this stream. False: no workers for it, and
  // no call after it.
  bool (*before_kernel)(void* stream);
  void (*after_kernel)(void* stream);
};

}  // namespace snug::nccl
