// The encode kernel that gives each block a warp: the entropy codec, and blocks
// too large for the other one.
#include <cuda_runtime.h>

#include <type_traits>

#include "cuda/encode_block.cuh"
#include "cuda/encode_verdict.cuh"
#include "cuda/kernels.cuh"
#include "cuda/prepared_launch.cuh"

namespace snug::cuda {
namespace {

// Warps of a multiprocessor: more of them slow wide elements down, whose scratch
// memory then no longer stays in the cache.
constexpr int max_warps_per_sm(unsigned width) { return width > 2 ? 16 : 24; }

// Codes the block at `pos` of src, finds its place and writes it. The entry's
// checksum is filled in; `written` is false where the payload did not fit.
template <int kWidth, class Access>
__device__ __forceinline__ DeviceEntry encode_and_write(const Work& work, const EncodeJob& job,
                                                        const Access& src, std::uint64_t pos,
                                                        PlaneSmem* smem, std::uint8_t* scratch,
                                                        bool& written) {
  Encoded e = encode_block_any<kWidth>(work, src, pos, job.n, smem, scratch);
  fetch_raw_again<kWidth>(src, pos, job.n, e);
  const std::uint64_t units = place_block(work.sizes + job.w.first_block, job.block,
                                          e.entry.num_bytes / 16, job.payload_start() / 16);
  e.entry.offset = units * 16;
  written = job.fits && e.entry.offset + e.entry.num_bytes <= job.w.item.frame_bytes;
  std::uint8_t* payload = static_cast<std::uint8_t*>(job.w.item.frame) + e.entry.offset;
  const std::uint64_t sum =
      write_block_any<kWidth>(work, src, pos, job.n, e, scratch, payload, written);
  e.entry.checksum = checksum_finish(warp_sum64(sum), e.entry.num_bytes);
  return e.entry;
}

template <class Access, int kWidth>
__global__ void __launch_bounds__(kWarp, max_warps_per_sm(kWidth))
    encode_kernel(const __grid_constant__ Work work) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  const unsigned lane = lane_id();
  if (work.items == nullptr) let_next_kernel_start();  // the verdict
  wait_for_preparation();
  const std::uint64_t total = num_tickets(work);
  std::uint8_t* scratch = work.scratch + blockIdx.x * work.scratch_bytes;
  auto* smem = reinterpret_cast<PlaneSmem*>(shared);
  EncodeJob& job = *reinterpret_cast<EncodeJob*>(smem + 1);
  Tally tally;
  for (;;) {
    const std::uint64_t ticket = warp_ticket(work.ticket);
    const bool ends = ticket >= total || upstream_failed(work);
    if (ends || tally.is_of_another_item(work, ticket)) {
      if (lane == 0 && tally.done != 0)
        tally.flush(work, job, access_item<Access>(work, job.w.item));
      __syncwarp();
    }
    if (ends) return;
    if (lane == 0) job = make_encode_job(work, ticket);
    __syncwarp();
    const Access src = access_item<Access>(work, job.w.item);
    if (job.num_blocks == 0) {
      if (lane == 0) finish_frame(work, job, src);
      __syncwarp();
      continue;
    }
    std::uint8_t* piece = in_one_piece(src, job.pos, std::uint64_t{job.n} * kWidth);
    DeviceEntry entry;
    bool written;
    if (std::is_same_v<Access, DirectAccess> || piece != nullptr)
      entry = encode_and_write<kWidth>(work, job, DirectAccess{piece}, 0, smem, scratch, written);
    else
      entry = encode_and_write<kWidth>(work, job, src, job.pos, smem, scratch, written);
    if (lane == 0) tally.add(work, job, entry, written);
    __syncwarp();
  }
}

constexpr std::uint32_t kSmemBytes = sizeof(PlaneSmem) + sizeof(EncodeJob);

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
  const cudaError_t error = launch_prepared(kernel, slots, kWarp, kSmemBytes, stream, work);
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
  return sections_room(width_of(dtype), log2_block) + words_scratch(width_of(dtype), log2_block) +
         escapes_scratch(width_of(dtype), log2_block);
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
