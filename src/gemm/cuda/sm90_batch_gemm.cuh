// gemm/cuda/sm90_batch_gemm.cuh - y = x W^T for many rows of x, with wgmma.
//
// Warpgroups decode their 64 rows of W into registers, which are operand A; TMA brings x into
// shared memory as operand B. While the tensor cores work on one half tile, the warps decode
// the next. Two more warps copy W and x, each through its own ring. W depends on no other
// kernel and is loaded before the previous one ends. Thread blocks work in teams of two on
// adjacent rows of W: each loads half of x and multicasts it to both.
// Stream-K: the steps of k over all tiles of y form one line, which the teams share evenly.
// Where a tile of y is divided, its parts go to the workspace, and the last warp to arrive
// adds them in order. Split-K, for few tiles: each tile of y belongs to one cluster of
// `split_k` teams, which add their parts through distributed shared memory.
#pragma once
#include "gemm/cuda/sm90_batch_output.cuh"
#include "gemm/cuda/sm90_wgmma.cuh"

namespace snug::gemm {

// One warp copies tiles of W, one strip per lane.
template <class Shape>
__device__ __forceinline__ void copy_weights(const BatchParams& b, std::uint32_t base,
                                             const Line& line, const Rank& rank) {
  const LinearParams& p = b.p;
  const std::uint32_t lane = threadIdx.x % 32;
  RingPosition<Shape::kWStages> at(1);
  // x goes through the same queue, so the ring must not be filled at once at the start.
  constexpr std::uint32_t kAtOnce = 2;
  std::uint32_t copied = 0;
  line.for_each_segment(rank.team, [&](const Segment& s) {
    const std::uint32_t strip0 = (s.row_tile * kTeam + rank.in_team()) * Shape::kStrips;
    const std::uint32_t strip = min(strip0 + lane % Shape::kStrips, p.strips - 1);
    const std::uint8_t* tile =
        p.tiles + (std::uint64_t{strip} * p.tiles_per_strip + s.begin) * Shape::kTileBytes;
    for (std::uint32_t step = s.begin; step < s.end; ++step, tile += Shape::kTileBytes) {
      const std::uint32_t full = base + Shape::kWFull + at.slot * 8;
      barrier_wait_hinted(base + Shape::kWEmpty + at.slot * 8, at.phase);
      if (copied >= kAtOnce && copied < Shape::kWStages)
        barrier_wait_hinted(base + Shape::kWFull + (copied - kAtOnce) * 8, 0);
      ++copied;
      if (lane == 0) barrier_expect(full, Shape::kWBytes);
      __syncwarp();
      if (lane < Shape::kStrips)
        bulk_load<true>(base + Shape::kW + at.slot * Shape::kWBytes + lane * Shape::kTileBytes,
                        tile, Shape::kTileBytes, full);
      at.advance();
    }
  });
}

// One thread multicasts this block's part of x to all blocks of the team.
template <class Shape>
__device__ __forceinline__ void copy_x(const BatchParams& b, std::uint32_t base, const Line& line,
                                       const Rank& rank) {
  const auto blocks = static_cast<std::uint16_t>(((1u << kTeam) - 1) << rank.first_of_team());
  RingPosition<Shape::kXStages> at(1);
  line.for_each_segment(rank.team, [&](const Segment& s) {
    const std::uint32_t token0 =
        s.token_tile * Shape::kTileM + rank.in_team() * (Shape::kTileM / kTeam);
    for (std::uint32_t half = 2 * s.begin; half < 2 * s.end; ++half) {
      const std::uint32_t full = base + Shape::kXFull + at.slot * 8;
      barrier_wait_hinted(base + Shape::kXEmpty + at.slot * 8, at.phase);
      barrier_expect(full, Shape::kXBytes);
      tensor_copy_multicast(
          blocks,
          base + Shape::kX + at.slot * Shape::kXBytes + rank.in_team() * (Shape::kXBytes / kTeam),
          &b.x_map, half * 64, token0, full);
      at.advance();
    }
  });
}

// The prefetched input of half a tile; without kAhead only its address.
template <Kind kKind, bool kAhead>
struct NextInput : HalfInput<kKind> {};
template <Kind kKind>
struct NextInput<kKind, false> {
  std::uint32_t at, half;

