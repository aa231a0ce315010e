// codec/cuda/frame/workspace.cuh - the layout of a call's workspace, drawn in docs/gpu.md, and the
// kernel that prepares it.
#pragma once
#include "codec/cuda/frame/work.cuh"

namespace snug::cuda {

inline constexpr unsigned kPrepareThreads = 512;

constexpr std::uint64_t align256(std::uint64_t n) { return (n + 255) & ~std::uint64_t{255}; }

// Computes every offset. The parts up to `zeroed` are zeroed before each call, except before
// decodes of one contiguous tensor, which use `errors` alone. num_slots is 0 for decoding.
struct WorkspaceLayout {
  std::uint64_t ticket = 0, states, sizes, head_sums, zeroed, first_block, segment_starts, errors,
                scratch, total;

  WorkspaceLayout(std::uint64_t num_items, std::uint64_t num_blocks, std::uint64_t num_segments,
                  std::uint64_t num_slots, std::uint64_t scratch_bytes) {
    states = 256;
    sizes = align256(states + num_items * sizeof(ItemState));
    head_sums = align256(sizes + (num_slots != 0 ? num_blocks * 8 : 0));
    zeroed = align16(head_sums + num_slots * 8);
    first_block = align256(zeroed);
    segment_starts = align256(first_block + (num_items + 1) * 8);
    errors = align256(segment_starts + (num_segments + 1) * 8);
    scratch = align256(errors + kMaxErrors * 8);
    total = scratch + num_slots * scratch_bytes;
  }
};

// Runs before the kernel of a call. Zeroes the first parts of the workspace; the first thread block
// computes running sums, of the block counts of a batch's items or of the sizes of segments. Each
// thread takes neighbouring items, so that the sums of the threads are scanned once.
static __global__ void __launch_bounds__(kPrepareThreads)
    prepare_kernel(const Work work, uint4* zeroed, std::uint64_t num_vecs,
                   std::uint64_t* first_block, std::uint64_t* segment_starts, bool decodes,
                   std::uint64_t max_blocks) {
  let_next_kernel_start();
  for (std::uint64_t i = blockIdx.x * kPrepareThreads + threadIdx.x; i < num_vecs;
       i += std::uint64_t{gridDim.x} * kPrepareThreads)
    zeroed[i] = {};
  const bool batch = work.items != nullptr;
  if (blockIdx.x != 0 || (!batch && work.segments == nullptr)) return;
  __shared__ unsigned long long part[kPrepareThreads / kWarpSize];
  const unsigned lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const std::uint64_t count = batch ? work.num_items : work.num_segments;
  std::uint64_t* out = batch ? first_block : segment_starts;
  const auto size_of = [&](std::uint64_t i) -> std::uint64_t {
    if (!batch) return work.segments[i].num_bytes;
    const BatchItem item = work.items[i];
    std::uint64_t blocks;
    if (decodes) {
      blocks = read_device_header(static_cast<const std::uint8_t*>(item.frame), item.frame_bytes,
                                  item.tensor_bytes, work.dtype)
                   .num_blocks;
    } else {
      blocks = blocks_in(item.tensor_bytes / width_of(work.dtype), work.log2_block);
    }
    return blocks == 0 ? 1 : blocks;  // an item without blocks still has a result to write
  };
  const std::uint64_t each = (count + kPrepareThreads - 1) / kPrepareThreads;
  const std::uint64_t first = threadIdx.x * each,
                      last = first + each < count ? first + each : count;
  unsigned long long sum = 0;
#pragma unroll 8
  for (std::uint64_t i = first; i < last; ++i) sum += size_of(i);
  unsigned long long upto = sum;
  for (unsigned d = 1; d < kWarpSize; d *= 2) {
    const unsigned long long below = __shfl_up_sync(kAllLanes, upto, d);
    if (lane >= d) upto += below;
  }
  if (lane == kWarpSize - 1) part[warp] = upto;
  __syncthreads();
  std::uint64_t next = upto - sum, all = 0;
  for (unsigned w = 0; w < kPrepareThreads / kWarpSize; ++w) {
    if (w < warp) next += part[w];
    all += part[w];
  }
#pragma unroll 8
  for (std::uint64_t i = first; i < last; ++i) {
    out[i] = next;
    next += size_of(i);
  }
  if (threadIdx.x != 0) return;
  // More blocks than total_bytes promised: encode nothing, write nothing.
  if (batch && !decodes && all > max_blocks) {
    for (std::uint64_t i = 0; i < count; ++i)
      work.results[i] = {0, static_cast<std::uint32_t>(Code::kUsage), kReasonBatchRoom, kNowhere};
    all = 0;
  }
  out[count] = all;
}

}  // namespace snug::cuda
