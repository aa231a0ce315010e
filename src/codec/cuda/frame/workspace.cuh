// codec/cuda/frame/workspace.cuh - the layout of a call's workspace, drawn in docs/gpu.md, and the
// kernel that prepares it.
#pragma once
#include "codec/cuda/frame/work.cuh"

namespace snug::cuda {

inline constexpr unsigned kPrepareThreads = 512;

constexpr u64 align256(u64 n) { return (n + 255) & ~u64{255}; }

// Computes every offset. The parts up to `zeroed` are zeroed before each call, except before
// decodes of one contiguous tensor, which use `errors` alone. num_slots is 0 for decoding.
struct WorkspaceLayout {
  u64 ticket = 0, states, sizes, head_sums, zeroed, first_block, segment_starts, errors, scratch,
      total;

  WorkspaceLayout(u64 num_items, u64 num_blocks, u64 num_segments, u64 num_slots,
                  u64 scratch_bytes) {
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
    prepare_kernel(const Work work, uint4* zeroed, u64 num_vecs, u64* first_block,
                   u64* segment_starts, bool decodes, u64 max_blocks) {
  let_next_kernel_start();
  for (u64 i = blockIdx.x * kPrepareThreads + threadIdx.x; i < num_vecs;
       i += u64{gridDim.x} * kPrepareThreads)
    zeroed[i] = {};
  const bool batch = work.items != nullptr;
  if (blockIdx.x != 0 || (!batch && work.segments == nullptr)) return;
  __shared__ unsigned long long part[kPrepareThreads / kWarpSize];
  const unsigned lane = threadIdx.x % kWarpSize, warp = warp_id();
  const u64 count = batch ? work.num_items : work.num_segments;
  u64* out = batch ? first_block : segment_starts;
  const auto size_of = [&](u64 i) -> u64 {
    if (!batch) return work.segments[i].num_bytes;
    const BatchItem item = work.items[i];
    u64 blocks;
    if (decodes) {
      blocks = read_device_header(static_cast<const u8*>(item.frame), item.frame_bytes,
                                  item.tensor_bytes, work.dtype)
                   .num_blocks;
    } else {
      blocks = blocks_in(item.tensor_bytes / width_of(work.dtype), work.log2_block);
    }
    return blocks == 0 ? 1 : blocks;  // an item without blocks still has a result to write
  };
  const u64 each = (count + kPrepareThreads - 1) / kPrepareThreads;
  const u64 first = threadIdx.x * each, last = first + each < count ? first + each : count;
  unsigned long long sum = 0;
#pragma unroll 8
  for (u64 i = first; i < last; ++i) sum += size_of(i);
  unsigned long long upto = sum;
  for (unsigned d = 1; d < kWarpSize; d *= 2) {
    const unsigned long long below = __shfl_up_sync(kAllLanes, upto, d);
    if (lane >= d) upto += below;
  }
  if (lane == kWarpSize - 1) part[warp] = upto;
  __syncthreads();
  u64 next = upto - sum, all = 0;
  for (unsigned w = 0; w < kPrepareThreads / kWarpSize; ++w) {
    if (w < warp) next += part[w];
    all += part[w];
  }
#pragma unroll 8
  for (u64 i = first; i < last; ++i) {
    out[i] = next;
    next += size_of(i);
  }
  if (threadIdx.x != 0) return;
  // More blocks than total_bytes promised: encode nothing, write nothing.
  if (batch && !decodes && all > max_blocks) {
    for (u64 i = 0; i < count; ++i)
      work.results[i] = {0, static_cast<u32>(Code::kUsage), kReasonBatchRoom, kNowhere};
    all = 0;
  }
  out[count] = all;
}

}  // namespace snug::cuda
