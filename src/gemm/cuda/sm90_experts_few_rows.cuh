// gemm/cuda/sm90_experts_few_rows.cuh - products of experts with few rows, bound by reading their
// weights once.
//
// An item is two strips of an expert times a chunk of its rows: the strips of gate and up that make
// the same columns of h, or two adjacent strips of down. Each of eight warps takes items (or, with
// `split`, every split-th tile of an item) through its own ring of bulk copies, which runs ahead
// into the next items. So loads never stop between experts, and there is no barrier between warps.
// Rows of x or h come in the order of operand B (experts_route.cuh): a lane loads its part with
// whole 16-byte loads through the L1 cache, which the warps of an SM share, for they work on the
// same expert.
#pragma once
#include "gemm/cuda/experts_items.cuh"
#include "gemm/cuda/experts_output.cuh"

namespace snug::gemm {

// Shared memory: barriers, the list of experts, sums of split items, rings.
struct FewExpertRowsSmem {
  static constexpr std::uint32_t kWarps = 8, kMaxStages = 8;
  static constexpr std::uint32_t kSumBytes = 2048;  // two strips by 16 rows, of a warp
  std::uint32_t tile_bytes, stage_bytes, active, sums, rings;

  constexpr FewExpertRowsSmem(Kind kind, std::uint32_t experts, bool split)
      : tile_bytes(tile_bytes_of(kind)),
        stage_bytes(2 * tile_bytes + (kind == Kind::kRaw ? 0 : 128)),
        active(kWarps * kMaxStages * 8),
        sums((active + (experts + 1) * 16 + 127) / 128 * 128),
        rings(sums + (split ? 2 * kWarps * kSumBytes : 0)) {}
  constexpr std::uint32_t bytes(std::uint32_t stages) const {
    return rings + kWarps * stages * stage_bytes;
  }
};

__device__ __forceinline__ uint4 load_row(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

template <Kind kKind, bool kGateUp, int kMaxTokenTiles>
struct FewExpertRows {
  static constexpr std::uint32_t kWarps = FewExpertRowsSmem::kWarps;
  static constexpr std::uint32_t kTileBytes = tile_bytes_of(kKind);

  const FewExpertRowsParams& p;
  FewExpertRowsSmem smem;
  std::uint32_t base, lane, warp, group, member, groups;
  std::uint32_t ring, full;
  std::uint32_t num_active, end_item;
  // Copies ahead.
  ItemWalk ahead;
  std::uint32_t ahead_item, ahead_tile;
  const std::uint8_t* ahead_from;  // of this lane's part
  // What is multiplied.
  ItemWalk here;
  std::uint32_t slot = 0, phase = 0, sum_buffer = 0, turn = 0;

  __device__ __forceinline__ FewExpertRows(const FewExpertRowsParams& params, std::uint32_t base_)
      : p(params), smem(kKind, params.experts, params.split != 1), base(base_) {
    lane = threadIdx.x % 32;
    warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
    group = warp / p.split, member = warp % p.split, groups = kWarps / p.split;
    ring = base + smem.rings + warp * p.stages * smem.stage_bytes;
    full = base + warp * p.stages * 8;
    ahead.active = here.active = base + smem.active;
  }

  __device__ __forceinline__ std::uint32_t strip_of(std::uint32_t strips, std::uint32_t i) const {
    if (kGateUp) return strips + i * p.bank.part_strips;
    return min(2 * strips + i, p.bank.strips - 1);
  }

  // Where this lane's part of the next item begins. Lanes 0 and 1 copy tiles of the two strips, 2
  // and 3 their escapes, 4 and 5 their palettes.
  __device__ __forceinline__ void enter_ahead() {
    const ExpertItem item = ahead.next(ahead_item, p.items);
    const std::uint32_t strip = strip_of(item.strips, lane % 2);
    const std::uint64_t tile = std::uint64_t{strip} * p.bank.tiles_per_strip + ahead_tile;
    const std::uint64_t offset = lane < 2   ? p.bank.tiles + tile * kTileBytes
                                 : lane < 4 ? p.bank.escapes + tile * kEscapeBytes
                                            : kHeaderBytes + strip / 2 * 16;
    ahead_from = p.bank.data + item.expert * p.bank.slot_bytes + offset;
  }
  __device__ __forceinline__ void copy_next(std::uint32_t to_slot, std::uint32_t after) {
    if (ahead_item >= end_item) return;
    const std::uint32_t bytes = lane < 2 ? kTileBytes : 16u, barrier = full + to_slot * 8;
    const std::uint32_t at = lane < 2 ? lane * kTileBytes : 2 * kTileBytes + (lane - 2) * 16;
    constexpr std::uint32_t kCopies = kKind == Kind::kRaw ? 2 : 6;
    if (lane == 0) barrier_expect(barrier, 2 * kTileBytes + (kKind == Kind::kRaw ? 0 : 64));
    __syncwarp();
    if (lane < kCopies)
      bulk_load<true>(ring + to_slot * smem.stage_bytes + at + after, ahead_from, bytes, barrier);
    ahead_tile += p.split;
    ahead_from += lane < 2 ? p.split * kTileBytes : lane < 4 ? p.split * kEscapeBytes : 0;
    if (ahead_tile < p.bank.tiles_per_strip) return;
    ahead_tile = member;
    ahead_item += groups;
    if (ahead_item < end_item) enter_ahead();
  }

  __device__ __forceinline__ LanePalette palette_of(std::uint32_t stage, std::uint32_t i,
                                                    std::uint32_t strip,
                                                    const std::uint8_t* slot_data) const {
    const std::uint32_t extra = stage + 2 * kTileBytes + i * 16;
    EscapeWords escapes;
    escapes.take(lane < kEscapeWords ? load_shared_u32(extra + lane * 4) : 0);
    const uint2 palette = load_shared_b64(extra + 32 + strip % 2 * 8);
    return escapes.palette_of(0, palette, {slot_data + p.bank.overflows, p.bank.max_overflows},
                              lane);
  }

  template <int kTokenTiles>
  __device__ __forceinline__ void multiply(float (&sums)[2][kTokenTiles][4], const ExpertItem& item,
                                           const std::uint32_t (&rows)[kTokenTiles]) {
    const std::uint8_t* slot_data = p.bank.data + item.expert * p.bank.slot_bytes;
    const std::uint32_t unknown_zero = p.stages >> 16;
#pragma unroll 1
    for (std::uint32_t tile = member; tile < p.bank.tiles_per_strip; tile += p.split) {
      const uint4* const x = p.rows + tile * 16;
      uint4 b[2][kTokenTiles][2];
      const auto load_x = [&](std::uint32_t half) {
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t)
#pragma unroll
          for (int i = 0; i < 2; ++i) b[half][t][i] = load_row(x + rows[t] + half * 8 + i * 4);
      };
      load_x(0);
      if (kTokenTiles <= 2) load_x(1);
      barrier_wait_hinted(full + slot * 8, phase);
      const std::uint32_t stage = ring + slot * smem.stage_bytes;
      LanePalette palettes[2];
      if constexpr (kKind == Kind::kFixed)
#pragma unroll
        for (std::uint32_t i = 0; i < 2; ++i)
          palettes[i] = palette_of(stage, i, strip_of(item.strips, i), slot_data);
#pragma unroll
      for (std::uint32_t half = 0; half < 2; ++half) {
        HalfInput<kKind> input[2];
        input[0].load(stage + lane * 16, half);
        input[1].load(stage + kTileBytes + lane * 16, half);
        if (half == 1) {
          if (kTokenTiles > 2) load_x(1);
          const std::uint32_t read = input[0].any() | input[1].any();
          __syncwarp();
          copy_next(slot, read & unknown_zero);
        }
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          HalfFragments w;
          input[s].decode(w, half, palettes[s]);
#pragma unroll
          for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int t = 0; t < kTokenTiles; ++t) {
              mma_16x8x16(sums[s][t], w.a[i * 2], b[half][t][i].x, b[half][t][i].y);
              mma_16x8x16(sums[s][t], w.a[i * 2 + 1], b[half][t][i].z, b[half][t][i].w);
            }
        }
      }
      if (++slot == p.stages) slot = 0, phase ^= 1;
    }
  }

  // Adds what the warps of a group have, in their order. True for the one that has the sums.
  template <int kTokenTiles>
  __device__ __forceinline__ bool add_members(float (&sums)[2][kTokenTiles][4]) {
    const std::uint32_t buffer = base + smem.sums + sum_buffer * kWarps * smem.kSumBytes +
                                 group * p.split * smem.kSumBytes + lane * 16;
#pragma unroll
    for (int i = 0; i < 2 * kTokenTiles; ++i) {
      const float(&v)[4] = sums[i / kTokenTiles][i % kTokenTiles];
      store_shared(buffer + member * smem.kSumBytes + i * 512, float4{v[0], v[1], v[2], v[3]});
    }
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(p.split * 32) : "memory");
    sum_buffer ^= 1;  // read until the warp comes to the next barrier
    const bool mine = member == turn;
    if (++turn == p.split) turn = 0;
    if (!mine) return false;
