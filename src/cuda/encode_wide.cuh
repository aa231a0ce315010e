// cuda/encode_wide.cuh - the `fixed` codec for BF16 and F32, and raw and constant
// blocks of every type: one thread block a multiprocessor, whose warps have roles.
// A producer keeps blocks of the tensor on their way to shared memory, surveyors find
// out what becomes of each, placers where it goes, writers write it. So loads, the
// wait for the sizes of other blocks, and stores go on at the same time.
#pragma once
#include <type_traits>

#include "cuda/encode_place.cuh"
#include "cuda/encode_write.cuh"
#include "cuda/prepared_launch.cuh"

namespace snug::cuda {

inline constexpr std::uint32_t kMaxStageBytes = 64 * 1024;  // three of them fit a multiprocessor
inline constexpr unsigned kEncodeWideThreads = (kWriters + kSurveyors + kPlacers + 1) * kWarp;

// The job of a ticket that lane 0 has drawn, or of the next one that has a block; false after
// the last.
template <class Access>
__device__ __forceinline__ bool take_job(const Work& work, std::uint64_t num_tickets,
                                         unsigned drawn, EncodeJob& job) {
  for (;; drawn = warp_ticket(work.ticket)) {
    const std::uint64_t ticket = __shfl_sync(kAll, drawn, 0);
    if (ticket >= num_tickets || upstream_failed(work)) return false;
    if (lane_id() == 0) job = make_encode_job(work, ticket);
    __syncwarp();
    if (job.num_blocks != 0) return true;
    if (lane_id() == 0) finish_frame(work, job, access_item<Access>(work, job.w.item));
    __syncwarp();
  }
}

// Starts the load of a block, piece by piece where it lies in one; await_piece(p) returns when
// there is room for piece p. is_free: there is room for all.
template <class Access, class AwaitPiece>
__device__ __forceinline__ void load_stage(const Work& work, BlockInfo& info, std::uint8_t* block,
                                           std::uint32_t block_bytes, unsigned num_pieces,
                                           std::uint32_t barrier, bool is_free,
                                           AwaitPiece await_piece) {
  const Access src = access_item<Access>(work, info.job.w.item);
  const std::uint32_t num_bytes = info.job.n * width_of(work.dtype), whole_vecs = num_bytes & ~15u;
  const std::uint32_t stage = shared_address(block);
  if (lane_id() == 0) info.by_hand = false;
  __syncwarp();
  if constexpr (std::is_same_v<Access, DirectAccess>) {
    if (num_bytes == block_bytes && !is_free) {
      const std::uint32_t piece_bytes = block_bytes / num_pieces;
      if (lane_id() == 0) expect_load(barrier, block_bytes);
      __syncwarp();
      for (unsigned p = 0; p < num_pieces; ++p) {
        await_piece(p);
        for_each_piece(src, info.job.pos + p * piece_bytes, piece_bytes,
                       [&](const std::uint8_t* at, std::uint32_t offset, std::uint32_t here) {
                         bulk_load(stage + p * piece_bytes + offset, at, here, barrier);
                       });
      }
      __syncwarp();
      if (lane_id() == 0) finish_load(barrier);
      return;
    }
  }
  for (unsigned p = 0; p < num_pieces; ++p) await_piece(p);
  // Bytes behind the last whole vector.
  if (lane_id() < num_bytes - whole_vecs) {
    const std::uint32_t at = whole_vecs + lane_id();
    block[at] = src.load_byte(info.job.pos + at);
    fence_for_bulk();
  }
  __syncwarp();
  if (try_load_block(src, info.job.pos, whole_vecs, stage, barrier)) return;
  if (lane_id() == 0) info.by_hand = true;
  __syncwarp();
  load_block(DirectAccess{}, 0, 0, stage, barrier);
}

// Index entry and header of blocks that have been written.
struct FrameWriter {
  Tally tally;

