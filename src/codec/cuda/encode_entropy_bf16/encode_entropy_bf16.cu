// The encode kernel of entropy-coded BF16. A warp encodes a block.
#include <cuda_runtime.h>

#include <type_traits>

#include "codec/cuda/encode_entropy_bf16/bf16_block.cuh"
#include "codec/cuda/frame/encode_verdict.cuh"
#include "codec/cuda/select_kernel.h"
#include "gpu/launch.h"

namespace snug::cuda {
namespace {

constexpr unsigned kMaxWarps = 16;  // of a multiprocessor

// Codes a block, finds its place and writes it; returns its entry. `written` is false where the
// payload did not fit.
template <class Access>
__device__ __forceinline__ DeviceEntry encode_and_write(const Work& work, const Access& src,
                                                        u64 pos, EncodeSmem& smem,
                                                        CodedBlock& block, u8* scratch,
                                                        bool& written) {
  const EncodeJob& job = block.job;
  Encoded e{};
  const bool coded = code_bf16_block(work, src, pos, smem, block, scratch, e);
  const u64 units = place_block(work.sizes + job.w.first_block, job.block, e.entry.num_bytes / 16,
                                job.payload_start() / 16);
  const Place place(job, e.entry, units);
  const u64 sum =
      coded ? write_coded(work, src, pos, block, e, scratch, place)
            : write_block_any<2>(work, src, pos, job.n, e, scratch, place.payload, place.fits);
  e.entry.checksum = checksum_finish(warp_sum(sum), e.entry.num_bytes);
  written = place.fits;
  return e.entry;
}

// Warps that start together stay in phase: all load, then all code, then all write. Where they have
// many blocks, waves of thread blocks start with a delay.
struct StaggeredStart {
  u32 wave_ctas, clocks;

  __device__ __forceinline__ void wait() const {
    if (clocks == 0) return;
    const i64 start = clock64(), delay = i64{blockIdx.x / wave_ctas} * i64{clocks};
    while (clock64() - start < delay) __nanosleep(200);
    __syncwarp();
  }
};

template <class Access>
__global__ void __launch_bounds__(kWarpSize, kMaxWarps)
    encode_entropy_bf16_kernel(const __grid_constant__ Work work, const StaggeredStart start) {
  extern __shared__ __align__(1024) u8 shared[];
  const unsigned lane = lane_id();
  if (work.items == nullptr) let_next_kernel_start();  // the verdict
  wait_for_previous_kernel();
  start.wait();
  const u64 total = num_tickets(work);
  u8* scratch = work.scratch + blockIdx.x * work.scratch_bytes;
  auto& smem = *reinterpret_cast<EncodeSmem*>(shared);
  auto& block = *reinterpret_cast<CodedBlock*>(shared + sizeof(EncodeSmem));
  EncodeJob& job = block.job;
  EncodeReport report;
  for (;;) {
    const u64 ticket = warp_ticket(work.ticket);
    const bool ends = ticket >= total || upstream_failed(work);
    // The report is lane 0's alone: the condition must not depend on that of other lanes.
    if (lane == 0 && report.done != 0 && (ends || report.is_of_another_item(work, ticket)))
      report.flush(work, job, access_item<Access>(work, job.w.item));
    if (ends) return;
    if (lane == 0) job = make_encode_job(work, ticket);
    __syncwarp();
    const Access src = access_item<Access>(work, job.w.item);
    if (job.num_blocks == 0) {
      if (lane == 0) finish_frame(work, job, src);
      __syncwarp();
      continue;
    }
    u8* piece = in_one_piece(src, job.pos, 2 * u64{job.n});
    DeviceEntry entry;
    bool written;
    if (std::is_same_v<Access, DirectAccess> || piece != nullptr)
      entry = encode_and_write(work, DirectAccess{piece}, 0, smem, block, scratch, written);
    else
      entry = encode_and_write(work, src, job.pos, smem, block, scratch, written);
    if (lane == 0) report.add(work, job, entry, written);
    __syncwarp();
  }
}

u32 encode_smem_bytes(int log2_block) {
  return static_cast<u32>(sizeof(EncodeSmem)) + coded_block_bytes(log2_block);
}

template <class Access>
cudaError_t launch(const KernelCall& call) {
  // With less than two blocks a warp the wait at the start costs more than it gains.
  const StaggeredStart start{call.num_sms, call.num_blocks >= 2 * call.num_slots ? 4000u : 0u};
  return launch_encoder<Access>(call, encode_entropy_bf16_kernel<Access>, call.num_slots, kWarpSize,
                                encode_smem_bytes(static_cast<int>(call.work.log2_block)), start);
}

}  // namespace

// As many warps as shared memory holds, or few where each needs a large scratch.
EncodeSlots slots_bf16(DType, Codec, int log2_block) {
  return {slots_that_fit(encode_smem_bytes(log2_block), log2_block > 14 ? 4 : kMaxWarps),
          block_scratch(2, log2_block)};
}

cudaError_t launch_encode_entropy_bf16(const KernelCall& call) {
  return call.direct ? launch<DirectAccess>(call) : launch<ScatteredAccess>(call);
}

}  // namespace snug::cuda
