// The decode kernel for entropy-coded frames of types that have an exponent plane: BF16, FP32,
// FP64. Each block of a frame gets a warp. It restores any frame.
#include <cuda_runtime.h>

#include <type_traits>

#include "cuda/decode_any.cuh"
#include "cuda/decode_frame.cuh"
#include "cuda/decode_palette.cuh"
#include "cuda/decode_verdict.cuh"
#include "cuda/kernels.cuh"
#include "cuda/prepared_launch.cuh"

namespace snug::cuda {
namespace {

// One thread block a multiprocessor, so that its warps work on blocks that are neighbours in
// memory.
constexpr unsigned kDecodeWarps = 32;
constexpr unsigned kJobsAhead = 3;

// Shared memory of one warp.
struct WarpSmem {
  SlotTable slots;
  union {
    PaletteRoom<2, false> bf16;
    PaletteRoom<4, false> f32;
    struct {
      std::uint8_t bytes[StreamRoom::kBytes];
      alignas(16) std::uint8_t ring[StreamRoom::kSmall];
    } stream;
  };
  DecodeJob jobs[kJobsAhead];
  DecodeTally tally;
};

template <int kWidth, bool kAhead, class Access>
__device__ __forceinline__ BlockResult decode_block(const std::uint8_t* payload,
                                                    const DeviceEntry& e, std::uint32_t n,
                                                    DType dtype, const Access& dst,
                                                    std::uint64_t pos, std::uint32_t slots,
                                                    const WarpSmem& smem) {
  BlockResult result{};
  if constexpr (kWidth == 2 || kWidth == 4)
    if (is_float(dtype) && e.codec == static_cast<unsigned>(Codec::kEntropy) &&
        e.plane_modes == 3u << (2 * kWidth - 2))
      return decode_palette_block<kWidth, kAhead>(payload, e.num_bytes, n, dst, pos, slots);
  if constexpr (kWidth == 2) {
    if (dtype == DType::kBF16 && e.codec == static_cast<unsigned>(Codec::kFixed) &&
        e.plane_modes == 0) {
      result.reason = decode_fixed_bf16<WarpTeam>(payload, e, n, dst, pos, result.sum);
      return result;
    }
  }
  if (e.codec == static_cast<unsigned>(Codec::kRaw))
    result.reason = decode_raw<WarpTeam>(payload, e, n, kWidth, dst, pos, result.sum);
  else if (e.codec == static_cast<unsigned>(Codec::kConstant))
    result.reason = decode_constant<WarpTeam>(payload, e, n, kWidth, dst, pos, result.sum);
  else
    result = decode_any<kWidth>(payload, e, n, dtype, dst, pos,
                                StreamRoom{slots, shared_address(smem.stream.bytes),
                                           shared_address(smem.stream.ring)});
  return result;
}

// Brings what a warp reads first of a block into the cache: its start, and where
// the coded plane is.
__device__ __forceinline__ void prefetch_block(const DecodeJob& job, unsigned width) {
  const auto prefetch = [&](std::uint32_t at) {
    if (at < job.entry.num_bytes) asm volatile("prefetch.global.L2 [%0];" ::"l"(job.payload + at));
  };
  const auto section = (width - 1) * static_cast<std::uint32_t>(align16(job.n));
  for (std::uint32_t line = 0; line < 8; ++line) prefetch(128 * line);
  for (std::uint32_t line = 0; line < 8; ++line) prefetch(section + 128 * line);
}

template <class Access, int kWidth, bool kAhead>
__global__ void __launch_bounds__(kDecodeWarps* kWarp, 1)
    decode_kernel(const __grid_constant__ Work work) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  __shared__ unsigned long long first_error;
  const unsigned warp = threadIdx.x / kWarp, num_warps = blockDim.x / kWarp;
  WarpSmem& smem = reinterpret_cast<WarpSmem*>(shared)[warp];
  const std::uint32_t slots = kept_shared_address(&smem.slots);
  if (lane_id() == 0) smem.tally = {};
  if (threadIdx.x == 0) first_error = 0;
  if (work.items == nullptr) let_next_kernel_start();  // the verdict
  if (work.items != nullptr || work.segments != nullptr) wait_for_preparation();
  const std::uint64_t num_tickets = last_ticket(work);
  // The first lanes each open one of the warp's next blocks and ask for the start of
  // its coded plane: waits for index and section come once for several blocks.
  const std::uint64_t step = std::uint64_t{gridDim.x} * num_warps;
  unsigned next = kJobsAhead;
  for (std::uint64_t ticket = std::uint64_t{blockIdx.x} * num_warps + warp;; ticket += step) {
    if (next == kJobsAhead) {
      if (lane_id() < kJobsAhead) {
        const DecodeJob mine = open_decode_job(work, ticket + lane_id() * step, num_tickets);
        smem.jobs[lane_id()] = mine;
        if (mine.exists && mine.reason == kReasonNone && lane_id() != 0) prefetch_block(mine, kWidth);
      }
      next = 0;
      __syncwarp();
    }
    const DecodeJob& job = smem.jobs[next++];
    if (job.ends) break;
    Reason reason = job.reason;
    if (job.exists && reason == kReasonNone) {
      const Access dst = access_item<Access>(work, job.w.item);
      std::uint8_t* piece = in_one_piece(dst, job.pos, std::uint64_t{job.n} * kWidth);
      BlockResult r;
      if (std::is_same_v<Access, DirectAccess> || piece != nullptr)
        r = decode_block<kWidth, kAhead>(job.payload, job.entry, job.n, work.dtype, DirectAccess{piece}, 0,
                                 slots, smem);
      else
        r = decode_block<kWidth, kAhead>(job.payload, job.entry, job.n, work.dtype, dst, job.pos, slots,
                                 smem);
      reason = check_sum(r.reason, warp_sum64(r.sum), job.entry);
    }
    if (lane_id() == 0) smem.tally.template add<Access>(work, job, ticket, reason);
    __syncwarp();
  }
  if (lane_id() == 0) smem.tally.template flush<Access>(work);
  __syncthreads();
  if (lane_id() == 0 && smem.tally.first_error != 0)
    atomicMax(&first_error, smem.tally.first_error);
  __syncthreads();
  if (threadIdx.x == 0) work.errors[blockIdx.x] = first_error;
}

}  // namespace

