// The decode kernel of entropy-coded frames of types whose top plane is a byte stream: F16, FP8,
// integers. A warp restores a block.
#include <cuda_runtime.h>

#include <type_traits>

#include "codec/cuda/decode_any_block/decode_any_block.cuh"
#include "codec/cuda/decode_entropy_bytes/decode_bytes.cuh"
#include "codec/cuda/frame/decode_frame.cuh"
#include "codec/cuda/frame/decode_verdict.cuh"
#include "codec/cuda/select_kernel.h"
#include "gpu/launch.h"

namespace snug::cuda {
namespace {

// One thread block a multiprocessor, so that its warps work on neighbouring blocks.
constexpr unsigned kMaxWarps = 32;
constexpr unsigned kJobsAhead = 3;

// Shared memory of one warp; a uniform row for all of them comes first.
struct WarpSmem {
  RowTables tables;
  alignas(16) u8 ring[StreamRoom::kSmall];
  DecodeJob jobs[kJobsAhead];
  DecodeReport report;
};
static_assert(sizeof(WarpSmem) == 7 * kRowBytes, "32 of them fill a multiprocessor");

template <int kWidth, class Access>
__device__ __forceinline__ BlockResult decode_block(const u8* payload, const DeviceEntry& e, u32 n,
                                                    DType dtype, const Access& dst, u64 pos,
                                                    const StreamRoom& room, u32 uniform) {
  if constexpr (kWidth <= 2)
    if (e.is(Codec::kEntropy) && e.plane_modes == mode_bits(PlaneMode::kBytes, kWidth - 1))
      return decode_byte_block<kWidth>(payload, e.num_bytes, n, has_sign_bit(dtype), dst, pos, room,
                                       uniform);
  return decode_other<kWidth>(payload, e, n, dtype, dst, pos, room);
}

template <class Access, int kWidth>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize, 1)
    decode_entropy_bytes_kernel(const __grid_constant__ Work work) {
  extern __shared__ __align__(kRowBytes) u8 shared[];
  __shared__ unsigned long long first_error;
  const unsigned warp = warp_id(), num_warps = blockDim.x / kWarpSize;
  WarpSmem& smem = reinterpret_cast<WarpSmem*>(shared + kRowBytes)[warp];
  const u32 uniform = kept_shared_address(shared);
  const StreamRoom room{shared_address(smem.tables.first), shared_address(smem.tables.rows),
                        shared_address(smem.ring)};
  if (lane_id() == 0) smem.report = {};
  if (threadIdx.x == 0) first_error = 0;
  if (warp == 0) fill_uniform_row(uniform);
  if (work.items == nullptr) let_next_kernel_start();  // the verdict
  if (work.items != nullptr || work.segments != nullptr) wait_for_previous_kernel();
  __syncthreads();
  const u64 num_tickets = ticket_end(work);
  // The first lanes open one of the warp's next blocks each: one wait for the index serves all.
  const u64 step = u64{gridDim.x} * num_warps;
  unsigned next = kJobsAhead;
  for (u64 ticket = u64{blockIdx.x} * num_warps + warp;; ticket += step) {
    if (next == kJobsAhead) {
      if (lane_id() < kJobsAhead) {
        const DecodeJob mine = open_decode_job(work, ticket + lane_id() * step, num_tickets);
        smem.jobs[lane_id()] = mine;
        if (mine.exists && mine.reason == kReasonNone && lane_id() != 0)
          prefetch_block<kWidth, 4>(mine);
      }
      next = 0;
      __syncwarp();
    }
    const DecodeJob& job = smem.jobs[next++];
    if (job.ends) break;
    Reason reason = job.reason;
    if (job.exists && reason == kReasonNone) {
      const Access dst = access_item<Access>(work, job.w.item);
      u8* piece = in_one_piece(dst, job.pos, u64{job.n} * kWidth);
      BlockResult r;
      if (std::is_same_v<Access, DirectAccess> || piece != nullptr)
        r = decode_block<kWidth>(job.payload, job.entry, job.n, work.dtype, DirectAccess{piece}, 0,
                                 room, uniform);
      else
        r = decode_block<kWidth>(job.payload, job.entry, job.n, work.dtype, dst, job.pos, room,
                                 uniform);
      reason = check_sum(r.reason, warp_sum(r.sum), job.entry);
    }
    if (lane_id() == 0) smem.report.template add<Access>(work, job, ticket, reason);
    __syncwarp();
  }
  leave_first_error<Access>(work, smem.report, first_error);
}

template <class Access, int kWidth>
cudaError_t launch(const KernelCall& call) {
  const auto kernel = decode_entropy_bytes_kernel<Access, kWidth>;
  StageRoom room;
  if (const cudaError_t error = find_stage_room(kernel, room); error != cudaSuccess) return error;
  room.num_bytes -= kRowBytes;
  const unsigned num_warps = warps_that_share((call.num_blocks + call.num_sms - 1) / call.num_sms,
                                              room.stages_of(sizeof(WarpSmem), kMaxWarps));
  u64 num_ctas = (call.num_blocks + num_warps - 1) / num_warps;
  if (num_ctas > call.num_sms) num_ctas = call.num_sms;
  const auto smem_bytes = static_cast<u32>(kRowBytes + num_warps * sizeof(WarpSmem));
  return launch_decoder<Access>(call, kernel, num_ctas, num_warps * kWarpSize, smem_bytes);
}

}  // namespace

cudaError_t launch_decode_entropy_bytes(const KernelCall& call) {
  return with_access_and_width(
      call, [&]<class Access, int kWidth>() { return launch<Access, kWidth>(call); });
}

}  // namespace snug::cuda
