// The decode kernel of fixed and raw frames. One thread block a multiprocessor: a producer warp
// loads the payloads of the next blocks into stages in shared memory, and all other warps together
// restore one block after the other, a part each. Blocks of other kinds or sizes are restored too.
#include <cuda_runtime.h>

#include <type_traits>

#include "codec/cuda/decode_fixed_any/expand_rest.cuh"
#include "codec/cuda/frame/bulk_copy.cuh"
#include "codec/cuda/frame/decode_verdict.cuh"
#include "codec/cuda/select_kernel.h"
#include "gpu/launch.h"

namespace snug::cuda {

constexpr unsigned kMaxStages = 8;
constexpr u32 kDecodeStageBytes = 64 * 1024;

struct StageSmem {
  unsigned long long full[kMaxStages], empty[kMaxStages];  // barriers
  StageInfo stages[kMaxStages];
  DecodeJob jobs[kWarpSize];  // of the producer's next tickets
  FixedLayout layouts[kWarpSize];
  DecodeReport report;
};

using ConsumerTeam = BarrierTeam<kConsumerThreads>;

// Blocks that are not staged: too large, or of another codec.
template <int kWidth, class Access>
__device__ __noinline__ BlockResult decode_unstaged(const Work& work, const DecodeJob& job,
                                                    Access dst, DecodeSmem* smem) {
  const BlockResult r = decode_by_team<ConsumerTeam, kWidth>(job, work.dtype, dst, *smem);
  fence_async_proxy();
  return r;
}

// By a whole warp: its part of the result of a block.
__device__ __forceinline__ void leave_result(StageInfo& info, BlockResult r, u32 num_patched) {
  const unsigned warp = warp_id();
  const u64 sum = warp_sum(r.sum);
  num_patched = __reduce_add_sync(kAllLanes, num_patched);
  if (lane_id() != 0) return;
  info.sums[warp] = sum;
  info.reasons[warp] = r.reason;
  info.num_patched[warp] = num_patched;
}

// Blocks that are not in rows. Out of line: it takes no registers from the usual ones.
template <class Access, int kWidth>
__device__ __noinline__ void restore_any(const Work& work, StageInfo& info, u8* stage) {
  const DecodeJob& job = info.job;
  const Access dst = access_item<Access>(work, job.w.item);
  BlockResult r{job.reason, 0};
  u32 num_patched = 0;
  if (info.staged)
    r = expand_other<kWidth>(stage, info, dst, num_patched);
  else if (job.exists && job.reason == kReasonNone)
    r = decode_unstaged<kWidth>(work, job, dst, reinterpret_cast<DecodeSmem*>(stage));
  leave_result(info, r, num_patched);
}

// Restores blocks from number `turn` on while they are in rows; returns the first that is not.
template <class Access, int kWidth>
__device__ __noinline__ unsigned consume_rows(const Work& work, u8* stages, u32 stage_bytes,
                                              unsigned num_stages, unsigned turn, StageSmem& smem) {
  for (;; ++turn) {
    const unsigned s = turn % num_stages;
    barrier_wait(shared_address(&smem.full[s]), turn / num_stages & 1);
    StageInfo& info = smem.stages[s];
    if (!info.in_rows) return turn;
    u32 num_patched = 0;
    const Access dst = access_item<Access>(work, info.job.w.item);
    const BlockResult r = expand_rows<kWidth>(stages + s * stage_bytes, info, dst, num_patched);
    leave_result(info, r, num_patched);
    if (lane_id() == 0) barrier_arrive(shared_address(&smem.empty[s]));
    __syncwarp();
  }
}

template <class Access, int kWidth>
__device__ __forceinline__ void consume_blocks(const Work& work, u8* stages, u32 stage_bytes,
                                               unsigned num_stages, StageSmem& smem) {
  for (unsigned turn = 0;; ++turn) {
    turn = consume_rows<Access, kWidth>(work, stages, stage_bytes, num_stages, turn, smem);
    const unsigned s = turn % num_stages;
    StageInfo& info = smem.stages[s];
    if (info.job.ends) return;
    restore_any<Access, kWidth>(work, info, stages + s * stage_bytes);
    if (lane_id() == 0) barrier_arrive(shared_address(&smem.empty[s]));
    __syncwarp();
  }
}

// By the producer: escapes that are not in rising order, after the block is restored.
template <int kWidth, class Access>
__device__ __noinline__ Reason patch_all(const DecodeJob& job, const Access& dst) {
  FixedLayout layout;
  if (!open_fixed(job.payload, job.entry.num_bytes, job.n, kWidth, job.entry, layout))
    return kReasonPayload;
  return patch_fixed_escapes<WarpTeam>(job.payload, layout, job.n, kWidth, dst, job.pos);
}

// By the producer, when all consumers are done with a block.
template <class Access, int kWidth>
__device__ __forceinline__ void finish_block(const Work& work, const StageInfo& info,
                                             const u8* stage, DecodeReport& report) {
  const DecodeJob& job = info.job;
  const unsigned lane = lane_id();
  Reason reason = lane < kConsumers ? info.reasons[lane] : kReasonNone;
  reason = static_cast<Reason>(__reduce_max_sync(kAllLanes, static_cast<unsigned>(reason)));
  if constexpr (kHasFixed<kWidth>) {
    const u32 patched =
        __reduce_add_sync(kAllLanes, lane < kConsumers ? info.num_patched[lane] : 0);
    if (info.staged && reason == kReasonNone && job.entry.is(Codec::kFixed) &&
        patched !=
            *reinterpret_cast<const u32*>(stage + info.layout.escapes - codec::FixedHeader::kBytes))
      reason = patch_all<kWidth>(job, access_item<Access>(work, job.w.item));
  }
  const u64 sum = warp_sum(lane < kConsumers ? info.sums[lane] : 0);
  if (job.exists && job.reason == kReasonNone) reason = check_sum(reason, sum, job.entry);
  if (lane == 0) report.add<Access>(work, job, info.ticket, reason);
  __syncwarp();
}

template <class Access, int kWidth>
__device__ __forceinline__ void produce_blocks(const Work& work, u8* stages, u32 stage_bytes,
                                               unsigned num_stages, StageSmem& smem) {
  const unsigned lane = lane_id();
  const u64 num_tickets = ticket_end(work);
  DecodeReport& report = smem.report;
  if (lane == 0) report = {};
  unsigned produced = 0, finished = 0;
  const auto finish_next = [&] {
    const unsigned s = finished % num_stages;
    barrier_wait(shared_address(&smem.empty[s]), finished / num_stages & 1);
    finish_block<Access, kWidth>(work, smem.stages[s], stages + s * stage_bytes, report);
    ++finished;
  };
  for (;; ++produced) {
    if (produced - finished == num_stages) finish_next();
    const u64 ticket = blockIdx.x + u64{produced} * gridDim.x;
    if (produced % kWarpSize == 0) {
      DecodeJob mine = open_decode_job(work, ticket + lane * gridDim.x, num_tickets);
      FixedLayout layout{};
      if constexpr (kHasFixed<kWidth>)
        if (mine.exists && mine.reason == kReasonNone && mine.entry.is(Codec::kFixed) &&
            has_fixed_codec(work.dtype) &&
            !lay_out_fixed(mine.entry.num_bytes, mine.n, kWidth, mine.entry, layout))
          mine.reason = kReasonPayload;
      __syncwarp();
      smem.jobs[lane] = mine;
      smem.layouts[lane] = layout;
      __syncwarp();
    }
    const unsigned s = produced % num_stages;
    StageInfo& info = smem.stages[s];
    const DecodeJob& job = smem.jobs[produced % kWarpSize];
    const DeviceEntry& e = job.entry;
    const bool plain = e.is(Codec::kRaw) || e.is(Codec::kConstant);
    const bool fixed = e.is(Codec::kFixed) && has_fixed_codec(work.dtype);
    const bool staged = !job.ends && job.exists && job.reason == kReasonNone && (plain || fixed) &&
                        u64{job.n} * kWidth <= stage_bytes;
    if (lane == 0) {
      info.job = job;
      info.layout = smem.layouts[produced % kWarpSize];
      info.ticket = ticket;
      info.staged = staged;
      info.in_rows = staged && divides_into_rows<kWidth>(job);
    }
    __syncwarp();
    load_block(DirectAccess{const_cast<u8*>(job.payload)}, 0, staged ? e.num_bytes : 0,
               shared_address(stages + s * stage_bytes), shared_address(&smem.full[s]));
    // While the payload is loaded.
    if constexpr (!std::is_same_v<Access, DirectAccess>) {
      const bool good =
          !info.in_rows || lane >= kConsumers ||
          find_place(access_item<Access>(work, job.w.item), job.pos, part_start<kWidth>(job, lane),
                     part_start<kWidth>(job, lane + 1), info.places[lane]);
      if (!__all_sync(kAllLanes, good) && lane == 0) info.in_rows = false;
      __syncwarp();
    }
    if (lane == 0) barrier_arrive(shared_address(&smem.full[s]));
    if (job.ends) break;
  }
  while (finished < produced) finish_next();
  if (lane == 0) report.flush<Access>(work);
  if (lane == 0) work.errors[blockIdx.x] = report.first_error;
}

template <class Access, int kWidth>
__global__ void __launch_bounds__(kConsumerThreads + kWarpSize, 1)
    decode_fixed_any_kernel(const __grid_constant__ Work work, u32 stage_bytes,
                            unsigned num_stages) {
  extern __shared__ __align__(1024) u8 stages[];
  __shared__ StageSmem smem;
  if (work.items == nullptr) let_next_kernel_start();  // the verdict
  if (threadIdx.x < num_stages) {
    barrier_init(shared_address(&smem.full[threadIdx.x]), 2);  // payload and info
    barrier_init(shared_address(&smem.empty[threadIdx.x]), kConsumers);
    fence_async_proxy();
  }
  __syncthreads();
  // One contiguous tensor needs no preparation.
  if (work.items != nullptr || work.segments != nullptr) wait_for_previous_kernel();
  if (threadIdx.x < kConsumerThreads)
    consume_blocks<Access, kWidth>(work, stages, stage_bytes, num_stages, smem);
  else
    produce_blocks<Access, kWidth>(work, stages, stage_bytes, num_stages, smem);
}

namespace {

// As many stages as shared memory holds, and at least half of it: one thread block a
// multiprocessor.
template <class Access, int kWidth>
cudaError_t launch(const KernelCall& call) {
  const auto kernel = decode_fixed_any_kernel<Access, kWidth>;
  StageRoom room;
  if (const cudaError_t error = find_stage_room(kernel, room); error != cudaSuccess) return error;
  u32 stage_bytes = kWidth << call.work.log2_block;
  if (stage_bytes > kDecodeStageBytes) stage_bytes = kDecodeStageBytes;
  if (stage_bytes < sizeof(DecodeSmem)) stage_bytes = sizeof(DecodeSmem);
  const unsigned num_stages = room.stages_of(stage_bytes, kMaxStages);
  const u32 half = room.num_bytes / 2 + 1024,
            smem = num_stages * stage_bytes > half ? num_stages * stage_bytes : half;
  const u64 num_ctas = call.num_blocks < call.num_sms ? call.num_blocks : call.num_sms;
  return launch_decoder<Access>(call, kernel, num_ctas, kConsumerThreads + kWarpSize, smem,
                                stage_bytes, num_stages);
}

}  // namespace

cudaError_t launch_decode_fixed_any(const KernelCall& call) {
  return with_access_and_width(
      call, [&]<class Access, int kWidth>() { return launch<Access, kWidth>(call); });
}

}  // namespace snug::cuda