#pragma unroll
    for (int i = 0; i < 2 * kTokenTiles; ++i) {
      float4 total = load_shared_f32x4(buffer + i * 512);
#pragma unroll 1
      for (std::uint32_t w = 1; w < p.split; ++w)
        total = add(total, load_shared_f32x4(buffer + w * smem.kSumBytes + i * 512));
      float(&v)[4] = sums[i / kTokenTiles][i % kTokenTiles];
      v[0] = total.x, v[1] = total.y, v[2] = total.z, v[3] = total.w;
    }
    return true;
  }

  template <int kTokenTiles>
  __device__ __forceinline__ void run_item(const ExpertItem& item) {
    // Lanes beyond the last row read the first; their results are not stored.
    std::uint32_t pairs[kTokenTiles], rows[kTokenTiles];
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      const std::uint32_t row = t * 8 + lane / 4;
      pairs[t] = __ldcg(p.routing.pairs + item.first_row + (row < item.num_rows ? row : 0));
      rows[t] = (p.per_row == 1 ? pairs[t] : pairs[t] / p.per_row) * p.row_units + lane % 4;
    }
    float sums[2][kTokenTiles][4] = {};
    multiply<kTokenTiles>(sums, item, rows);
    if constexpr (kMaxTokenTiles <= 2)
      if (p.split != 1 && !add_members<kTokenTiles>(sums)) return;
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      const bool real = t * 8 + lane / 4 < item.num_rows;
      std::uint8_t* const row = p.out + pairs[t] * p.out_row_bytes;
      if constexpr (kGateUp)
        store_h(row, swiglu(sums[0][t], sums[1][t]), item.strips, real, lane);
      else
        store_weighted(row, sums[0][t], sums[1][t], __ldg(p.weights + pairs[t]), item.strips, real,
                       lane);
    }
  }

  __device__ __forceinline__ void run() {
    if (lane == 0) {
      for (std::uint32_t i = 0; i < p.stages; ++i) barrier_init(full + i * 8, 1);
      barrier_init_fence();
    }
    // Routing is two kernels before down, and has ended when that starts.
    if (kGateUp) wait_for_previous_kernel();
    num_active = here.load<kWarps * 32>(p.routing, p.experts);
    __syncthreads();
    let_next_kernel_start();
    const std::uint64_t total = here.num_items(num_active, p.items);
    const auto first = static_cast<std::uint32_t>(total * blockIdx.x / gridDim.x);
    end_item = static_cast<std::uint32_t>(total * (blockIdx.x + 1) / gridDim.x);
    ahead_item = first + group;
    ahead_tile = member;
    if (ahead_item < end_item) {
      ahead.find(ahead_item, p.items, num_active);
      here.at = ahead.at;
      enter_ahead();
    }
    std::uint32_t item_number = ahead_item;
    if (member >= p.bank.tiles_per_strip) ahead_item = end_item;  // nothing to copy
    for (std::uint32_t i = 0; i < p.stages; ++i) copy_next(i, 0);
    if (!kGateUp) wait_for_previous_kernel();
    for (; item_number < end_item; item_number += groups) {
      const ExpertItem item = here.next(item_number, p.items);
      if (item.num_rows <= 8)
        run_item<1>(item);
      else if (kMaxTokenTiles == 2 || item.num_rows <= 16)
        run_item<2>(item);
      else if constexpr (kMaxTokenTiles > 2) {
        if (item.num_rows <= 32)
          run_item<4>(item);
        else
          run_item<8>(item);
      }
    }
  }
};

template <Kind kKind, bool kGateUp, int kMaxTokenTiles>
__global__ void __launch_bounds__(FewExpertRowsSmem::kWarps * 32, 1)
    experts_few_rows(const __grid_constant__ FewExpertRowsParams p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::uint8_t memory[];
  FewExpertRows<kKind, kGateUp, kMaxTokenTiles>(p, shared_address(memory)).run();
#endif
}

}  // namespace snug::gemm
