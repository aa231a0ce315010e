// The encode kernel of fixed and raw frames: BF16 and F32 with the `fixed` codec, raw and constant
// blocks of every type. One thread block a multiprocessor, whose warps have roles: a producer loads
// blocks of the tensor into a ring in shared memory, analyzers decide what each becomes, placers
// look back for its place, writers write it. So loads, look-back and stores overlap.
#include <cuda_runtime.h>

#include <type_traits>

#include "codec/cuda/encode_fixed/analyze_block.cuh"
#include "codec/cuda/encode_fixed/place_block.cuh"
#include "codec/cuda/encode_fixed/write_block.cuh"
#include "codec/cuda/frame/bulk_copy.cuh"
#include "codec/cuda/frame/encode_verdict.cuh"
#include "codec/cuda/select_kernel.h"
#include "gpu/launch.h"

namespace snug::cuda {

constexpr unsigned kFirstPlacer = kWriters + kAnalyzers, kProducer = kFirstPlacer + kPlacers,
                   kEncodeFixedThreads = (kProducer + 1) * kWarpSize;

// Whole elements of the single tensor.
template <int kWidth>
__device__ __forceinline__ u64 single_elems(const Work& work) {
  return kWidth > 1 ? work.single.tensor_bytes / kWidth
                    : elems_in(work.single.tensor_bytes, work.dtype);
}

// make_encode_job for the single tensor, in two parts: what all blocks share, and what differs.
// Inline: a thread block starts with this code, and a call would be one more instruction fetch.
template <int kWidth>
__device__ __forceinline__ EncodeJob make_single_job(const Work& work) {
  EncodeJob job;
  job.w = {work.single, 0, 0};
  job.num_blocks = blocks_in(single_elems<kWidth>(work), work.log2_block);
  job.fits = work.single.frame_bytes >= job.payload_start() &&
             reinterpret_cast<std::uintptr_t>(work.single.frame) % frame::kAlign == 0;
  return job;
}
template <int kWidth>
__device__ __forceinline__ void move_to_block(const Work& work, u64 block, EncodeJob& job) {
  const u64 first = block << work.log2_block, left = single_elems<kWidth>(work) - first;
  job.block = block;
  job.pos = first * width_in<kWidth>(work);
  job.n = static_cast<u32>(left >> work.log2_block ? 1u << work.log2_block : left);
}

// The job of the ticket that lane 0 has drawn, or of the next one that has a block; false after the
// last. The job of a single tensor was made for another block of it.
template <class Access, int kWidth>
__device__ __forceinline__ bool take_job(const Work& work, u64 num_tickets, u32 ticket,
                                         EncodeJob& job) {
  for (;; ticket = warp_ticket(work.ticket)) {
    ticket = __shfl_sync(kAllLanes, ticket, 0);
    if (ticket >= num_tickets || upstream_failed(work)) return false;
    if (lane_id() == 0) {
      if (work.items == nullptr)
        move_to_block<kWidth>(work, ticket, job);
      else
        job = make_encode_job(work, ticket);
    }
    __syncwarp();
    if (job.num_blocks != 0) return true;
    if (lane_id() == 0) finish_frame(work, job, access_item<Access>(work, job.w.item));
    __syncwarp();
  }
}

// in_one_piece for a tensor whose segments mostly have the size `page`: start, end and address of
// the guessed segment are loaded together, not one after the other.
__device__ __forceinline__ const u8* find_piece(const DirectAccess& tensor, u64 pos, u32, u64) {
  return tensor.data + pos;
}
inline __device__ __noinline__ const u8* find_piece(const ScatteredAccess& tensor, u64 pos,
                                                    u32 num_bytes, u64 page) {
  const u64 i = page == 0 ? tensor.num_segments : pos / page;
  if (i < tensor.num_segments) {
    const u64 start = tensor.starts[i], end = tensor.starts[i + 1];
    const u8* at = static_cast<const u8*>(tensor.segments[i].data) + pos - start;
    if (start <= pos && pos + num_bytes <= end)
      return reinterpret_cast<std::uintptr_t>(at) % 16 == 0 ? at : nullptr;
  }
  return in_one_piece(tensor, pos, num_bytes);
}

// By a whole warp: starts the load of a block, a unit a lane. Analyzers load what bulk copies
// cannot move. Then prefetches into L2 the block that comes `ahead` blocks later (0: none).
template <class Access, int kWidth>
__device__ __forceinline__ void load_to_ring(const Work& work, const RingCursor& cursor, u64 page,
                                             unsigned ahead, BlockInfo& info, u32 full,
                                             EncodeFixedSmem& smem) {
  static_assert(kRingUnit == kPieceBytes && 2 * kMaxRingBlock <= kWarpSize * kRingUnit);
  const Access src = access_item<Access>(work, info.job.w.item);
  const unsigned lane = lane_id(), num_units = cursor.ring.block_units;
  const u32 num_bytes = info.job.n * width_in<kWidth>(work) & ~15u, start = lane * kRingUnit;
  u32 here = start < num_bytes ? min(num_bytes - start, kRingUnit) : 0;
  u64 pos = info.job.pos + start;
  // The next num_units lanes find the units of the later block at the same time.
  const bool is_later = lane >= num_units;
  if (is_later) {
    pos += (u64{ahead} - 1) * num_units * kRingUnit;
    const bool exists =
        ahead != 0 && lane < 2 * num_units && pos + kRingUnit <= info.job.w.item.tensor_bytes;
    here = exists ? kRingUnit : 0;
  }
  const RingBlock block = cursor.block();
  const u8* at = here == 0 ? nullptr : find_piece(src, pos, here, page);
  bool one_copy = true, in_bulk = true;
  if constexpr (std::is_same_v<Access, ScatteredAccess>) {
    one_copy = __all_sync(kAllLanes, is_later || here == 0 || at != nullptr);
    in_bulk = one_copy || can_move_in_bulk(src, info.job.pos, num_bytes);
  }
  if (lane == 0) {
    info.by_hand = !in_bulk;
    barrier_expect(full, in_bulk ? num_bytes : 0);
  } else {
    barrier_arrive(full);
  }
  __syncwarp();
  // Each unit as soon as there is room for it.
  bool waits = !is_later;
  const bool is_new = cursor.is_new(lane);
  const u32 empty = shared_address(&smem.empty[cursor.barrier(lane)]);
  while (__any_sync(kAllLanes, waits)) {
    if (!waits || !(is_new || barrier_test(empty, cursor.parity(lane)))) continue;
    waits = false;
    if (here == 0 || !in_bulk) continue;
    if (one_copy)
      bulk_load<true>(block.at(start), at, here, full);
    else
      for_each_piece(src, info.job.pos, num_bytes, [&](const u8* from, u32 offset, u32 some) {
        bulk_load<true>(block.at(offset), from, some, full);
      });
  }
  __syncwarp();
  if (lane == 0) barrier_loads_issued(full);
  // After the loads: both go through the same queue.
  if (is_later && at != nullptr) bulk_prefetch(at, kRingUnit);
  __syncwarp();
}

// Index entries of blocks that have been written, and the header.
struct FrameWriter {
  EncodeReport report;

