// The decode kernel that gives each block of a frame a warp, as entropy-coded ones
// need it. It restores any frame.
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

constexpr int kDecodeWarps = 4;  // of a thread block
constexpr int kDecodeCtas = 8;   // a multiprocessor
constexpr unsigned kJobsAhead = 3;

template <int kWidth, class Access>
__device__ __forceinline__ BlockResult decode_block(const std::uint8_t* payload,
                                                    const DeviceEntry& e, std::uint32_t n,
                                                    DType dtype, const Access& dst,
                                                    std::uint64_t pos, std::uint32_t slots,
                                                    StreamSmem& smem) {
  BlockResult result{};
  if constexpr (kWidth == 2 || kWidth == 4)
    if (is_float(dtype) && e.codec == static_cast<unsigned>(Codec::kEntropy) &&
        e.plane_modes == 3u << (2 * kWidth - 2))
      return decode_palette_block<kWidth>(payload, e.num_bytes, n, dst, pos, slots, &smem.palette);
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
    result = decode_any<kWidth>(payload, e, n, dtype, dst, pos, slots, &smem);
  return result;
}

// Brings what a warp reads first of a block into the cache: its start, and where
// the coded plane of a BF16 block is.
__device__ __forceinline__ void prefetch_block(const DecodeJob& job) {
  const auto prefetch = [&](std::uint32_t at) {
    if (at < job.entry.num_bytes) asm volatile("prefetch.global.L2 [%0];" ::"l"(job.payload + at));
  };
  const auto section = static_cast<std::uint32_t>(align16(job.n));
  for (std::uint32_t line = 0; line < 8; ++line) prefetch(128 * line);
  for (std::uint32_t line = 0; line < 8; ++line) prefetch(section + 128 * line);
}

template <class Access, int kWidth>
__global__ void __launch_bounds__(kDecodeWarps* kWarp, kDecodeCtas)
    decode_kernel(const __grid_constant__ Work work) {
  __shared__ SlotTable slots_of[kDecodeWarps];
  __shared__ StreamSmem smem_of[kDecodeWarps];
  __shared__ DecodeTally tally_of[kDecodeWarps];
  __shared__ unsigned long long first_error;
  __shared__ DecodeJob jobs_of[kDecodeWarps][kJobsAhead];
  const unsigned warp = threadIdx.x / kWarp;
  const std::uint32_t slots = shared_address(&slots_of[warp]);
  StreamSmem& smem = smem_of[warp];
  if (lane_id() == 0) tally_of[warp] = {};
  if (threadIdx.x == 0) first_error = 0;
  if (work.items == nullptr) let_next_kernel_start();  // the verdict
  if (work.items != nullptr || work.segments != nullptr) wait_for_preparation();
  const std::uint64_t num_tickets = last_ticket(work);
  // The first lanes each open one of the warp's next blocks and ask for the start of
  // its coded plane: waits for index and section come once for several blocks.
  const std::uint64_t step = std::uint64_t{gridDim.x} * kDecodeWarps;
  unsigned next = kJobsAhead;
  for (std::uint64_t ticket = blockIdx.x * kDecodeWarps + warp;; ticket += step) {
    if (next == kJobsAhead) {
      if (lane_id() < kJobsAhead) {
        const DecodeJob mine = open_decode_job(work, ticket + lane_id() * step, num_tickets);
        jobs_of[warp][lane_id()] = mine;
        if (mine.exists && mine.reason == kReasonNone && lane_id() != 0) prefetch_block(mine);
      }
      next = 0;
      __syncwarp();
    }
    const DecodeJob& job = jobs_of[warp][next++];
    if (job.ends) break;
    Reason reason = job.reason;
    if (job.exists && reason == kReasonNone) {
      const Access dst = access_item<Access>(work, job.w.item);
      std::uint8_t* piece = in_one_piece(dst, job.pos, std::uint64_t{job.n} * kWidth);
      BlockResult r;
      if (std::is_same_v<Access, DirectAccess> || piece != nullptr)
        r = decode_block<kWidth>(job.payload, job.entry, job.n, work.dtype, DirectAccess{piece}, 0,
                                 slots, smem);
      else
        r = decode_block<kWidth>(job.payload, job.entry, job.n, work.dtype, dst, job.pos, slots,
                                 smem);
      reason = check_sum(r.reason, warp_sum64(r.sum), job.entry);
    }
    if (lane_id() == 0) tally_of[warp].template add<Access>(work, job, ticket, reason);
    __syncwarp();
  }
  if (lane_id() == 0) tally_of[warp].template flush<Access>(work);
  __syncthreads();
  if (lane_id() == 0 && tally_of[warp].first_error != 0)
    atomicMax(&first_error, tally_of[warp].first_error);
  __syncthreads();
  if (threadIdx.x == 0) work.errors[blockIdx.x] = first_error;
}

}  // namespace

template <class Access>
static cudaError_t launch(const Work& work, std::uint64_t num_blocks, int num_sms,
                          cudaStream_t stream) {
  const std::uint64_t wanted = (num_blocks + kDecodeWarps - 1) / kDecodeWarps;
  auto most = static_cast<std::uint64_t>(num_sms) * kDecodeCtas;
  if (most > kMaxErrors) most = kMaxErrors;
  const auto num_ctas = static_cast<unsigned>(wanted == 0 ? 1 : wanted < most ? wanted : most);
  const auto kernel = width_of(work.dtype) == 1   ? decode_kernel<Access, 1>
                      : width_of(work.dtype) == 2 ? decode_kernel<Access, 2>
                      : width_of(work.dtype) == 4 ? decode_kernel<Access, 4>
                                                  : decode_kernel<Access, 8>;
  return launch_decoder<Access>(kernel, num_ctas, kDecodeWarps * kWarp, 0, stream, work);
}

cudaError_t launch_decode(const Work& work, bool direct, std::uint64_t num_blocks, int num_sms,
                          cudaStream_t stream) {
  if (uses_straight_decode(work))
    return launch_decode_straight(work, direct, num_blocks, num_sms, stream);
  if (work.codec != Codec::kEntropy)
    return launch_decode_wide(work, direct, num_blocks, num_sms, stream);
  return direct ? launch<DirectAccess>(work, num_blocks, num_sms, stream)
                : launch<ScatteredAccess>(work, num_blocks, num_sms, stream);
}

}  // namespace snug::cuda