template <class Access>
static cudaError_t launch(const Work& work, std::uint64_t num_blocks, int num_sms,
                          cudaStream_t stream) {
  // As many warps as share the blocks evenly.
  const std::uint64_t each = (num_blocks + num_sms - 1) / num_sms;  // multiprocessor
  const std::uint64_t rounds = (each + kDecodeWarps - 1) / kDecodeWarps;
  const auto num_warps = static_cast<unsigned>(each == 0 ? 1 : (each + rounds - 1) / rounds);
  std::uint64_t num_ctas = (num_blocks + num_warps - 1) / num_warps;
  if (num_ctas > static_cast<unsigned>(num_sms)) num_ctas = static_cast<unsigned>(num_sms);
  if (num_ctas > kMaxErrors) num_ctas = kMaxErrors;
  if (num_ctas == 0) num_ctas = 1;
  const auto kernel = width_of(work.dtype) == 2   ? decode_kernel<Access, 2, false>
                      : width_of(work.dtype) == 4 ? decode_kernel<Access, 4, false>
                                                  : decode_kernel<Access, 8, false>;
  return launch_decoder<Access>(kernel, num_ctas, num_warps * kWarp,
                                num_warps * static_cast<unsigned>(sizeof(WarpSmem)), stream, work);
}

cudaError_t launch_decode(const Work& work, bool direct, std::uint64_t num_blocks, int num_sms,
                          cudaStream_t stream) {
  if (uses_straight_decode(work))
    return launch_decode_straight(work, direct, num_blocks, num_sms, stream);
  if (work.codec != Codec::kEntropy)
    return launch_decode_wide(work, direct, num_blocks, num_sms, stream);
  if (!has_exponent_plane(work.dtype))
    return launch_decode_bytes(work, direct, num_blocks, num_sms, stream);
  return direct ? launch<DirectAccess>(work, num_blocks, num_sms, stream)
                : launch<ScatteredAccess>(work, num_blocks, num_sms, stream);
}

}  // namespace snug::cuda
