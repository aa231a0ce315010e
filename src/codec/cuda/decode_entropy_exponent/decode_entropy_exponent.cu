// The decode kernel of entropy-coded frames of types with an exponent plane: BF16, F32, F64. A warp
// restores a block.
#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

#include "codec/cuda/decode_any_block/decode_any_block.cuh"
#include "codec/cuda/decode_entropy_exponent/decode_palette.cuh"
#include "codec/cuda/frame/decode_frame.cuh"
#include "codec/cuda/frame/decode_verdict.cuh"
#include "codec/cuda/select_kernel.h"
#include "gpu/launch.h"

namespace snug::cuda {
namespace {

constexpr unsigned kDecodeWarps = 32;  // of a thread block, one of which fills a multiprocessor
constexpr unsigned kFewBlocks = 16;    // a multiprocessor: latency dominates
constexpr unsigned kJobsAhead = 3;

// Shared memory of one warp.
struct WarpSmem {
  SlotTable slots;
  union {
    PaletteRoom<2, false> bf16;
    PaletteRoom<2, true> few_bf16;
    PaletteRoom<4, false> f32;
    struct {
      u8 bytes[StreamRoom::kBytes];
      alignas(16) u8 ring[StreamRoom::kSmall];
    } stream;
  };
  DecodeJob jobs[kJobsAhead];
  DecodeReport report;
  u32 position;  // of the warp's block among those of the thread block
  u32 next;      // which of the jobs that is
};
// The rooms of decode_palette_block start where the slots end; copy_raw_block uses both.
static_assert(offsetof(WarpSmem, stream) == sizeof(SlotTable));

template <int kWidth, bool kAhead, class Access>
__device__ __forceinline__ BlockResult decode_block(const u8* payload, const DeviceEntry& e, u32 n,
                                                    DType dtype, const Access& dst, u64 pos,
                                                    u32 slots, const WarpSmem& smem) {
  // has_sign_bit is always true here, but without the test the compiler schedules the loop over
  // groups differently, which takes 1 to 2 % longer at 256 MiB. DeviceEntry::is() changes it, too.
  if constexpr (kWidth == 2 || kWidth == 4)
    if (has_sign_bit(dtype) && e.codec == static_cast<unsigned>(Codec::kEntropy) &&
        e.plane_modes == mode_bits(PlaneMode::kPalette, kWidth - 1))
      return decode_palette_block<kWidth, kAhead>(payload, e.num_bytes, n, dst, pos, slots);
  if constexpr (kWidth == 2)
    if (dtype == DType::kBF16 && e.codec == static_cast<unsigned>(Codec::kFixed) &&
        e.plane_modes == 0) {
      BlockResult r{};
      r.reason = decode_fixed_bf16_block<WarpTeam>(payload, e, n, dst, pos, r.sum);
      return r;
    }
  return decode_other<kWidth>(
      payload, e, n, dtype, dst, pos,
      StreamRoom{slots, shared_address(smem.stream.bytes), shared_address(smem.stream.ring)});
}

// A block in several pieces. Out of line: it takes no registers from the others.
template <int kWidth, bool kAhead, class Access>
__device__ __noinline__ BlockResult decode_scattered(const u8* payload, DeviceEntry e, u32 n,
                                                     DType dtype, Access dst, u64 pos, u32 slots,
                                                     const WarpSmem* smem) {
  return decode_block<kWidth, kAhead>(payload, e, n, dtype, dst, pos, slots, *smem);
}

// The ticket at this position in a thread block, which has `share` consecutive tickets a round.
__device__ __forceinline__ u64 ticket_at(u32 position, u32 share) {
  const u32 round = position < share ? 0 : position / share;
  return (u64{round} * gridDim.x + blockIdx.x) * share + (position - round * share);
}

// Few warps can have many registers.
template <bool kAhead>
inline constexpr unsigned kMostWarps = kAhead ? kDecodeWarps / 2 : kDecodeWarps;

// Re-reads %laneid: a kept copy may spill.
__device__ __forceinline__ unsigned reread_lane_id() {
  unsigned lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// The loop over blocks keeps its state in shared memory, addressed relative to the slots: registers
// are few, and spills to local memory cost more.
template <class Access, int kWidth, bool kAhead>
__global__ void __launch_bounds__(kMostWarps<kAhead>* kWarpSize, 1)
    decode_entropy_exponent_kernel(const __grid_constant__ Work work, u32 share) {
  extern __shared__ __align__(1024) u8 shared[];
  __shared__ unsigned long long first_error;
  const u32 slots = kept_shared_address(reinterpret_cast<WarpSmem*>(shared) + warp_id());
  const auto own = [&]() -> WarpSmem& {
    u32 at;
    asm volatile("mov.u32 %0, %1;" : "=r"(at) : "r"(slots));
    return *reinterpret_cast<WarpSmem*>(shared + (at - shared_address(shared)));
  };
  if (lane_id() == 0) {
    own().report = {};
    own().position = warp_id();
  }
  if (threadIdx.x == 0) first_error = 0;
  if (work.items == nullptr) let_next_kernel_start();  // the verdict
  if (work.items != nullptr || work.segments != nullptr) wait_for_previous_kernel();
  for (;;) {
    // The first lanes open one of the warp's next blocks each and prefetch the start of its coded
    // plane: one wait for index and section serves several blocks.
    __syncwarp();
    const unsigned num_warps = blockDim.x / kWarpSize;
    if (const unsigned lane = reread_lane_id(); lane < kJobsAhead) {
      const u64 ticket = ticket_at(own().position + lane * num_warps, share);
      const DecodeJob mine = open_decode_job(work, ticket, ticket_end(work));
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
        u8* piece = in_one_piece(dst, job.pos, u64{job.n} * kWidth);
        BlockResult r;
        if (std::is_same_v<Access, DirectAccess> || __all_sync(kAllLanes, piece != nullptr))
          r = decode_block<kWidth, kAhead>(job.payload, job.entry, job.n, work.dtype,
                                           DirectAccess{piece}, 0, slots, own());
        else
          r = decode_scattered<kWidth, kAhead>(job.payload, job.entry, job.n, work.dtype, dst,
                                               job.pos, slots, &own());
        reason = check_sum(r.reason, warp_sum(r.sum), own().jobs[own().next].entry);
      }
      if (reread_lane_id() == 0) {
        WarpSmem& smem = own();
        smem.report.template add<Access>(work, smem.jobs[smem.next],
                                         ticket_at(smem.position, share), reason);
        smem.position += blockDim.x / kWarpSize;
        ++smem.next;
      }
      __syncwarp();
    } while (__any_sync(kAllLanes, own().next < kJobsAhead));
    if (ends) break;
  }
  leave_first_error<Access>(work, own().report, first_error);
}

template <class Access, int kWidth, bool kAhead>
cudaError_t launch(const KernelCall& call) {
  const auto kernel = decode_entropy_exponent_kernel<Access, kWidth, kAhead>;
  StageRoom room;
  if (const cudaError_t error = find_stage_room(kernel, room); error != cudaSuccess) return error;
  const u64 share = (call.num_blocks + call.num_sms - 1) / call.num_sms;
  const unsigned num_warps =
      warps_that_share(share, room.stages_of(sizeof(WarpSmem), kMostWarps<kAhead>));
  return launch_decoder<Access>(
      call, kernel, (call.num_blocks + share - 1) / share, num_warps * kWarpSize,
      num_warps * static_cast<unsigned>(sizeof(WarpSmem)), static_cast<u32>(share));
}

template <class Access>
cudaError_t launch(const KernelCall& call) {
  const bool is_small = call.num_blocks <= u64{kFewBlocks} * call.num_sms;
  const auto launcher = width_of(call.work.dtype) == 8   ? launch<Access, 8, false>
                        : width_of(call.work.dtype) == 4 ? launch<Access, 4, false>
                        : is_small                       ? launch<Access, 2, true>
                                                         : launch<Access, 2, false>;
  return launcher(call);
}

}  // namespace

cudaError_t launch_decode_entropy_exponent(const KernelCall& call) {
  return call.direct ? launch<DirectAccess>(call) : launch<ScatteredAccess>(call);
}

}  // namespace snug::cuda
