// codec/cuda/frame/work.cuh - the list of blocks one launch works on, and who takes which.
#pragma once
#include "codec/cuda/frame/tensor_access.cuh"

namespace snug::cuda {

__host__ __device__ constexpr std::uint64_t blocks_in(std::uint64_t elems, unsigned log2_block) {
  return frame::BlockGrid{elems, static_cast<int>(log2_block)}.num_blocks();
}

inline constexpr unsigned kMaxErrors = 4096;

// Kernel parameters. Blocks of all items are numbered through; warps (or thread
// blocks) draw tickets, so that a block's predecessors have always started.
struct Work {
  BatchItem single;  // used where `items` is null
  const BatchItem* items;
  std::uint32_t num_items;
  const std::uint64_t* first_block;  // of each item, and the end; batches only
  const Segment* segments;           // of the single item, or null
  const std::uint64_t* segment_starts;
  std::uint32_t num_segments;
  DType dtype;
  Codec codec;
  std::uint32_t log2_block;  // decode: what the caller expects
  unsigned* ticket;
  ItemState* states;
  DeviceResult* results;
  unsigned long long* sizes;      // encode: one a block, for the look-back
  unsigned long long* head_sums;  // encode, one tensor: one a thread block
  std::uint8_t* scratch;          // scratch_bytes a warp
  std::uint64_t scratch_bytes;
  unsigned long long*
      errors;  // decode: at most kMaxErrors, see codec/cuda/frame/decode_verdict.cuh
  const DeviceResult* upstream;  // encode only if this call went well, or null
};

struct WorkItem {
  BatchItem item;
  std::uint32_t idx;
  std::uint64_t first_block;
};

__device__ inline WorkItem find_item(const Work& work, std::uint64_t ticket) {
  if (work.items == nullptr) return {work.single, 0, 0};
  std::uint32_t i = 0, last = work.num_items;
  while (i + 1 < last) {
    const std::uint32_t mid = (i + last) / 2;
    (work.first_block[mid] <= ticket ? i : last) = mid;
  }
  return {work.items[i], i, work.first_block[i]};
}

template <class Access>
__device__ Access access_item(const Work& work, const BatchItem& item);

template <>
__device__ inline DirectAccess access_item<DirectAccess>(const Work&, const BatchItem& item) {
  return {static_cast<std::uint8_t*>(item.tensor)};
}
template <>
__device__ inline ScatteredAccess access_item<ScatteredAccess>(const Work& work,
                                                               const BatchItem& item) {
  return {work.segments, work.segment_starts, work.num_segments, {item.tensor, item.tensor_bytes}};
}

__device__ inline unsigned warp_ticket(unsigned* counter) {
  unsigned ticket = 0;
  if (lane_id() == 0) ticket = atomicAdd(counter, 1u);
  return __shfl_sync(kAllLanes, ticket, 0);
}

}  // namespace snug::cuda
