// The encode kernel for everything that the other two do not take: entropy-coded frames of all
// types but BF16, and fixed or raw frames of large blocks. A warp encodes a block.
#include <cuda_runtime.h>

#include <type_traits>

#include "codec/cuda/encode_entropy_any/encode_block.cuh"
#include "codec/cuda/frame/encode_verdict.cuh"
#include "codec/cuda/select_kernel.h"
#include "gpu/launch.h"

namespace snug::cuda {
namespace {

// Warps of a multiprocessor. More of them are slower for wide elements: their scratch memory would
// no longer fit into the cache.
constexpr unsigned max_warps_per_sm(unsigned width) { return width > 2 ? 16 : 24; }

// A block until it is written.
struct alignas(16) BlockInHand {
  EncodeJob job;
  Encoded coded;
};

// In shared memory: the coding loops need the registers.
struct alignas(16) WarpState {
  BlockInHand blocks[2];
  EncodeReport report;
};

// Calls do_work(access, pos) with the fastest access to the block.
template <int kWidth, class Access, class DoWork>
__device__ __forceinline__ void with_access(const Work& work, const EncodeJob& job,
                                            DoWork do_work) {
  const Access src = access_item<Access>(work, job.w.item);
  u8* piece = in_one_piece(src, job.pos, u64{job.n} * kWidth);
  if constexpr (std::is_same_v<Access, DirectAccess>) {
    do_work(DirectAccess{piece}, 0);
  } else {
    if (piece != nullptr)
      do_work(DirectAccess{piece}, 0);
    else
      do_work(src, job.pos);
  }
}

// Codes a block and publishes its size.
template <int kWidth, class Access>
__device__ __forceinline__ void code_and_publish(const Work& work, BlockInHand& block,
                                                 PlaneSmem* smem, u8* scratch) {
  const EncodeJob& job = block.job;
  with_access<kWidth, Access>(work, job, [&](const auto& src, u64 pos) {
    const Encoded e = encode_block_any<kWidth>(work, src, pos, job.n, smem, scratch);
    if (lane_id() == 0) {
      block.coded = e;
      publish_block(work.sizes + job.w.first_block, job.block, e.entry.num_bytes / 16,
                    job.payload_start() / 16);
    }
  });
  __syncwarp();
}

// Finds the place of a coded block and writes it there.
template <int kWidth, class Access>
__device__ __forceinline__ void place_and_write(const Work& work, BlockInHand& block,
                                                const u8* scratch, EncodeReport& report) {
  const EncodeJob& job = block.job;
  const Encoded& e = block.coded;
  const u64 units = find_place(work.sizes + job.w.first_block, job.block, e.entry.num_bytes / 16,
                               job.payload_start() / 16);
  const u64 offset = units * 16;
  const bool written = job.fits && offset + e.entry.num_bytes <= job.w.item.frame_bytes;
  u8* payload = static_cast<u8*>(job.w.item.frame) + offset;
  u64 sum = 0;
  with_access<kWidth, Access>(work, job, [&](const auto& src, u64 pos) {
    sum = write_block_any<kWidth>(work, src, pos, job.n, e, scratch, payload, written);
  });
  sum = warp_sum(sum);
  if (lane_id() == 0) {
    DeviceEntry entry = e.entry;
    entry.offset = offset;
    entry.checksum = checksum_finish(sum, entry.num_bytes);
    report.add(work, job, entry, written);
  }
  __syncwarp();
}

// A warp writes a block after it has coded the next one: by then the blocks before it are coded,
// and look-back does not wait.
template <class Access, int kWidth>
__global__ void __launch_bounds__(kWarpSize, max_warps_per_sm(kWidth))
    encode_entropy_any_kernel(const __grid_constant__ Work work) {
  extern __shared__ __align__(1024) u8 shared[];
  if (work.items == nullptr) let_next_kernel_start();  // the verdict
  wait_for_previous_kernel();
  const u64 total = num_tickets(work);
  const unsigned lane = lane_id();
  u8* scratch = work.scratch + blockIdx.x * work.scratch_bytes;
  auto* smem = reinterpret_cast<PlaneSmem*>(shared);
  auto& state = *reinterpret_cast<WarpState*>(smem + 1);
  if (lane == 0) state.report = {};
  __syncwarp();
  bool has_coded = false;
  for (unsigned now = 0;;) {
    const u64 ticket = warp_ticket(work.ticket);
    const bool ends = ticket >= total || upstream_failed(work);
    BlockInHand &block = state.blocks[now], &before = state.blocks[1 - now];
    if (!ends) {
      if (lane == 0) block.job = make_encode_job(work, ticket);
      __syncwarp();
      if (block.job.num_blocks == 0) {
        if (lane == 0) finish_frame(work, block.job, access_item<Access>(work, block.job.w.item));
        __syncwarp();
        continue;
      }
      code_and_publish<kWidth, Access>(work, block, smem, scratch + now * (work.scratch_bytes / 2));
    }
    if (has_coded) {
      place_and_write<kWidth, Access>(work, before, scratch + (1 - now) * (work.scratch_bytes / 2),
                                      state.report);
      if (lane == 0 && (ends || block.job.w.idx != before.job.w.idx))
        state.report.flush(work, before.job, access_item<Access>(work, before.job.w.item));
      __syncwarp();
    }
    if (ends) return;
    has_coded = true;
    now = 1 - now;
  }
}

constexpr auto kSmemBytes = static_cast<u32>(sizeof(PlaneSmem) + sizeof(WarpState));

}  // namespace

// As many warps as shared memory holds, or few where each needs a large scratch: one for the block
// that is coded, one for the block that is not written yet.
EncodeSlots slots_any(DType dtype, Codec codec, int log2_block) {
  const unsigned most = log2_block > 14 ? 4 : max_warps_per_sm(width_of(dtype));
  return {slots_that_fit(kSmemBytes, most),
          codec == Codec::kRaw ? 0 : 2 * block_scratch(width_of(dtype), log2_block)};
}

cudaError_t launch_encode_entropy_any(const KernelCall& call) {
  return with_access_and_width(call, [&]<class Access, int kWidth>() {
    return launch_encoder<Access>(call, encode_entropy_any_kernel<Access, kWidth>, call.num_slots,
                                  kWarpSize, kSmemBytes);
  });
}

}  // namespace snug::cuda
