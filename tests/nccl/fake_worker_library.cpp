// A worker library without a GPU: threads play the workers, with the CPU's codec.
#include <cstdlib>
#include <memory>
#include <mutex>

#include "nccl/cpu_crew.h"
#include "nccl/worker_library.h"
#include "snug/codec.h"

namespace snug::test {
namespace {

CpuGpu::Done encode_order(const nccl::Order& order, std::span<std::byte> tensor,
                          std::span<std::byte> frame) {
  const EncodeOptions options{static_cast<DType>(order.dtype), static_cast<Codec>(order.codec),
                              order.log2_block};
  std::vector<std::byte> workspace(workspace_bytes());
  const auto num_bytes = snug::encode(tensor, frame, options, workspace);
  return {static_cast<std::uint32_t>(num_bytes.status().code),
          num_bytes ? static_cast<std::uint32_t>(*num_bytes) : 0};
}

CpuGpu::Done work(const nccl::Order& order) {
  const std::span tensor(reinterpret_cast<std::byte*>(order.tensor), order.tensor_bytes);
  const std::span frame(reinterpret_cast<std::byte*>(order.frame), order.frame_bytes);
  if (order.kind == nccl::OrderKind::kEncode) return encode_order(order, tensor, frame);
  std::vector<std::byte> workspace(workspace_bytes());
  const auto restored = snug::decode(frame, tensor, workspace);
  return {static_cast<std::uint32_t>(restored.status().code), order.tensor_bytes};
}

CpuGpu* gpu = nullptr;
std::mutex mutex;

const char* open(int, std::size_t buffer_bytes, nccl::WorkerBoard** board, std::byte** buffers) {
  gpu = new CpuGpu(work, std::chrono::seconds(5));
  std::atexit([] { gpu->join(); });  // crews that were told to leave
  *board = &gpu->board();
  *buffers = new (std::align_val_t{4096}) std::byte[buffer_bytes];
  return nullptr;
}
bool is_same_device() { return std::getenv("SNUG_TEST_ANOTHER_GPU") == nullptr; }
bool can_reach(void*, std::size_t) { return true; }
bool before_kernel(void*) {
  const std::lock_guard lock(mutex);
  gpu->join();
  gpu->launch(0, 3);
  return true;
}
void after_kernel(void*) { gpu->mark(); }

}  // namespace
}  // namespace snug::test

extern "C" __attribute__((visibility("default"))) const snug::nccl::WorkerLibrary snugNcclWorkers;
const snug::nccl::WorkerLibrary snugNcclWorkers = {
    snug::nccl::kWorkerLibraryVersion, snug::test::open,
    snug::test::is_same_device,        snug::test::can_reach,
    snug::test::before_kernel,         snug::test::after_kernel};
