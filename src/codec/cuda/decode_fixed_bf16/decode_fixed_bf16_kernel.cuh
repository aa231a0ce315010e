// codec/cuda/decode_fixed_bf16/decode_fixed_bf16_kernel.cuh - one BF16 tensor of `fixed` and raw
// blocks: every warp takes its part of a block straight from memory through registers to memory,
// and one warp checks what the others found. Blocks of other kinds or sizes are restored too.
#pragma once
#include <type_traits>

#include "codec/cuda/decode_any_block/decode_any_block.cuh"
#include "codec/cuda/decode_fixed_bf16/restore_rows.cuh"
#include "codec/cuda/frame/bulk_copy.cuh"

namespace snug::cuda {

inline constexpr unsigned kSumsAhead = 4;  // blocks by which warps can be ahead of the checks

// A block that a group has restored, for the warp that checks it.
struct DoneBlock {
  std::uint64_t block;
  std::uint32_t num_bytes, checksum;
  Reason reason;  // the worst that one of the threads found
  bool exists;
  bool ends;  // the group has no more
};

struct StraightSmem {
  unsigned long long full[kMaxGroups][kSumsAhead], empty[kMaxGroups][kSumsAhead];  // barriers
  ComingBlock coming[kStraightWarps][kWarpSize];
  std::uint64_t sums[kSumsAhead][kStraightThreads];  // checksum terms of done blocks
  DoneBlock done[kMaxGroups][kSumsAhead];
  unsigned long long first_error;  // of blocks not in rows
  bool left_over;                  // there are such
};

// The error of a block, see error_key(), or 0.
__device__ __forceinline__ unsigned long long find_error(Reason reason, std::uint64_t sum,
                                                         std::uint32_t num_bytes,
                                                         std::uint32_t checksum,
                                                         std::uint64_t block) {
  if (reason != kReasonIndex) reason = check_sum(reason, sum, {0, 0, 0, num_bytes, checksum});
  return reason == kReasonNone ? 0 : error_key(Code::kCorrupt, reason, block);
}

// By a whole warp, `turn` counting what the group has left so far. `ends`: this is the last;
// `left_over`: there were blocks not in rows.
__device__ __forceinline__ void leave_sums(StraightSmem& smem, const WarpGroup& group,
                                           unsigned turn, const ComingBlock& b, std::uint64_t block,
                                           BlockResult r, bool ends, bool left_over) {
  const unsigned at = turn % kSumsAhead;
  if (turn == 0) __syncthreads();  // the barriers are there
  if (turn >= kSumsAhead)
    barrier_wait(shared_address(&smem.empty[group.idx][at]), (turn / kSumsAhead - 1) & 1);
  DoneBlock& done = smem.done[group.idx][at];
  smem.sums[at][threadIdx.x] = r.sum;
  if (ends && left_over) smem.left_over = true;
  if (r.reason != kReasonNone)
    atomicMax(reinterpret_cast<unsigned*>(&done.reason), static_cast<unsigned>(r.reason));
  if (group.warp == 0 && lane_id() == 0) {
    done.block = block;
    done.num_bytes = b.num_bytes;
    done.checksum = b.checksum;
    done.exists = b.kind != BlockKind::kEnd;
    done.ends = ends;
  }
  barrier_arrive(shared_address(&smem.full[group.idx][at]));
}

// By the warp that checks: the first error of all groups' blocks in rows.
__device__ __forceinline__ unsigned long long check_blocks(StraightSmem& smem,
                                                           unsigned log2_warps) {
  const unsigned num_groups = kStraightWarps >> log2_warps;
  unsigned long long first_error = 0;
  unsigned running = (1u << num_groups) - 1;  // groups, a bit each
  for (unsigned turn = 0; running != 0; ++turn)
    for (unsigned g = 0; g < num_groups; ++g) {
      if ((running >> g & 1) == 0) continue;
      const unsigned at = turn % kSumsAhead;
      DoneBlock& done = smem.done[g][at];
      barrier_wait(shared_address(&smem.full[g][at]), turn / kSumsAhead & 1);
      const std::uint64_t* sums = &smem.sums[at][(g << log2_warps) * kWarpSize + lane_id()];
      std::uint64_t sum = 0;
#pragma unroll 4
      for (unsigned w = 0; w < 1u << log2_warps; ++w) sum += sums[w * kWarpSize];
      sum = warp_sum(sum);
      if (done.exists)
        first_error = max(first_error,
                          find_error(done.reason, sum, done.num_bytes, done.checksum, done.block));
      if (done.ends) running &= ~(1u << g);
      __syncwarp();
      if (lane_id() == 0) done.reason = kReasonNone;
      barrier_arrive(shared_address(&smem.empty[g][at]));
    }
  return first_error;
}

// The blocks of this warp's group that are in rows; the first kWarpSize of them are open.
template <class Access, unsigned kBatch>
__device__ __forceinline__ void restore_rows(const Work& work, const DeviceHeader& h,
                                             const WarpGroup& group, StraightSmem& smem) {
  ComingBlock* coming = smem.coming[threadIdx.x / kWarpSize];
  const auto* frame = static_cast<const std::uint8_t*>(work.single.frame);
  unsigned num_restored = 0;
  bool left_over = false;
  std::uint64_t block = group.first_block();
  for (unsigned turn = 0;; ++turn, block += group.step()) {
    if (turn != 0 && turn % kWarpSize == 0) {
      const std::uint64_t mine = block + lane_id() * group.step();
      __syncwarp();
      coming[lane_id()] = open_block<Access>(work, h, group, mine, EntryPair(work, mine));
      __syncwarp();
    }
    if (turn % kWarpSize == kWarpSize / 2)
      prefetch_entries(work, block + kWarpSize / 2 * group.step(), group.step());
    const ComingBlock& b = coming[turn % kWarpSize];
    if (b.kind == BlockKind::kOther) {
      left_over = true;
      continue;
    }
    BlockResult r{b.kind == BlockKind::kInvalid ? kReasonIndex : kReasonNone, 0};
    if (b.kind == BlockKind::kFixedRows) r = restore_fixed_rows<kBatch>(b, frame, group);
    if (b.kind == BlockKind::kRawRows) r = restore_raw_rows<kBatch>(b, frame, group);
    const bool ends =
        b.kind == BlockKind::kEnd ||
        ((turn + 1) % kWarpSize != 0 && coming[(turn + 1) % kWarpSize].kind == BlockKind::kEnd);
    leave_sums(smem, group, num_restored++, b, block, r, ends, left_over);
    if (ends) return;
  }
}

// The warps that restore, as a team.
using WorkerTeam = BarrierTeam<kStraightThreads>;

// All blocks of the thread block that restore_rows left over, by the team. Out of line:
// they would cost the usual blocks registers.
template <class Access>
__device__ __noinline__ void restore_others(const Work& work, unsigned log2_warps,
                                            StraightSmem& smem) {
  __shared__ DecodeSmem other;
  const DeviceHeader h = HeaderVecs(work).parse(work);
  const WarpGroup group(log2_warps);
  for (std::uint64_t first = blockIdx.x * std::uint64_t{group.num_groups()}; first < h.num_blocks;
       first += group.step())
    for (std::uint64_t block = first; block < first + group.num_groups(); ++block) {
      const ComingBlock b = open_block<Access>(work, h, group, block, EntryPair(work, block));
      if (b.kind != BlockKind::kOther) continue;
      DoneBlock& done = smem.done[0][0];  // checked by now, as are all sums
      const BlockResult r = decode_by_team<WorkerTeam, 2>(
          open_decode_job(work, block, ~std::uint64_t{0}), DType::kBF16,
          access_item<Access>(work, work.single), other);
      smem.sums[0][threadIdx.x] = r.sum;
      if (r.reason != kReasonNone)
        atomicMax(reinterpret_cast<unsigned*>(&done.reason), static_cast<unsigned>(r.reason));
      WorkerTeam::sync();
      if (threadIdx.x < kWarpSize) {
        std::uint64_t sum = 0;
        for (unsigned w = 0; w < kStraightWarps; ++w)
          sum += smem.sums[0][w * kWarpSize + lane_id()];
        sum = warp_sum(sum);
        if (threadIdx.x == 0) {
          smem.first_error =
              max(smem.first_error, find_error(done.reason, sum, b.num_bytes, b.checksum, block));
          done.reason = kReasonNone;
        }
      }
      WorkerTeam::sync();
    }
}

// Groups of 2^log2_warps warps share a block, kBatch rows of which a warp has under way
// together. Both are chosen by the host for blocks of the size it expects; others are
// restored all the same. Registers are left for the kernel that starts beside this one.
template <class Access, unsigned kBatch>
__global__ void __launch_bounds__(kStraightThreads + 4 * kWarpSize, 1)
    decode_straight_kernel(const __grid_constant__ Work work, unsigned log2_warps) {
  __shared__ StraightSmem smem;
  let_next_kernel_start();
  if constexpr (!std::is_same_v<Access, DirectAccess>)
    if (work.segments != nullptr) wait_for_previous_kernel();
  if (threadIdx.x >= kStraightThreads) {
    const unsigned lane = lane_id(), group = lane / kSumsAhead;
    if (group < kStraightWarps >> log2_warps) {
      barrier_init(shared_address(&smem.full[group][lane % kSumsAhead]), kWarpSize << log2_warps);
      barrier_init(shared_address(&smem.empty[group][lane % kSumsAhead]), kWarpSize);
    }
    smem.done[group][lane % kSumsAhead].reason = kReasonNone;
    smem.first_error = 0;
    smem.left_over = false;
    __syncthreads();
    unsigned long long first_error = check_blocks(smem, log2_warps);
    if (smem.left_over) {
      __syncthreads();  // all sums have been checked
      __syncthreads();  // and what was left over
      first_error = max(first_error, smem.first_error);
    }
    if (lane == 0) work.errors[blockIdx.x] = first_error;
    return;
  }
  // Header and entries are read at once; the former says whether the latter are right.
  const HeaderVecs header(work);
  const WarpGroup group(log2_warps);
  const std::uint64_t mine = group.first_block() + lane_id() * group.step();
  const EntryPair entries(work, mine);
  const DeviceHeader h = header.parse(work);
  smem.coming[threadIdx.x / kWarpSize][lane_id()] =
      open_block<Access>(work, h, group, mine, entries);
  __syncwarp();
  if (((1u << (h.log2_block & 31)) / kRowValues >> log2_warps) % kBatch == 0)
    restore_rows<Access, kBatch>(work, h, group, smem);
  else
    restore_rows<Access, 1>(work, h, group, smem);
  WorkerTeam::sync();
  if (!smem.left_over) return;
  __syncthreads();
  restore_others<Access>(work, log2_warps, smem);
  __syncthreads();
}

}  // namespace snug::cuda
