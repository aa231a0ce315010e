// The encode kernel that gives each block a warp: the entropy codec, and blocks
// too large for the other one.
#include <cuda_runtime.h>

#include <type_traits>

#include "codec/cuda/encode_entropy_any/encode_block.cuh"
#include "codec/cuda/frame/encode_verdict.cuh"
#include "codec/cuda/kernels.cuh"
#include "gpu/launch.h"

namespace snug::cuda {
namespace {

// Warps of a multiprocessor: more of them slow wide elements down, whose scratch
// memory then no longer stays in the cache.
constexpr int max_warps_per_sm(unsigned width) { return width > 2 ? 16 : 24; }

// A block that a warp works on: what it became, until it is written.
struct alignas(16) BlockInHand {
  EncodeJob job;
  Encoded coded;
};

// Not in registers: the coding loops need them.
struct alignas(16) WarpState {
  BlockInHand blocks[2];
  Tally tally;
};

// Calls work(access, pos) with the quickest way to the block.
template <int kWidth, class Access, class DoWork>
__device__ __forceinline__ void with_access(const Work& work, const EncodeJob& job,
                                            DoWork do_work) {
  const Access src = access_item<Access>(work, job.w.item);
  std::uint8_t* piece = in_one_piece(src, job.pos, std::uint64_t{job.n} * kWidth);
  if constexpr (std::is_same_v<Access, DirectAccess>) {
    do_work(DirectAccess{piece}, 0);
  } else {
    if (piece != nullptr)
      do_work(DirectAccess{piece}, 0);
    else
      do_work(src, job.pos);
  }
}

// Codes a block and tells the others its size.
template <int kWidth, class Access>
__device__ __forceinline__ void code_block(const Work& work, BlockInHand& block, PlaneSmem* smem,
                                           std::uint8_t* scratch) {
  const EncodeJob& job = block.job;
  with_access<kWidth, Access>(work, job, [&](const auto& src, std::uint64_t pos) {
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
__device__ __forceinline__ void write_block(const Work& work, BlockInHand& block,
                                            const std::uint8_t* scratch, Tally& tally) {
  const EncodeJob& job = block.job;
  const Encoded& e = block.coded;
  const std::uint64_t units = find_place(work.sizes + job.w.first_block, job.block,
                                         e.entry.num_bytes / 16, job.payload_start() / 16);
  const std::uint64_t offset = units * 16;
  const bool written = job.fits && offset + e.entry.num_bytes <= job.w.item.frame_bytes;
  std::uint8_t* payload = static_cast<std::uint8_t*>(job.w.item.frame) + offset;
  std::uint64_t sum = 0;
  with_access<kWidth, Access>(work, job, [&](const auto& src, std::uint64_t pos) {
    sum = write_block_any<kWidth>(work, src, pos, job.n, e, scratch, payload, written);
  });
  sum = warp_sum(sum);
  if (lane_id() == 0) {
    DeviceEntry entry = e.entry;
    entry.offset = offset;
    entry.checksum = checksum_finish(sum, entry.num_bytes);
    tally.add(work, job, entry, written);
  }
  __syncwarp();
}

// A warp writes a block when it has coded the next one: by then the blocks before it are
// coded too, and nobody waits for its place.
template <class Access, int kWidth>
__global__ void __launch_bounds__(kWarpSize, max_warps_per_sm(kWidth))
    encode_kernel(const __grid_constant__ Work work) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  if (work.items == nullptr) let_next_kernel_start();  // the verdict
  wait_for_previous_kernel();
  const std::uint64_t total = num_tickets(work);
  const unsigned lane = lane_id();
  std::uint8_t* scratch = work.scratch + blockIdx.x * work.scratch_bytes;
  auto* smem = reinterpret_cast<PlaneSmem*>(shared);
  auto& state = *reinterpret_cast<WarpState*>(smem + 1);
  if (lane == 0) state.tally = {};
  __syncwarp();
  bool has_coded = false;
  for (unsigned now = 0;;) {
    const std::uint64_t ticket = warp_ticket(work.ticket);
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
      code_block<kWidth, Access>(work, block, smem, scratch + now * (work.scratch_bytes / 2));
    }
    if (has_coded) {
      write_block<kWidth, Access>(work, before, scratch + (1 - now) * (work.scratch_bytes / 2),
                                  state.tally);
      if (lane == 0 && (ends || block.job.w.idx != before.job.w.idx))
        state.tally.flush(work, before.job, access_item<Access>(work, before.job.w.item));
      __syncwarp();
    }
    if (ends) return;
    has_coded = true;
    now = 1 - now;
  }
}

constexpr auto kSmemBytes = static_cast<std::uint32_t>(sizeof(PlaneSmem) + sizeof(WarpState));

// Warps of one multiprocessor: what its shared memory holds, or few where each
// needs a large scratch.
int warps_per_sm(DType dtype, int log2_block) {
  constexpr std::uint32_t kSharedBytes = 228 * 1024, kReserved = 1024;
  const auto fit = static_cast<int>(kSharedBytes / (kSmemBytes + kReserved));
  const int most = log2_block > 14 ? 4 : max_warps_per_sm(width_of(dtype));
  return fit < most ? fit : most;
}

template <class Access>
cudaError_t launch_warps(const Work& work, std::uint64_t slots, cudaStream_t stream) {
  const auto kernel = width_of(work.dtype) == 1   ? encode_kernel<Access, 1>
                      : width_of(work.dtype) == 2 ? encode_kernel<Access, 2>
                      : width_of(work.dtype) == 4 ? encode_kernel<Access, 4>
                                                  : encode_kernel<Access, 8>;
  const cudaError_t error =
      launch_kernel(kernel, {slots, kWarpSize, kSmemBytes, stream, Start::kEarly}, work);
  return error == cudaSuccess ? launch_encode_verdict<Access>(work, slots, stream) : error;
}

}  // namespace

std::uint64_t encode_slots(DType dtype, Codec codec, int log2_block, std::uint64_t num_blocks,
                           int num_sms) {
  const int warps = uses_palette_encode(dtype, codec) ? palette_warps_per_sm(log2_block)
                                                      : warps_per_sm(dtype, log2_block);
  const auto most = static_cast<std::uint64_t>(num_sms) * static_cast<unsigned>(warps);
  return num_blocks == 0 ? 1 : num_blocks < most ? num_blocks : most;
}

std::uint64_t encode_scratch_bytes(DType dtype, Codec codec, int log2_block) {
  if (codec == Codec::kRaw || uses_wide_encode(dtype, codec, log2_block)) return 0;
  // Of two blocks, where one is written after the other is coded.
  return (uses_palette_encode(dtype, codec) ? 1 : 2) * block_scratch(width_of(dtype), log2_block);
}

cudaError_t launch_encode(const Work& work, bool direct, std::uint64_t num_blocks, int num_sms,
                          cudaStream_t stream) {
  num_blocks = num_blocks == 0 ? 1 : num_blocks;
  const auto log2_block = static_cast<int>(work.log2_block);
  if (uses_wide_encode(work.dtype, work.codec, log2_block))
    return launch_encode_wide(work, direct, num_blocks, num_sms, stream);
  if (uses_palette_encode(work.dtype, work.codec))
    return launch_encode_palette(work, direct, num_blocks, num_sms, stream);
  const std::uint64_t slots = encode_slots(work.dtype, work.codec, log2_block, num_blocks, num_sms);
  return direct ? launch_warps<DirectAccess>(work, slots, stream)
                : launch_warps<ScatteredAccess>(work, slots, stream);
}

}  // namespace snug::cuda
