// The decode kernel for entropy-coded frames of types that have an exponent plane: BF16, FP32,
// FP64. Each block of a frame gets a warp. It restores any frame.
#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

#include "codec/cuda/decode_any_block/decode_any_block.cuh"
#include "codec/cuda/decode_entropy_exponent/decode_palette.cuh"
#include "codec/cuda/frame/decode_frame.cuh"
#include "codec/cuda/frame/decode_verdict.cuh"
#include "codec/cuda/kernels.cuh"
#include "gpu/launch.h"

namespace snug::cuda {
namespace {

// One thread block a multiprocessor: its warps share that one's blocks evenly.
constexpr unsigned kDecodeWarps = 32;
constexpr unsigned kFewBlocks = 16;  // a multiprocessor: less to do than to wait for
constexpr unsigned kJobsAhead = 3;

// Shared memory of one warp.
struct WarpSmem {
  SlotTable slots;
  union {
    PaletteRoom<2, false> bf16;
    PaletteRoom<2, true> few_bf16;
    PaletteRoom<4, false> f32;
    struct {
      std::uint8_t bytes[StreamRoom::kBytes];
      alignas(16) std::uint8_t ring[StreamRoom::kSmall];
    } stream;
  };
  DecodeJob jobs[kJobsAhead];
  DecodeTally tally;
  std::uint32_t position;  // of the warp's block among those of the thread block
  std::uint32_t next;      // which of the jobs that is
};
// The rooms of decode_palette_block begin at the slots' end; copy_raw_block's runs past it.
static_assert(offsetof(WarpSmem, stream) == sizeof(SlotTable));

template <int kWidth, bool kAhead, class Access>
__device__ __forceinline__ BlockResult decode_block(const std::uint8_t* payload,
                                                    const DeviceEntry& e, std::uint32_t n,
                                                    DType dtype, const Access& dst,
                                                    std::uint64_t pos, std::uint32_t slots,
                                                    const WarpSmem& smem) {
  // Types are known to be these, but without the questions the compiler arranges the loop over
  // groups in another way, which takes 1 to 2 % longer at 256 MiB.
  if constexpr (kWidth == 2 || kWidth == 4)
    if (has_sign_bit(dtype) && e.codec == static_cast<unsigned>(Codec::kEntropy) &&
        e.plane_modes == 3u << (2 * kWidth - 2))
      return decode_palette_block<kWidth, kAhead>(payload, e.num_bytes, n, dst, pos, slots);
  if constexpr (kWidth == 2)
    if (dtype == DType::kBF16 && e.codec == static_cast<unsigned>(Codec::kFixed) &&
        e.plane_modes == 0) {
      BlockResult r{};
      r.reason = decode_fixed_bf16<WarpTeam>(payload, e, n, dst, pos, r.sum);
      return r;
    }
  return decode_other<kWidth>(
      payload, e, n, dtype, dst, pos,
      StreamRoom{slots, shared_address(smem.stream.bytes), shared_address(smem.stream.ring)});
}

// A block in several pieces, out of line: it would cost the others registers.
template <int kWidth, bool kAhead, class Access>
__device__ __noinline__ BlockResult decode_scattered(const std::uint8_t* payload, DeviceEntry e,
                                                     std::uint32_t n, DType dtype, Access dst,
                                                     std::uint64_t pos, std::uint32_t slots,
                                                     const WarpSmem* smem) {
  return decode_block<kWidth, kAhead>(payload, e, n, dtype, dst, pos, slots, *smem);
}

// The ticket that comes at this position in the order of a thread block: it has `share` tickets
// in a row, and after those of all others so many again.
__device__ __forceinline__ std::uint64_t ticket_at(std::uint32_t position, std::uint32_t share) {
  const std::uint32_t round = position < share ? 0 : position / share;
  return (std::uint64_t{round} * gridDim.x + blockIdx.x) * share + (position - round * share);
}

// Few warps can have many registers.
template <bool kAhead>
inline constexpr unsigned kMostWarps = kAhead ? kDecodeWarps / 2 : kDecodeWarps;

// By asking anew: what the compiler holds it may put into memory.
__device__ __forceinline__ unsigned lane_now() {
  unsigned lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// The loop over blocks keeps its state in shared memory, all found by the address of the slots:
// registers are few, and local memory is far away.
template <class Access, int kWidth, bool kAhead>
__global__ void __launch_bounds__(kMostWarps<kAhead>* kWarpSize, 1)
    decode_kernel(const __grid_constant__ Work work, std::uint32_t share) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  __shared__ unsigned long long first_error;
  const std::uint32_t slots =
      kept_shared_address(reinterpret_cast<WarpSmem*>(shared) + threadIdx.x / kWarpSize);
  const auto own = [&]() -> WarpSmem& {
    std::uint32_t at;
    asm volatile("mov.u32 %0, %1;" : "=r"(at) : "r"(slots));
    return *reinterpret_cast<WarpSmem*>(shared + (at - shared_address(shared)));
  };
  if (lane_id() == 0) {
    own().tally = {};
    own().position = threadIdx.x / kWarpSize;
  }
  if (threadIdx.x == 0) first_error = 0;
  if (work.items == nullptr) let_next_kernel_start();  // the verdict
  if (work.items != nullptr || work.segments != nullptr) wait_for_previous_kernel();
  for (;;) {
    // The first lanes each open one of the warp's next blocks and ask for the start of
    // its coded plane: waits for index and section come once for several blocks.
    __syncwarp();
    const unsigned num_warps = blockDim.x / kWarpSize;
    if (const unsigned lane = lane_now(); lane < kJobsAhead) {
      const std::uint64_t ticket = ticket_at(own().position + lane * num_warps, share);
      const DecodeJob mine = open_decode_job(work, ticket, last_ticket(work));
      own().jobs[lane] = mine;
      if (lane == 0) own().next = 0;
      if (mine.exists && mine.reason == kReasonNone && lane != 0) prefetch_block<kWidth, 8>(mine);
    }
    __syncwarp();
    bool ends = false;
    do {
      const DecodeJob& job = own().jobs[own().next];
      ends = __all_sync(kAllLanes, job.ends);
      if (ends) break;
      Reason reason = job.reason;
      if (__all_sync(kAllLanes, job.exists && reason == kReasonNone)) {
        const Access dst = access_item<Access>(work, job.w.item);
        std::uint8_t* piece = in_one_piece(dst, job.pos, std::uint64_t{job.n} * kWidth);
        BlockResult r;
        if (std::is_same_v<Access, DirectAccess> || __all_sync(kAllLanes, piece != nullptr))
          r = decode_block<kWidth, kAhead>(job.payload, job.entry, job.n, work.dtype,
                                           DirectAccess{piece}, 0, slots, own());
        else
          r = decode_scattered<kWidth, kAhead>(job.payload, job.entry, job.n, work.dtype, dst,
                                               job.pos, slots, &own());
        reason = check_sum(r.reason, warp_sum(r.sum), own().jobs[own().next].entry);
      }
      if (lane_now() == 0) {
        WarpSmem& smem = own();
        smem.tally.template add<Access>(work, smem.jobs[smem.next], ticket_at(smem.position, share),
                                        reason);
        smem.position += blockDim.x / kWarpSize;
        ++smem.next;
      }
      __syncwarp();
    } while (__any_sync(kAllLanes, own().next < kJobsAhead));
    if (ends) break;
  }
  leave_first_error<Access>(work, own().tally, first_error);
}

template <class Access, int kWidth, bool kAhead>
cudaError_t launch(const Work& work, std::uint64_t num_blocks, int num_sms, cudaStream_t stream) {
  const auto kernel = decode_kernel<Access, kWidth, kAhead>;
  StageRoom room;
  const cudaError_t error = find_stage_room(kernel, room);
  if (error != cudaSuccess) return error;
  const auto sms = static_cast<unsigned>(num_sms);
  const std::uint64_t share = num_blocks == 0 ? 1 : (num_blocks + sms - 1) / sms;
  const unsigned num_warps =
      warps_that_share(share, room.stages_of(sizeof(WarpSmem), kMostWarps<kAhead>));
  const std::uint64_t num_ctas = num_blocks == 0 ? 1 : (num_blocks + share - 1) / share;
  return launch_decoder<Access>(kernel, num_ctas, num_warps * kWarpSize,
                                num_warps * static_cast<unsigned>(sizeof(WarpSmem)), stream, work,
                                static_cast<std::uint32_t>(share));
}

template <class Access>
cudaError_t launch(const Work& work, std::uint64_t num_blocks, int num_sms, cudaStream_t stream) {
  const bool is_small = num_blocks <= kFewBlocks * static_cast<unsigned>(num_sms);
  const auto launcher = width_of(work.dtype) == 8   ? launch<Access, 8, false>
                        : width_of(work.dtype) == 4 ? launch<Access, 4, false>
                        : is_small                  ? launch<Access, 2, true>
                                                    : launch<Access, 2, false>;
  return launcher(work, num_blocks, num_sms, stream);
}

}  // namespace

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
