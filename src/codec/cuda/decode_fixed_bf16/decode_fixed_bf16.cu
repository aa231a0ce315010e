// The decode kernel of one BF16 tensor of fixed and raw blocks: every warp takes its part of a
// block from global memory through registers to global memory, and one warp checks what the others
// found. Blocks of other kinds or sizes are restored too.
#include <cuda_runtime.h>

#include <type_traits>

#include "codec/cuda/decode_any_block/decode_any_block.cuh"
#include "codec/cuda/decode_fixed_bf16/restore_rows.cuh"
#include "codec/cuda/frame/decode_verdict.cuh"
#include "codec/cuda/select_kernel.h"
#include "gpu/launch.h"

namespace snug::cuda {

constexpr unsigned kSumsAhead = 4;  // blocks that warps can be ahead of the checks

// A block that a group has restored, for the warp that checks it.
struct DoneBlock {
  u64 block;
  u32 num_bytes, checksum;
  Reason reason;  // the largest that a thread found
  bool exists;
  bool ends;  // the group has no more
};

struct RowSmem {
  unsigned long long full[kMaxGroups][kSumsAhead], empty[kMaxGroups][kSumsAhead];  // barriers
  NextBlock next_blocks[kWorkerWarps][kWarpSize];
  u64 sums[kSumsAhead][kWorkerThreads];  // checksum terms of done blocks
  DoneBlock done[kMaxGroups][kSumsAhead];
  unsigned long long first_error;  // of blocks not in rows
  bool left_over;                  // there are blocks not in rows
};

// The error_key() of a block, or 0.
__device__ __forceinline__ unsigned long long find_error(Reason reason, u64 sum, u32 num_bytes,
                                                         u32 checksum, u64 block) {
  if (reason != kReasonIndex) reason = check_sum(reason, sum, {0, 0, 0, num_bytes, checksum});
  return reason == kReasonNone ? 0 : error_key(Code::kCorrupt, reason, block);
}

// By a whole warp: leaves its sums of the group's block number `turn` for the checking warp.
// `ends`: this is the last one; `left_over`: there were blocks not in rows.
__device__ __forceinline__ void leave_sums(RowSmem& smem, const WarpGroup& group, unsigned turn,
                                           const NextBlock& b, u64 block, BlockResult r, bool ends,
                                           bool left_over) {
  const unsigned at = turn % kSumsAhead;
  if (turn == 0) __syncthreads();  // the barriers are initialized
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

// By the checking warp: the first error of all blocks in rows.
__device__ __forceinline__ unsigned long long check_blocks(RowSmem& smem, unsigned log2_warps) {
  const unsigned num_groups = kWorkerWarps >> log2_warps;
  unsigned long long first_error = 0;
  unsigned running = (1u << num_groups) - 1;  // groups, a bit each
  for (unsigned turn = 0; running != 0; ++turn)
    for (unsigned g = 0; g < num_groups; ++g) {
      if ((running >> g & 1) == 0) continue;
      const unsigned at = turn % kSumsAhead;
      DoneBlock& done = smem.done[g][at];
      barrier_wait(shared_address(&smem.full[g][at]), turn / kSumsAhead & 1);
      const u64* sums = &smem.sums[at][(g << log2_warps) * kWarpSize + lane_id()];
      u64 sum = 0;
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

// Restores the blocks of this warp's group that are in rows; the first kWarpSize are open.
template <class Access, unsigned kBatch>
__device__ __forceinline__ void restore_rows(const Work& work, const DeviceHeader& h,
                                             const WarpGroup& group, RowSmem& smem) {
  NextBlock* next_blocks = smem.next_blocks[warp_id()];
  const auto* frame = static_cast<const u8*>(work.single.frame);
  unsigned num_restored = 0;
  bool left_over = false;
  u64 block = group.first_block();
  for (unsigned turn = 0;; ++turn, block += group.step()) {
    if (turn != 0 && turn % kWarpSize == 0) {
      const u64 mine = block + lane_id() * group.step();
      __syncwarp();
      next_blocks[lane_id()] = open_block<Access>(work, h, group, mine, EntryPair(work, mine));
      __syncwarp();
    }
    if (turn % kWarpSize == kWarpSize / 2)
      prefetch_entries(work, block + kWarpSize / 2 * group.step(), group.step());
    const NextBlock& b = next_blocks[turn % kWarpSize];
    if (b.kind == BlockKind::kOther) {
      left_over = true;
      continue;
    }
    BlockResult r{b.kind == BlockKind::kInvalid ? kReasonIndex : kReasonNone, 0};
    if (b.kind == BlockKind::kFixedRows) r = restore_fixed_rows<kBatch>(b, frame, group);
    if (b.kind == BlockKind::kRawRows) r = restore_raw_rows<kBatch>(b, frame, group);
    const bool ends =
        b.kind == BlockKind::kEnd || ((turn + 1) % kWarpSize != 0 &&
                                      next_blocks[(turn + 1) % kWarpSize].kind == BlockKind::kEnd);
    leave_sums(smem, group, num_restored++, b, block, r, ends, left_over);
    if (ends) return;
  }
}

using WorkerTeam = BarrierTeam<kWorkerThreads>;

// Restores the blocks that restore_rows left over, by the whole team. Out of line: it takes no
// registers from the usual blocks.
template <class Access>
__device__ __noinline__ void restore_others(const Work& work, unsigned log2_warps, RowSmem& smem) {
  __shared__ DecodeSmem other;
  const DeviceHeader h = HeaderVecs(work).parse(work);
  const WarpGroup group(log2_warps);
  for (u64 first = blockIdx.x * u64{group.num_groups()}; first < h.num_blocks;
       first += group.step())
    for (u64 block = first; block < first + group.num_groups(); ++block) {
      const NextBlock b = open_block<Access>(work, h, group, block, EntryPair(work, block));
      if (b.kind != BlockKind::kOther) continue;
      DoneBlock& done = smem.done[0][0];  // free: all sums have been checked
      const BlockResult r =
          decode_by_team<WorkerTeam, 2>(open_decode_job(work, block, ~u64{0}), DType::kBF16,
                                        access_item<Access>(work, work.single), other);
      smem.sums[0][threadIdx.x] = r.sum;
      if (r.reason != kReasonNone)
        atomicMax(reinterpret_cast<unsigned*>(&done.reason), static_cast<unsigned>(r.reason));
      WorkerTeam::sync();
      if (threadIdx.x < kWarpSize) {
        u64 sum = 0;
        for (unsigned w = 0; w < kWorkerWarps; ++w) sum += smem.sums[0][w * kWarpSize + lane_id()];
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

// Groups of 2^log2_warps warps share a block; a warp has kBatch rows in flight. The host chooses
// both for the block size that it expects; others work, too. The launch bounds leave registers for
// the verdict, which starts beside this kernel.
template <class Access, unsigned kBatch>
__global__ void __launch_bounds__(kWorkerThreads + 4 * kWarpSize, 1)
    decode_fixed_bf16_kernel(const __grid_constant__ Work work, unsigned log2_warps) {
  __shared__ RowSmem smem;
  let_next_kernel_start();
  if constexpr (!std::is_same_v<Access, DirectAccess>)
    if (work.segments != nullptr) wait_for_previous_kernel();
  if (threadIdx.x >= kWorkerThreads) {
    const unsigned lane = lane_id(), group = lane / kSumsAhead;
    if (group < kWorkerWarps >> log2_warps) {
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
      __syncthreads();  // restore_others is done
      first_error = max(first_error, smem.first_error);
    }
    if (lane == 0) work.errors[blockIdx.x] = first_error;
    return;
  }
  // Loads header and entries together; the header tells afterwards whether the entries exist.
  const HeaderVecs header(work);
  const WarpGroup group(log2_warps);
  const u64 mine = group.first_block() + lane_id() * group.step();
  const EntryPair entries(work, mine);
  const DeviceHeader h = header.parse(work);
  smem.next_blocks[warp_id()][lane_id()] = open_block<Access>(work, h, group, mine, entries);
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

namespace {

// Few blocks are spread over all warps of as many thread blocks. Of many blocks, as few warps share
// one as have eight rows each, or sixteen.
template <class Access>
cudaError_t launch(const KernelCall& call) {
  const u64 num_blocks = call.num_blocks;
  u64 num_ctas = num_blocks < call.num_sms ? num_blocks : call.num_sms;
  const unsigned rows = (1u << call.work.log2_block) / kRowValues;
  unsigned log2_warps = 4;
  static_assert(1u << 4 == kWorkerWarps && kWorkerWarps >> 1 == kMaxGroups);
  const unsigned wanted = num_blocks >= 4 * num_ctas ? 16 : 8;
  while (log2_warps > 1 && rows >> log2_warps < wanted &&
         num_blocks << (log2_warps - 1) >= num_ctas * (kWorkerWarps - 1))
    --log2_warps;
  // The same number of blocks for all thread blocks, rather than one more for some.
  const u64 groups = kWorkerWarps >> log2_warps;
  const u64 turns = (num_blocks + num_ctas * groups - 1) / (num_ctas * groups);
  num_ctas = (num_blocks + turns * groups - 1) / (turns * groups);
  const auto kernel = rows >> log2_warps >= 8   ? decode_fixed_bf16_kernel<Access, 8>
                      : rows >> log2_warps >= 4 ? decode_fixed_bf16_kernel<Access, 4>
                      : rows >> log2_warps >= 2 ? decode_fixed_bf16_kernel<Access, 2>
                                                : decode_fixed_bf16_kernel<Access, 1>;
  return launch_decoder<Access>(call, kernel, num_ctas, kWorkerThreads + kWarpSize, 0, log2_warps);
}

}  // namespace

cudaError_t launch_decode_fixed_bf16(const KernelCall& call) {
  return call.direct ? launch<DirectAccess>(call) : launch<ScatteredAccess>(call);
}

}  // namespace snug::cuda
