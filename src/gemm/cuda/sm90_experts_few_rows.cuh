// gemm/cuda/sm90_experts_few_rows.cuh - products of experts with few rows, bound by reading their
// weights once.
//
// An item is two strips of an expert times a chunk of its rows: the strips of gate and up that make
// the same columns of h, or two adjacent strips of down. Each warp takes items (or, with
// `split`, every split-th tile of an item) through its own ring of bulk copies, which runs ahead
// into the next items. So loads never stop between experts, and there is no barrier between warps.
// Rows of x or h come in the order of operand B (experts_route.cuh): a lane loads its part with
// whole 16-byte loads through the L1 cache, which the warps of an SM share, for they work on the
// same expert.
#pragma once
#include "gemm/cuda/experts_items.cuh"
#include "gemm/cuda/experts_output.cuh"
#include "gemm/cuda/experts_sort.cuh"

namespace snug::gemm {

inline constexpr std::uint32_t kFewRows = 16, kSplitRows = 8;  // of a chunk

// Shared memory: barriers, the list of experts, their pairs, sums of split items, rings.
struct FewExpertRowsSmem {
  static constexpr std::uint32_t kMaxStages = 4;
  static constexpr std::uint32_t kSumBytes = 1024;  // two strips by kSplitRows, of a warp
  // Decoding takes a warp several times as long as reading raw weights.
  std::uint32_t warps, max_stages;
  std::uint32_t tile_bytes, stage_bytes, active, scratch, pairs, sums, rings;