  // `info` of a block, `before` of the one that this thread block wrote before it.
  template <class Access>
  __device__ __forceinline__ void add(const Work& work, const BlockInfo& info,
                                      const BlockInfo& before) {
    const std::uint64_t sum = warp_sum64(lane_id() < kWriters ? info.sums[lane_id()] : 0);
    if (lane_id() == 0) {
      if (tally.done != 0 && tally.item != info.job.w.idx) flush<Access>(work, before);
      const DeviceEntry entry{info.offset, info.codec, info.plane_modes, info.payload_bytes,
                              checksum_finish(sum, info.payload_bytes)};
      tally.add(work, info.job, entry, info.written);
    }
    __syncwarp();
  }
  template <class Access>
  __device__ __forceinline__ void flush(const Work& work, const BlockInfo& last) {
    tally.flush(work, last.job, access_item<Access>(work, last.job.w.item));
  }
};

template <class Access>
__device__ __forceinline__ void produce_blocks(const Work& work, std::uint8_t* stages,
                                               std::uint32_t block_bytes, unsigned num_stages,
                                               unsigned num_placers, unsigned num_pieces,
                                               EncodeWideSmem& smem) {
  const unsigned lane = lane_id();
  const std::uint64_t num_tickets_in_all = num_tickets(work);
  FrameWriter writer;
  unsigned finished = 0, num_jobs = ~0u;
  const auto info_of = [&](unsigned j) -> BlockInfo& { return smem.infos[j % kBlockInfos]; };
  const auto finish_next = [&] {
    wait_barrier(shared_address(&smem.written[finished % kBlockInfos]), finished / kBlockInfos & 1);
    writer.add<Access>(work, info_of(finished), info_of(finished - 1));
    ++finished;
  };
  // After the last block, one end for each placer: none has to ask the others.
  for (unsigned j = 0; num_jobs == ~0u || j < num_jobs + num_placers; ++j) {
    const unsigned s = j % num_stages;
    const std::uint32_t full = shared_address(&smem.full[s]);
    const unsigned parity = (j / num_stages - 1) & 1;
    // The next ticket is drawn while the block before is written, not earlier: who holds
    // one makes all later blocks wait for its size.
    if (j >= num_stages) wait_barrier(shared_address(&smem.placed[s]), parity);
    BlockInfo& info = info_of(j);
    unsigned drawn = 0;
    if (num_jobs == ~0u && lane == 0) drawn = atomicAdd(work.ticket, 1u);
    if (j > num_stages) finish_next();  // while the ticket comes
    if (num_jobs == ~0u && !take_job<Access>(work, num_tickets_in_all, drawn, info.job))
      num_jobs = j;
    const bool ends = num_jobs != ~0u;
    if (lane == 0) {
      info.ends = ends;
      info.num_escapes = 0;
    }
    __syncwarp();
    const auto await_piece = [&](unsigned p) {
      if (j >= num_stages) wait_barrier(shared_address(&smem.empty[s][p]), parity);
    };
    if (!ends) {
      load_stage<Access>(work, info, stages + s * block_bytes, block_bytes, num_pieces, full,
                         j < num_stages, await_piece);
    } else {
      for (unsigned p = 0; p < num_pieces; ++p) await_piece(p);
      if (lane < kSurveyors) arrive(shared_address(&smem.counted[s]));
      if (lane == 0) arrive(full);
      if (lane == 0) arrive(shared_address(&smem.placed[s]));
    }
  }
  while (finished < num_jobs) finish_next();
  if (lane == 0 && finished != 0) writer.flush<Access>(work, info_of(finished - 1));
}

// kWidth 2 and 4 stand for BF16 and F32 with the fixed codec; 1 for any type, raw
// or constant.
template <class Access, int kWidth>
__global__ void __launch_bounds__(kEncodeWideThreads, 1)
    encode_wide_kernel(const __grid_constant__ Work work, unsigned num_stages) {
  extern __shared__ __align__(1024) std::uint8_t stages[];
  __shared__ EncodeWideSmem smem;
  if (work.items == nullptr) let_next_kernel_start();  // the verdict
  // Each warp one kind of barriers, each lane one.
  const unsigned kind = threadIdx.x / kWarp, lane = lane_id();
  if (kind == 0 && lane < kMaxEncodeStages) init_barrier(shared_address(&smem.full[lane]), 1);
  if (kind == 1 && lane < kMaxEncodeStages)
    init_barrier(shared_address(&smem.counted[lane]), kSurveyors);
  if (kind == 2 && lane < kMaxEncodeStages) init_barrier(shared_address(&smem.placed[lane]), 1);
  if (kind == 3 && lane < kMaxEncodeStages * kMaxPieces)
    init_barrier(shared_address(&smem.empty[lane / kMaxPieces][lane % kMaxPieces]), kWriters);
  if (kind == 4 && lane < kBlockInfos) init_barrier(shared_address(&smem.written[lane]), kWriters);
  __syncthreads();
  wait_for_preparation();
  const std::uint32_t block_bytes = width_of(work.dtype) << work.log2_block;
  const unsigned num_placers = num_stages < kPlacers ? num_stages : kPlacers;
  const unsigned warp = threadIdx.x / kWarp;
  if (warp < kWriters) {
    write_blocks<kWidth>(work, stages, block_bytes, num_stages, smem);
  } else if (warp < kWriters + kSurveyors) {
    survey_blocks<Access, kWidth>(work, stages, block_bytes, num_stages,
                                  threadIdx.x - kWriters * kWarp, smem);
  } else if (warp < kWriters + kSurveyors + kPlacers) {
    place_blocks<kWidth>(work, num_stages, num_placers, warp - kWriters - kSurveyors, smem);
  } else {
    produce_blocks<Access>(work, stages, block_bytes, num_stages, num_placers,
                           Pieces::of<kWidth>(block_bytes).num, smem);
  }
}

}  // namespace snug::cuda