  __device__ __forceinline__ void load(std::uint32_t at_, std::uint32_t half_) {
    at = at_;
    half = half_;
  }
  __device__ __forceinline__ void decode(HalfFragments& out, std::uint32_t which_half,
                                         const LanePalette& palette, const Overflows& overflows,
                                         std::uint32_t lane) const {
    HalfInput<kKind> now;
    now.load(at, half);
    now.decode(out, which_half, palette, overflows, lane);
  }
};

template <class Shape>
__device__ __forceinline__ void batch_consume(const BatchParams& b, std::uint32_t base,
                                              const Line& line, const Rank& rank) {
  const LinearParams& p = b.p;
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // The strip of this warp in the first 64-row tile, and the address of this lane's codes.
  const std::uint32_t my_strip = warp / 4 * Shape::kSubs * 4 + warp % 4;
  std::uint32_t my_tile = base + Shape::kW + my_strip * Shape::kTileBytes + lane * 16;
  RingPosition<Shape::kWStages> w_at(0);
  RingPosition<Shape::kXStages> x_at(0);
  // A stage of x is released to all blocks of the team: that of the previous half tile, once
  // the next wgmma has been issued.
  std::uint32_t last_x = Shape::kXStages;
  std::uint32_t x_empty =
      cluster_address(base + Shape::kXEmpty, rank.first_of_team() + lane % kTeam);
  asm volatile("" : "+r"(my_tile), "+r"(x_empty));  // computed once, not at every use
  const auto release_x = [&] {
    if (lane < kTeam && last_x != Shape::kXStages) barrier_arrive_cluster(x_empty + last_x * 8);
  };
  line.for_each_segment(rank.team, [&](const Segment& s) {
    const std::uint32_t strip0 = (s.row_tile * kTeam + rank.in_team()) * Shape::kStrips + my_strip;
    uint2 palettes[Shape::kSubs];
#pragma unroll
    for (int sub = 0; sub < Shape::kSubs; ++sub)
      palettes[sub] = Shape::kKind == Kind::kRaw
                          ? uint2{}
                          : __ldg(p.palettes + min(strip0 + sub * 4, p.strips - 1));
    Sums<Shape> sums;
#pragma unroll
    for (int sub = 0; sub < Shape::kSubs; ++sub)
#pragma unroll
      for (int i = 0; i < Shape::kTileM / 2; ++i) sums.v[sub][i] = 0.0f;
    HalfFragments a[2];  // one in use by the tensor cores, one being decoded
    // Escape words of eight steps; those of the next eight are prefetched.
    const auto load_escapes = [&](int sub, std::uint32_t step) -> std::uint32_t {
      const std::uint32_t at = step + lane / 4;
      if (Shape::kKind == Kind::kRaw || at >= s.end) return 0;
      const uint4* words =
          p.escapes + (std::uint64_t{min(strip0 + sub * 4, p.strips - 1)} * line.steps + at);
      return __ldg(reinterpret_cast<const std::uint32_t*>(words) + lane % 4);
    };
    EscapeWords escapes[Shape::kSubs];
    std::uint32_t next_escapes[Shape::kSubs];
#pragma unroll
    for (int sub = 0; sub < Shape::kSubs; ++sub) next_escapes[sub] = load_escapes(sub, s.begin);
    // Codes are prefetched by half a tile. With a branch between the last write to operand A
    // and wgmma, the compiler would wait for each wgmma.
    NextInput<Shape::kKind, Shape::kAhead> input[Shape::kSubs];
    const auto load_codes = [&](std::uint32_t half) {
#pragma unroll
      for (int sub = 0; sub < Shape::kSubs; ++sub)
        input[sub].load(my_tile + w_at.slot * Shape::kWBytes + sub * 4 * Shape::kTileBytes, half);
    };
    // To be called with half a tile in registers; releases the stage after its second half.
    const auto next_codes = [&](int half, std::uint32_t step, const HalfFragments& regs) {
      if (half == 0) return load_codes(1);
      // The address depends on the loads: the barrier alone would not wait for them.
      const std::uint32_t zero =
          Shape::kAhead
              ? (regs.a[0][0] | regs.a[1][0] | regs.a[2][0] | regs.a[3][0]) & w_at.slot >> 8
              : 0;
      barrier_arrive_if(lane == 0, base + Shape::kWEmpty + w_at.slot * 8 + zero);
      w_at.advance();
      barrier_wait_hinted(base + Shape::kWFull + w_at.slot * 8, w_at.phase, step + 1 < s.end);
      load_codes(0);  // after the last step these are not used
    };
    barrier_wait_hinted(base + Shape::kWFull + w_at.slot * 8, w_at.phase);
    load_codes(0);
    for (std::uint32_t step = s.begin; step < s.end; ++step) {
      const std::uint32_t nth = (step - s.begin) % 8;
      LanePalette lane_palettes[Shape::kSubs];
      if constexpr (Shape::kKind == Kind::kFixed) {
        if (nth == 0) {
#pragma unroll
          for (int sub = 0; sub < Shape::kSubs; ++sub) {
            escapes[sub].take(next_escapes[sub]);
            next_escapes[sub] = load_escapes(sub, step + 8);
          }
        }
#pragma unroll
        for (int sub = 0; sub < Shape::kSubs; ++sub)
          lane_palettes[sub] = escapes[sub].palette_of(nth, palettes[sub], p.overflows.count, lane);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t x = wgmma_descriptor(base + Shape::kX + x_at.slot * Shape::kXBytes);
#pragma unroll
        for (int sub = 0; sub < Shape::kSubs; ++sub) {
          HalfFragments& regs = a[(half * Shape::kSubs + sub) & 1];
          input[sub].decode(regs, half, lane_palettes[sub], p.overflows, lane);
          if (Shape::kAhead && sub + 1 == Shape::kSubs) next_codes(half, step, regs);
          if (sub == 0) barrier_wait_hinted(base + Shape::kXFull + x_at.slot * 8, x_at.phase);
          wgmma_fence();
#pragma unroll
          for (int i = 0; i < 4; ++i)
            Wgmma<Shape::kTileM>::multiply(sums.v[sub], regs.a[i], x + i * 2);
          wgmma_commit();
          if (!Shape::kAhead && sub + 1 == Shape::kSubs) next_codes(half, step, regs);
          // Once all groups but this one are done, the other registers are free, and after
          // the last group of a stage its shared memory is, too.
          wgmma_wait<1>();
          if (sub == 0) release_x();
        }
        last_x = x_at.slot;
        x_at.advance();
      }
    }
    wgmma_wait<0>();
    release_x();
    last_x = Shape::kXStages;
    wait_for_previous_kernel();  // which may still read y or use the workspace
    const std::uint32_t token0 = s.token_tile * Shape::kTileM;
    if (p.split_k != 1) {
      add_in_cluster<Shape>(p, sums, base, rank, strip0, token0);
    } else if (s.begin == 0 && s.end == line.steps) {
      write_tile<Shape>(p, sums, strip0, token0);
    } else {
      add_parts<Shape>(p, sums, line, rank, s, strip0, token0);
    }
  });
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    batch_gemm(const __grid_constant__ BatchParams b) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::uint8_t smem[];
  std::uint32_t base = shared_address(smem);
  if (base % 1024 != 0) __trap();  // swizzled rows need it
  asm volatile("" : "+r"(base));   // computed once, not at every use
  const std::uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Rank rank;
  const Line line(b);
  if (warp >= Shape::kWarps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Shape::kCopyRegs));
    if (warp == Shape::kWarps) {
      if (lane < Shape::kWStages) {
        barrier_init(base + Shape::kWFull + 8 * lane, 1);
        barrier_init(base + Shape::kWEmpty + 8 * lane, Shape::kWarps);
        barrier_init_fence();
      }
      __syncwarp();
      cluster_arrive_relaxed();
      copy_weights<Shape>(b, base, line, rank);  // needs nothing of other blocks or kernels
      cluster_wait();
    } else {
      const bool copies_x = warp == Shape::kWarps + 1;
      if (copies_x && lane < Shape::kXStages) {
        barrier_init(base + Shape::kXFull + 8 * lane, 1);
        barrier_init(base + Shape::kXEmpty + 8 * lane, kTeam * Shape::kWarps);
        barrier_init_fence();
      }
      if (copies_x && lane == 0) prefetch_tensor_map(&b.x_map);
      __syncwarp();
      cluster_arrive_relaxed();
      cluster_wait();
      let_next_kernel_start();
      if (copies_x && lane == 0) {
        wait_for_previous_kernel();
        copy_x<Shape>(b, base, line, rank);
      }
      __syncwarp();
    }
    if (b.p.split_k != 1) {  // as in add_in_cluster
      cluster_sync();
      cluster_sync();
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Shape::kMultiplyRegs));
    cluster_arrive_relaxed();
    cluster_wait();
    batch_consume<Shape>(b, base, line, rank);
  }
  __syncwarp();
  cluster_sync();  // other blocks may still send x or release stages here
#endif
}

}  // namespace snug::gemm