  // `before` is the block that this thread block wrote before.
  template <class Access>
  __device__ __forceinline__ void add(const Work& work, const BlockInfo& info,
                                      const BlockInfo& before) {
    const u64 sum = warp_sum(lane_id() < kWriters ? info.sums[lane_id()] : 0);
    if (lane_id() == 0) {
      if (report.done != 0 && report.item != info.job.w.idx) flush<Access>(work, before);
      const DeviceEntry entry{info.offset, info.codec, info.plane_modes, info.payload_bytes,
                              checksum_finish(sum, info.payload_bytes)};
      report.add(work, info.job, entry, info.written);
    }
    __syncwarp();
  }
  template <class Access>
  __device__ __forceinline__ void flush(const Work& work, const BlockInfo& last) {
    report.flush(work, last.job, access_item<Access>(work, last.job.w.item));
  }
};

template <class Access, int kWidth>
__device__ __forceinline__ void produce_blocks(const Work& work, RingCursor cursor,
                                               unsigned num_placers, EncodeFixedSmem& smem) {
  const unsigned lane = lane_id(), num_ahead = cursor.ring.num_blocks();
  const u64 num_tickets = work.items != nullptr ? work.first_block[work.num_items]
                                                : max(smem.infos[0].job.num_blocks, u64{1});
  const u64 page =
      std::is_same_v<Access, DirectAccess> || work.segments == nullptr ? 0 : work.segment_starts[1];
  FrameWriter writer;
  unsigned finished = 0, num_jobs = ~0u;
  const auto info_of = [&](unsigned j) -> BlockInfo& { return smem.infos[j % kBlockInfos]; };
  const auto finish_next = [&] {
    await_block(smem.written, finished);
    writer.add<Access>(work, info_of(finished), info_of(finished - 1));
    ++finished;
  };
  // After the last block, one end marker for each placer.
  for (unsigned j = 0; num_jobs == ~0u || j < num_jobs + num_placers; ++j, cursor.advance()) {
    // Draws the next ticket while the previous block is written, not earlier: later blocks of all
    // thread blocks wait for the size of a ticket that is drawn.
    if (j >= num_ahead) await_block(smem.placed, j - num_ahead);
    BlockInfo& info = info_of(j);
    u32 ticket = 0;
    if (num_jobs == ~0u && lane == 0) ticket = atomicAdd(work.ticket, 1u);
    if (j > num_ahead) finish_next();  // while the ticket arrives
    if (num_jobs == ~0u && !take_job<Access, kWidth>(work, num_tickets, ticket, info.job))
      num_jobs = j;
    const bool ends = num_jobs != ~0u;
    if (lane == 0) {
      info.ends = ends;
      info.num_escapes = 0;
    }
    __syncwarp();
    if (!ends) {
      // Only once the ring is full: until then all loads are in flight anyway. L2 would evict what
      // is prefetched more than one block a thread block ahead.
      const unsigned ahead = j + 1 >= num_ahead ? gridDim.x : 0;
      load_to_ring<Access, kWidth>(work, cursor, page, ahead, info,
                                   shared_address(&smem.full[j % kBlockInfos]), smem);
    } else {
      for (unsigned k = 0; k < kAnalyzers; ++k)
        barrier_arrive(shared_address(&smem.counted[j % kBlockInfos]));
      barrier_arrive(shared_address(&smem.placed[j % kBlockInfos]));
      barrier_arrive(shared_address(&smem.full[j % kBlockInfos]));
    }
  }
  while (finished < num_jobs) finish_next();
  if (lane == 0 && finished != 0) writer.flush<Access>(work, info_of(finished - 1));
}

// kWidth 2 and 4 stand for the fixed codec of BF16 and F32, 1 for raw and constant blocks.
template <class Access, int kWidth>
__global__ void __launch_bounds__(kEncodeFixedThreads, 1)
    encode_fixed_kernel(const __grid_constant__ Work work, unsigned num_ring_units) {
  extern __shared__ __align__(1024) u8 units[];
  __shared__ EncodeFixedSmem smem;
  if (work.items == nullptr) let_next_kernel_start();  // the verdict
  const u32 block_bytes = width_in<kWidth>(work) << work.log2_block;
  const BlockRing ring{kept_shared_address(units), num_ring_units, block_bytes / kRingUnit};
  // Not warp_id(): ptxas then makes 16 to 24 instructions more of the kernel.
  const unsigned warp = threadIdx.x / kWarpSize, lane = lane_id();
  // Some thread block starts with this block.
  if (std::is_same_v<Access, DirectAccess> && work.items == nullptr && warp == kProducer) {
    const u64 pos = blockIdx.x * u64{block_bytes} + lane * kRingUnit;
    if (lane < ring.block_units && pos + kRingUnit <= work.single.tensor_bytes)
      bulk_prefetch(static_cast<const u8*>(work.single.tensor) + pos, kRingUnit);
  }
  // Each warp initializes one kind of barrier, each lane one of them.
  const auto init = [&](unsigned long long& barrier, unsigned count) {
    barrier_init(shared_address(&barrier), count);
  };
  if (lane < kBlockInfos) {
    if (warp == 0) init(smem.full[lane], kWarpSize);
    if (warp == 1) init(smem.counted[lane], kAnalyzerThreads);
    if (warp == 2) init(smem.placed[lane], kWarpSize);
    if (warp == 3) init(smem.written[lane], kWriters * kWarpSize);
  }
  if (warp == 4)
    for (unsigned unit = lane; unit < num_ring_units; unit += kWarpSize)
      init(smem.empty[unit],
           kRingUnit / Pieces::of<kWidth>(block_bytes).template part_bytes<kWidth>() * kWarpSize);
  fence_async_proxy();
  __syncthreads();
  if (warp == kProducer) {
    if (work.items == nullptr && lane < kBlockInfos)
      smem.infos[lane].job = make_single_job<kWidth>(work);
    __syncwarp();
  }
  wait_for_previous_kernel();
  const RingCursor cursor{ring};
  const unsigned num_placers = ring.num_blocks() < kPlacers ? ring.num_blocks() : kPlacers;
  if (warp < kWriters) {
    write_blocks<kWidth>(work, cursor, smem);
  } else if (warp < kFirstPlacer) {
    analyze_blocks<Access, kWidth>(work, cursor, threadIdx.x - kWriters * kWarpSize, smem);
  } else if (warp < kProducer) {
    place_blocks<kWidth>(work, num_placers, warp - kFirstPlacer, smem);
  } else {
    produce_blocks<Access, kWidth>(work, cursor, num_placers, smem);
  }
}

namespace {

template <class Access, int kWidth>
cudaError_t launch(const KernelCall& call) {
  const auto kernel = encode_fixed_kernel<Access, kWidth>;
  StageRoom room;
  if (const cudaError_t error = find_stage_room(kernel, room); error != cudaSuccess) return error;
  const unsigned block_units = (width_of(call.work.dtype) << call.work.log2_block) / kRingUnit,
                 num_units = room.stages_of(kRingUnit, kMaxBlocksAhead * block_units);
  if (num_units < block_units) return cudaErrorInvalidConfiguration;  // it would wait forever
  return launch_encoder<Access>(call, kernel, call.num_slots, kEncodeFixedThreads,
                                num_units * kRingUnit, num_units);
}

template <class Access>
cudaError_t launch(const KernelCall& call) {
  const DType dtype = call.work.dtype;
  const auto launcher = call.work.codec != Codec::kFixed || !has_fixed_codec(dtype)
                            ? launch<Access, 1>
                        : dtype == DType::kF32 ? launch<Access, 4>
                                               : launch<Access, 2>;
  return launcher(call);
}

}  // namespace

cudaError_t launch_encode_fixed(const KernelCall& call) {
  return call.direct ? launch<DirectAccess>(call) : launch<ScatteredAccess>(call);
}

}  // namespace snug::cuda
