// The encode kernel of BF16 tensors with the entropy codec: each block has a warp.
#include <cuda_runtime.h>

#include <type_traits>

#include "codec/cuda/encode_entropy_bf16/bf16_block.cuh"
#include "codec/cuda/frame/encode_verdict.cuh"
#include "codec/cuda/kernels.cuh"
#include "gpu/launch.h"

namespace snug::cuda {
namespace {

constexpr int kMaxWarps = 16;  // of a multiprocessor

// Codes a block, finds its place and writes it. The entry's checksum is filled in; `written` is
// false where the payload did not fit.
template <class Access>
__device__ __forceinline__ DeviceEntry encode_and_write(const Work& work, const Access& src,
                                                        std::uint64_t pos, EncodeSmem& smem,
                                                        CodedBlock& block, std::uint8_t* scratch,
                                                        bool& written) {
  const EncodeJob& job = block.job;
  Encoded e{};
  const bool coded = code_block(work, src, pos, smem, block, scratch, e);
  const std::uint64_t units = place_block(work.sizes + job.w.first_block, job.block,
                                          e.entry.num_bytes / 16, job.payload_start() / 16);
  const Place place(job, e.entry, units);
  const std::uint64_t sum =
      coded ? write_coded(work, src, pos, block, e, scratch, place)
            : write_block_any<2>(work, src, pos, job.n, e, scratch, place.payload, place.fits);
  e.entry.checksum = checksum_finish(warp_sum(sum), e.entry.num_bytes);
  written = place.fits;
  return e.entry;
}

// Warps that start together go on together: all load, then all code, then all write.
// Where they have many blocks, the waves of thread blocks start one after the other.
struct StaggeredStart {
  std::uint32_t wave_ctas, clocks;

  __device__ __forceinline__ void wait() const {
    if (clocks == 0) return;
    const std::int64_t start = clock64(),
                       delay = std::int64_t{blockIdx.x / wave_ctas} * std::int64_t{clocks};
    while (clock64() - start < delay) __nanosleep(200);
    __syncwarp();
  }
};

template <class Access>
__global__ void __launch_bounds__(kWarpSize, kMaxWarps)
    encode_palette_kernel(const __grid_constant__ Work work, const StaggeredStart start) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  const unsigned lane = lane_id();
  if (work.items == nullptr) let_next_kernel_start();  // the verdict
  wait_for_previous_kernel();
  start.wait();
  const std::uint64_t total = num_tickets(work);
  std::uint8_t* scratch = work.scratch + blockIdx.x * work.scratch_bytes;
  auto& smem = *reinterpret_cast<EncodeSmem*>(shared);
  auto& block = *reinterpret_cast<CodedBlock*>(shared + sizeof(EncodeSmem));
  EncodeJob& job = block.job;
  Tally tally;
  for (;;) {
    const std::uint64_t ticket = warp_ticket(work.ticket);
    const bool ends = ticket >= total || upstream_failed(work);
    // The tally is lane 0's alone: the others must not be asked, or they would go on without it.
    if (lane == 0 && tally.done != 0 && (ends || tally.is_of_another_item(work, ticket)))
      tally.flush(work, job, access_item<Access>(work, job.w.item));
    if (ends) return;
    if (lane == 0) job = make_encode_job(work, ticket);
    __syncwarp();
    const Access src = access_item<Access>(work, job.w.item);
    if (job.num_blocks == 0) {
      if (lane == 0) finish_frame(work, job, src);
      __syncwarp();
      continue;
    }
    std::uint8_t* piece = in_one_piece(src, job.pos, 2 * std::uint64_t{job.n});
    DeviceEntry entry;
    bool written;
    if (std::is_same_v<Access, DirectAccess> || piece != nullptr)
      entry = encode_and_write(work, DirectAccess{piece}, 0, smem, block, scratch, written);
    else
      entry = encode_and_write(work, src, job.pos, smem, block, scratch, written);
    if (lane == 0) tally.add(work, job, entry, written);
    __syncwarp();
  }
}

std::uint32_t encode_smem_bytes(int log2_block) {
  return static_cast<std::uint32_t>(sizeof(EncodeSmem)) + coded_block_bytes(log2_block);
}

template <class Access>
cudaError_t launch_palette(const Work& work, std::uint64_t slots, StaggeredStart start,
                           cudaStream_t stream) {
  const cudaError_t error =
      launch_kernel(encode_palette_kernel<Access>,
                    {slots, kWarpSize, encode_smem_bytes(static_cast<int>(work.log2_block)), stream,
                     Start::kEarly},
                    work, start);
  return error == cudaSuccess ? launch_encode_verdict<Access>(work, slots, stream) : error;
}

}  // namespace

bool uses_palette_encode(DType dtype, Codec codec) {
  return dtype == DType::kBF16 && codec == Codec::kEntropy;
}

// What the shared memory of a multiprocessor holds, or few where each needs a large scratch.
int palette_warps_per_sm(int log2_block) {
  constexpr std::uint32_t kSharedBytes = 228 * 1024, kReserved = 1024;
  const auto fit = static_cast<int>(kSharedBytes / (encode_smem_bytes(log2_block) + kReserved));
  const int most = log2_block > 14 ? 4 : kMaxWarps;
  return fit < most ? fit : most;
}

cudaError_t launch_encode_palette(const Work& work, bool direct, std::uint64_t num_blocks,
                                  int num_sms, cudaStream_t stream) {
  const std::uint64_t slots =
      encode_slots(work.dtype, work.codec, static_cast<int>(work.log2_block), num_blocks, num_sms);
  // At least two blocks a warp: less, and the wait at the start costs more than it gains.
  const StaggeredStart start{static_cast<std::uint32_t>(num_sms),
                             num_blocks >= 2 * slots ? 4000u : 0u};
  return direct ? launch_palette<DirectAccess>(work, slots, start, stream)
                : launch_palette<ScatteredAccess>(work, slots, start, stream);
}

}  // namespace snug::cuda
