// codec/cuda/frame/work.cuh - the blocks that one launch works on, and how warps take them.
#pragma once
#include "codec/cuda/frame/tensor_access.cuh"

namespace snug::cuda {

__host__ __device__ constexpr u64 blocks_in(u64 elems, unsigned log2_block) {
  return frame::BlockGrid{elems, static_cast<int>(log2_block)}.num_blocks();
}

inline constexpr unsigned kMaxErrors = 4096;

// The first parameter of every kernel of the codec: CodecGraph relies on that. Blocks of all items
// are numbered through. Encoding warps draw these numbers as tickets, so that all blocks before
// theirs have been started.
struct Work {
  BatchItem single;  // where `items` is null
  const BatchItem* items;
  u32 num_items;
  const u64* first_block;   // of each item, and the end; batches only
  const Segment* segments;  // of the single item, or null
  const u64* segment_starts;
  u32 num_segments;
  DType dtype;
  Codec codec;
  u32 log2_block;  // decode: what the caller expects
  unsigned* ticket;
  ItemState* states;
  DeviceResult* results;
  unsigned long long* sizes;      // encode: one a block, see frame/look_back.cuh
  unsigned long long* head_sums;  // encode of one tensor: one a thread block
  u8* scratch;                    // encode: scratch_bytes a thread block
  u64 scratch_bytes;
  unsigned long long* errors;    // decode of one tensor: one a thread block, at most kMaxErrors
  const DeviceResult* upstream;  // null, or the call that this encode depends on
};

// A call as a launcher sees it.
struct KernelCall {
  Work work;
  bool direct;     // the tensor is contiguous and 16-byte aligned: DirectAccess
  u64 num_blocks;  // at least 1; an upper bound where only the device knows the number
  u64 num_slots;   // encode: thread blocks that have scratch memory
  unsigned num_sms;
  cudaStream_t stream;
};

// Calls launch.operator()<Access, width>() with the access and the element width of a call.
template <class Launch>
cudaError_t with_access_and_width(const KernelCall& call, Launch launch) {
  const auto with_width = [&]<class Access>() {
    switch (width_of(call.work.dtype)) {
      case 1: return launch.template operator()<Access, 1>();
      case 2: return launch.template operator()<Access, 2>();
      case 4: return launch.template operator()<Access, 4>();
      default: return launch.template operator()<Access, 8>();
    }
  };
  return call.direct ? with_width.template operator()<DirectAccess>()
                     : with_width.template operator()<ScatteredAccess>();
}

struct WorkItem {
  BatchItem item;
  u32 idx;
  u64 first_block;
};

__device__ inline WorkItem find_item(const Work& work, u64 ticket) {
  if (work.items == nullptr) return {work.single, 0, 0};
  u32 i = 0, last = work.num_items;
  while (i + 1 < last) {
    const u32 mid = (i + last) / 2;
    (work.first_block[mid] <= ticket ? i : last) = mid;
  }
  return {work.items[i], i, work.first_block[i]};
}

template <class Access>
__device__ Access access_item(const Work& work, const BatchItem& item);

template <>
__device__ inline DirectAccess access_item<DirectAccess>(const Work&, const BatchItem& item) {
  return {static_cast<u8*>(item.tensor)};
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
