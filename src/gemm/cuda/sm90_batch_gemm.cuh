// gemm/cuda/sm90_batch_gemm.cuh - y = x W^T for many rows of x, with wgmma.
//
// Warpgroups decode their 64 rows of W into registers, which are operand A; TMA brings x into
// shared memory as operand B. While the tensor cores work on one half tile, the warps decode
// the next. Two more warps copy W and x, each through its own ring. W depends on no other
// kernel and is loaded before the previous one ends. Thread blocks work in teams of two on
// adjacent rows of W: each loads half of x and multicasts it to both.
// Teams take whole tiles of y. Stream-K: what does not fill a wave is divided evenly; parts of a
// tile go to the workspace, and the team that ends it adds them in order. Split-K, for few tiles:
// each tile of y belongs to one cluster of `split_k` teams, which add their parts through
// distributed shared memory.
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
  RingWriter<Shape::kWStages> at;
  // x goes through the same queue, so the ring must not be filled at once at the start.
  constexpr std::uint32_t kAtOnce = 2;
  std::uint32_t copied = 0;
  line.for_each_segment(rank.team, [&](const Segment& s) {
    at.restart();
    const std::uint32_t strip0 = (s.row_tile * kTeam + rank.in_team()) * Shape::kStrips;
    const std::uint32_t strip = min(strip0 + lane % Shape::kStrips, p.strips - 1);
    const std::uint8_t* tile =
        p.tiles + (std::uint64_t{strip} * p.tiles_per_strip + s.begin) * Shape::kTileBytes;
    for (std::uint32_t step = s.begin; step < s.end; ++step, tile += Shape::kTileBytes) {
      const std::uint32_t full = base + Shape::kWFull + at.slot * 8;
      barrier_wait_hinted(base + Shape::kWEmpty + at.slot * 8, at.phase());
      if (copied >= kAtOnce && copied < Shape::kWStages && copied == step - s.begin)
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
  RingWriter<Shape::kXStages> at;
  line.for_each_segment(rank.team, [&](const Segment& s) {
    at.restart();
    const std::uint32_t token0 =
        s.token_tile * Shape::kTileM + rank.in_team() * (Shape::kTileM / kTeam);
    for (std::uint32_t half = 2 * s.begin; half < 2 * s.end; ++half) {
      const std::uint32_t full = base + Shape::kXFull + at.slot * 8;
      barrier_wait_hinted(base + Shape::kXEmpty + at.slot * 8, at.phase());
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
                                         const LanePalette& palette) const {
    HalfInput<kKind> now;
    now.load(at, half);
    now.decode(out, which_half, palette);
  }
};

template <class Shape>
__device__ __forceinline__ void batch_consume(const BatchParams& b, std::uint32_t base,
                                              const Line& line, const Rank& rank,
                                              std::uint32_t warp) {
  constexpr std::uint32_t kWStages = Shape::kWStages, kXStages = Shape::kXStages;
  // Halves of a tile that this warp takes, and from one of them to its next in the ring of x.
  constexpr std::uint32_t kHalves = 2 / Shape::kKGroups, kXStep = Shape::kKGroups;
  const LinearParams& p = b.p;
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t k_group = warp / 4 / Shape::kRowGroups;
  const std::uint32_t my_strip = warp / 4 % Shape::kRowGroups * 4 + warp % 4;
  // Where this lane's codes and this warp's x and barriers are in the first stage of each ring.
  std::uint32_t my_tile = base + Shape::kW + my_strip * Shape::kTileBytes +
                          k_group * (Shape::kTileBytes / 2) + lane * 16;
  std::uint32_t x_empty =
      cluster_address(base + Shape::kXEmpty + k_group * 8, rank.first_of_team() + lane % kTeam);
  asm volatile("" : "+r"(my_tile), "+r"(x_empty));  // computed once, not at every use
  const std::uint32_t x_full = base + Shape::kXFull + k_group * 8;
  const std::uint32_t x0 = wgmma_descriptor(base + Shape::kX + k_group * Shape::kXBytes);
  const std::uint32_t zero = warp >> 8;  // which the compiler does not know
  // Phases of the stages of both rings, at the start of a round.
  std::uint32_t w_phases = 0, x_phases = 0;
  line.for_each_segment(rank.team, [&](const Segment& s) {
    const std::uint32_t strip = (s.row_tile * kTeam + rank.in_team()) * Shape::kStrips + my_strip;
    const std::uint32_t real_strip = min(strip, p.strips - 1);
    const uint2 palette = Shape::kKind == Kind::kRaw ? uint2{} : __ldg(p.palettes + real_strip);
    Sums<Shape> sums;
#pragma unroll
    for (int i = 0; i < Shape::kTileM / 2; ++i) sums.v[i] = 0.0f;
    HalfFragments a[2];  // one in use by the tensor cores, one being decoded
    // Escape words of a round; those of the next are prefetched.
    const auto load_escapes = [&](std::uint32_t step) -> std::uint32_t {
      const std::uint32_t at = step + lane / 4;
      if (Shape::kKind == Kind::kRaw || lane / 4 >= kWStages || at >= s.end) return 0;
      const uint4* words = p.escapes + (std::uint64_t{real_strip} * line.steps + at);
      return __ldg(reinterpret_cast<const std::uint32_t*>(words) + lane % 4);
    };
    EscapeWords escapes;
    std::uint32_t next_escapes = load_escapes(s.begin);
    // Codes are prefetched by half a tile. With a branch between the last write to operand A
    // and wgmma, the compiler would wait for each wgmma.
    NextInput<Shape::kKind, Shape::kAhead> input;
    barrier_wait_hinted(base + Shape::kWFull, w_phases & 1);
    input.load(my_tile, 0);
    std::uint32_t step = s.begin, used;
    // A round is unrolled, so that all places in shared memory are constants.
    for (;;) {
      if constexpr (Shape::kKind == Kind::kFixed) {
        escapes.take(next_escapes);
        next_escapes = load_escapes(step + kWStages);
      }
#pragma unroll
      for (std::uint32_t w = 0; w < kWStages; ++w) {
        const bool is_last = step + 1 == s.end;
        // To be called with half a tile in registers; releases the stage after its last half.
        const auto next_codes = [&](std::uint32_t half, const HalfFragments& regs) {
          if (half + 1 < kHalves) return input.load(my_tile + w * Shape::kWBytes, 1);
          // The address depends on the loads: the barrier alone would not wait for them.
          const std::uint32_t after = Shape::kAhead ? (regs.a[0][0] | regs.a[2][0]) & zero : 0;
          barrier_arrive_if(lane == 0, base + after + Shape::kWEmpty + w * 8);
          const std::uint32_t next = (w + 1) % kWStages;
          barrier_wait_hinted(base + Shape::kWFull + next * 8,
                              (w_phases >> next & 1) ^ (next == 0 ? 1 : 0), !is_last);
          input.load(my_tile + next * Shape::kWBytes, 0);  // unused after the last step
        };
        LanePalette lane_palette;
        if constexpr (Shape::kKind == Kind::kFixed)
          lane_palette = escapes.palette_of(w, palette, p.overflows, lane);
#pragma unroll
        for (std::uint32_t half = 0; half < kHalves; ++half) {
          const std::uint32_t use = 2 * w + half, slot = use % kXStages;
          const std::uint32_t x = x0 + slot * (Shape::kXBytes / 16);
          HalfFragments& regs = a[(w * kHalves + half) & 1];
          input.decode(regs, half + k_group, lane_palette);
          if (Shape::kAhead) next_codes(half, regs);
          barrier_wait_hinted(x_full + slot * 8,
                              (x_phases >> slot & 1) ^ (use >= kXStages ? 1 : 0));
          wgmma_fence();
#pragma unroll
          for (int i = 0; i < 4; ++i) Wgmma<Shape::kTileM>::multiply(sums.v, regs.a[i], x + i * 2);
          wgmma_commit();
          if (!Shape::kAhead) next_codes(half, regs);
          // Once the previous group is done, its registers are free, and its stage of x is
          // released to all blocks of the team.
          wgmma_wait<1>();
          barrier_arrive_cluster_if(lane < kTeam && (use != 0 || step != s.begin),
                                    x_empty + (slot + kXStages - kXStep) % kXStages * 8);
        }
        if (++step == s.end) {
          used = w + 1;
          goto done;
        }
      }
      w_phases ^= changed_phases(kWStages, kWStages);
      x_phases ^= changed_phases(2 * kWStages, kXStages);
    }
  done:
    wgmma_wait<0>();
    if (lane < kTeam) barrier_arrive_cluster(x_empty + (2 * used - kXStep) % kXStages * 8);
    w_phases ^= changed_phases(used, kWStages);
    x_phases ^= changed_phases(2 * used, kXStages);
    if (!add_k_groups(sums, base, k_group == 0)) {
      if (p.split_k != 1) {  // as in add_in_cluster
        cluster_sync();
        cluster_sync();
      }
      return;
    }
    wait_for_previous_kernel();  // which may still read y or use the workspace
    const std::uint32_t token0 = s.token_tile * Shape::kTileM;
    if (p.split_k != 1) {
      add_in_cluster(p, sums, base, rank, strip, token0);
    } else if (s.begin == 0 && s.end == line.steps) {
      write_tile(p, sums, strip, token0);
    } else {
      add_parts(p, sums, line, rank, s, strip, token0);
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
  // Uniform for the compiler, too, which then keeps addresses in uniform registers.
  const std::uint32_t warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
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
        barrier_init(base + Shape::kXEmpty + 8 * lane, kTeam * Shape::kWarps / Shape::kKGroups);
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
    batch_consume<Shape>(b, base, line, rank, warp);
  }
  __syncwarp();
  cluster_sync();  // other blocks may still send x or release stages here
#endif
}

}  // namespace snug::gemm