  constexpr FewExpertRowsSmem(Kind kind, std::uint32_t experts, bool local, bool split)
      : warps(kind == Kind::kRaw ? 8 : 16),
        max_stages(kind == Kind::kRaw ? 3 : 2),
        tile_bytes(tile_bytes_of(kind)),
        stage_bytes(2 * tile_bytes + (kind == Kind::kRaw ? 0 : 128)),
        active(warps * kMaxStages * 8),
        scratch(active + (experts + 1) * 16),
        pairs(scratch + (local ? sizeof(SortScratch) : 0)),
        sums((pairs + (local ? kMaxLocalPairs * 4 : 0) + 127) / 128 * 128),
        rings(sums + (split ? warps * kSumBytes : 0)) {}
  constexpr std::uint32_t bytes(std::uint32_t stages) const {
    return rings + warps * stages * stage_bytes;
  }
};

static_assert(FewExpertRowsSmem(Kind::kFixed, kMaxExperts, true, true).bytes(2) <= kMaxBlockSmem &&
              FewExpertRowsSmem(Kind::kRaw, kMaxExperts, true, true).bytes(3) <= kMaxBlockSmem);

__device__ __forceinline__ uint4 load_row(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ __forceinline__ std::uint32_t load_x(const std::uint32_t* p) {
  std::uint32_t v;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

// kLocal: every thread block sorts the pairs for itself, and gate_up reads x as it is. That saves a
// kernel, and is faster where there are few pairs.
template <Kind kKind, bool kGateUp, bool kLocal>
struct FewExpertRows {
  static constexpr std::uint32_t kWarps = FewExpertRowsSmem(kKind, 1, false, false).warps;
  static constexpr std::uint32_t kTileBytes = tile_bytes_of(kKind);

  const ExpertsProduct& p;
  FewExpertRowsSmem smem;
  std::uint32_t base, lane, warp, group, member, groups;
  std::uint32_t ring, full;
  std::uint32_t num_active, item_number, end_item;
  // Copies ahead.
  ItemWalk ahead;
  std::uint32_t ahead_item, ahead_tile;
  const std::uint8_t* ahead_from;  // of this lane's part
  // What is multiplied.
  ItemWalk here;
  std::uint32_t slot = 0, phase = 0, turn = 0;

  __device__ __forceinline__ FewExpertRows(const ExpertsProduct& params, std::uint32_t base_)
      : p(params), smem(kKind, params.shape.experts, kLocal, params.split != 1), base(base_) {
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
      uint4 b[2][kTokenTiles][2];  // loaded before weights are waited for
#pragma unroll
      for (std::uint32_t half = 0; half < 2; ++half)
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            if constexpr (kGateUp && kLocal) {
              const std::uint32_t* const x = p.x + rows[t] + tile * 64 + half * 32 + i * 16;
              b[half][t][i] = {load_x(x), load_x(x + 4), load_x(x + 8), load_x(x + 12)};
            } else {
              b[half][t][i] = load_row(p.rows + rows[t] + tile * 16 + half * 8 + i * 4);
            }
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
  __device__ __forceinline__ bool add_members(float (&sums)[2][1][4]) {
    const std::uint32_t buffer = base + smem.sums + group * p.split * smem.kSumBytes + lane * 16;
    const auto sync = [&] {
      asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(p.split * 32) : "memory");
    };
    sync();  // the sums of the item before have been read
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const float(&v)[4] = sums[s][0];
      store_shared(buffer + member * smem.kSumBytes + s * 512, float4{v[0], v[1], v[2], v[3]});
    }
    sync();
    const bool mine = member == turn;
    if (++turn == p.split) turn = 0;
    if (!mine) return false;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      float4 total = load_shared_f32x4(buffer + s * 512);
#pragma unroll 1
      for (std::uint32_t w = 1; w < p.split; ++w)
        total = add(total, load_shared_f32x4(buffer + w * smem.kSumBytes + s * 512));
      float(&v)[4] = sums[s][0];
      v[0] = total.x, v[1] = total.y, v[2] = total.z, v[3] = total.w;
    }
    return true;
  }

  __device__ __forceinline__ std::uint32_t pair_at(std::uint32_t i) const {
    if (kLocal) return load_shared_u32(base + smem.pairs + i * 4);
    return __ldcg(p.routing.pairs + i);
  }

  // Items from this one on, as long as they have the same rows; returns the first other one.
  template <int kTokenTiles>
  __device__ __forceinline__ ExpertItem run_items(ExpertItem item) {
    // Lanes beyond the last row read the first; their results are not stored.
    const std::uint32_t first_row = item.first_row, num_rows = item.num_rows;
    std::uint32_t pairs[kTokenTiles], rows[kTokenTiles];
    float weights[kTokenTiles];
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      const std::uint32_t row = t * 8 + lane / 4;
      pairs[t] = pair_at(first_row + (row < num_rows ? row : 0));
      const std::uint32_t at = p.per_row == 1 ? pairs[t] : pairs[t] / p.per_row;
      rows[t] = at * (kGateUp && kLocal ? p.x_row_pairs : p.row_units) + lane % 4;
      weights[t] = kGateUp ? 0.0f : weight_of(p, pairs[t]);
    }
    do {
      float sums[2][kTokenTiles][4] = {};
      multiply<kTokenTiles>(sums, item, rows);
      bool has_sums = true;
      if constexpr (kTokenTiles == 1)
        if (p.split != 1) has_sums = add_members(sums);
      if (has_sums)
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
          const bool real = t * 8 + lane / 4 < num_rows;
          std::uint8_t* const row = p.out + pairs[t] * p.out_row_bytes;
          if constexpr (kGateUp)
            store_h(row, swiglu(sums[0][t], sums[1][t]), item.strips, real, lane);
          else
            store_weighted(row, sums[0][t], sums[1][t], weights[t], item.strips, real, lane);
        }
      item_number += groups;
      if (item_number >= end_item) break;
      item = here.next(item_number, p.items);
    } while (item.first_row == first_row);
    return item;
  }

  // Columns of h behind those that items write: the products with down read whole tiles.
  __device__ __forceinline__ void clear_padding() const {
    const std::uint32_t strips = static_cast<std::uint32_t>(p.out_row_bytes / 32),
                        empty = strips - p.bank.part_strips;
    for (std::uint32_t i = blockIdx.x * kWarps * 32 + threadIdx.x;
         i < p.shape.num_pairs * empty * 4; i += gridDim.x * kWarps * 32) {
      const std::uint32_t strip = p.bank.part_strips + i / 4 % empty;
      *reinterpret_cast<uint2*>(p.out + i / 4 / empty * p.out_row_bytes + strip / 2 * 64 +
                                i % 4 * 16 + strip % 2 * 8) = {};
    }
  }

  __device__ __forceinline__ void route(std::uint8_t* memory) {
    if constexpr (kLocal)
      num_active = sort_pairs<kWarps * 32, true>(
          p.ids, p.shape, *reinterpret_cast<SortScratch*>(memory + smem.scratch),
          reinterpret_cast<ActiveExpert*>(memory + smem.active),
          reinterpret_cast<std::uint32_t*>(memory + smem.pairs),
          kGateUp && blockIdx.x == 0 ? p.result : nullptr);
    else
      num_active = here.load<kWarps * 32>(p.routing, p.shape.experts);
    __syncthreads();
  }

  __device__ __forceinline__ void run(std::uint8_t* memory) {
    if (lane == 0) {
      for (std::uint32_t i = 0; i < p.stages; ++i) barrier_init(full + i * 8, 1);
      barrier_init_fence();
    }
    // Routing, or whoever made the ids, is two kernels before down and has ended when that starts.
    if (kGateUp || p.alone) wait_for_previous_kernel();
    route(memory);
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
    item_number = ahead_item;
    if (member >= p.bank.tiles_per_strip) ahead_item = end_item;  // nothing to copy
    for (std::uint32_t i = 0; i < p.stages; ++i) copy_next(i, 0);
    if (kGateUp) clear_padding();
    if (!kGateUp) wait_for_previous_kernel();
    if (item_number >= end_item) return;
    ExpertItem item = here.next(item_number, p.items);
    while (item_number < end_item)
      item = item.num_rows <= 8 ? run_items<1>(item) : run_items<2>(item);
  }
};

template <Kind kKind, bool kGateUp, bool kLocal>
__global__ void __launch_bounds__(FewExpertRows<kKind, kGateUp, kLocal>::kWarps * 32, 1)
    experts_few_rows(const __grid_constant__ ExpertsProduct p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::uint8_t memory[];
  FewExpertRows<kKind, kGateUp, kLocal>(p, shared_address(memory)).run(memory);
#endif
}

}  // namespace snug::gemm
