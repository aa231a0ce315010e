// gemm/cuda/sm90_experts_many_rows.cuh - products of experts with many rows, with wgmma.
//
// An item is sixteen strips of an expert times a chunk of up to kMaxRows of its rows. Each of eight
// warps decodes two strips into operand A: those of gate and up that make the same columns of h, or
// two adjacent ones of down. While the tensor cores work on one, the other is decoded. One warp
// copies weights, two gather the rows of x or h; both run ahead into the next items.
#pragma once
#include "gemm/cuda/experts_items.cuh"
#include "gemm/cuda/experts_output.cuh"
#include "gemm/cuda/sm90_wgmma.cuh"

namespace snug::gemm {

template <Kind kKind, bool kGateUp, int kMaxRows>
struct ManyExpertRows {
  static constexpr std::uint32_t kWarps = 8, kStrips = 2 * kWarps;
  static constexpr std::uint32_t kThreads = (kWarps + 4) * 32, kGatherThreads = 64;
  static constexpr std::uint32_t kTileBytes = tile_bytes_of(kKind);
  static constexpr std::uint32_t kWStages = kKind == Kind::kRaw ? 2 : kMaxRows <= 32 ? 4 : 3;
  // As many as fit: gathering a stage takes about as long as multiplying two.
  static constexpr std::uint32_t kXStages = kMaxRows <= 32   ? 6
                                            : kMaxRows == 64 ? 8
                                            : kMaxRows == 96 ? 5
                                                             : 4;
  // Items whose rows are described: x runs ahead of what is stored, by half a tile a stage.
  static constexpr std::uint32_t kRowLists = (kXStages + 1) / 2 + 2;
  // The other width of operand B, for items with fewer rows. A third, or for raw weights a second,
  // would take more registers than there are; the compiler would then wait for each wgmma.
  static constexpr int kNarrow =
      kMaxRows < 64 || (kKind == Kind::kRaw && kMaxRows == 128) ? kMaxRows : kMaxRows - 32;
  static constexpr std::uint32_t kWBytes = kStrips * kTileBytes, kXBytes = kMaxRows * 128;
  // Shared memory: x, weights, barriers, list of experts.
  static constexpr std::uint32_t kW = kXStages * kXBytes, kWFull = kW + kWStages * kWBytes,
                                 kWEmpty = kWFull + 8 * kWStages, kXFull = kWEmpty + 8 * kWStages,
                                 kXEmpty = kXFull + 8 * kXStages,
                                 kRows = (kXEmpty + 8 * kXStages + 127) / 128 * 128,
                                 kActive = kRows + kRowLists * kMaxRows * 16;
  static constexpr std::uint32_t smem_bytes(std::uint32_t experts) {
    return kActive + (experts + 1) * 16;
  }
  static_assert(kActive + (kMaxExperts + 1) * 16 <= kMaxBlockSmem);

  const ExpertsProduct& p;
  std::uint32_t base, lane, warp;
  std::uint32_t num_active = 0, total = 0;
  ItemWalk walk;

  __device__ __forceinline__ ManyExpertRows(const ExpertsProduct& params, std::uint32_t base_)
      : p(params), base(base_) {
    lane = threadIdx.x % 32;
    warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
    walk.active = base + kActive;
  }

  // Two strips for each warp, by number of the warp's pair in the expert.
  __device__ __forceinline__ std::uint32_t strip_of(std::uint32_t pair, std::uint32_t i) const {
    if (kGateUp) return min(pair, p.bank.part_strips - 1) + i * p.bank.part_strips;
    return min(2 * pair + i, p.bank.strips - 1);
  }

  template <class F>
  __device__ __forceinline__ void for_each_item(const F& f) {
    if (blockIdx.x >= total) return;
    walk.find(blockIdx.x, p.items, num_active);
    for (std::uint32_t item = blockIdx.x; item < total; item += gridDim.x)
      f(walk.next(item, p.items));
  }

  // One warp: lane 2w + i copies tiles of the i-th strip of warp w.
  __device__ __forceinline__ void copy_weights() {
    std::uint32_t slot = 0, phase = 1;
    for_each_item([&](const ExpertItem& item) {
      const std::uint32_t strip = strip_of(item.strips * kWarps + lane / 2 % kWarps, lane % 2);
      const std::uint8_t* tile = p.bank.data + item.expert * p.bank.slot_bytes + p.bank.tiles +
                                 std::uint64_t{strip} * p.bank.tiles_per_strip * kTileBytes;
      for (std::uint32_t t = 0; t < p.bank.tiles_per_strip; ++t, tile += kTileBytes) {
        barrier_wait_hinted(base + kWEmpty + slot * 8, phase);
        if (lane == 0) barrier_expect(base + kWFull + slot * 8, kWBytes);
        __syncwarp();
        if (lane < kStrips)
          bulk_load(base + kW + slot * kWBytes + lane * kTileBytes, tile, kTileBytes,
                    base + kWFull + slot * 8);
        if (++slot == kWStages) slot = 0, phase ^= 1;
      }
    });
  }

  // Two warps: rows of 64 columns, swizzled as wgmma reads them; zeros behind the last column.
  __device__ __forceinline__ void gather_rows() {
    const std::uint32_t thread = threadIdx.x % kGatherThreads, chunk = thread % 8,
                        first = thread / 8;
    std::uint32_t slot = 0, phase = 1, list = 0;
    for_each_item([&](const ExpertItem& item) {
      // For each row its pair and weight, and where it begins. Rows beyond the last are its copies.
      const std::uint32_t rows = base + kRows + list * kMaxRows * 16;
      if (++list == kRowLists) list = 0;
      for (std::uint32_t row = thread; row < kMaxRows; row += kGatherThreads) {
        const std::uint32_t pair =
            __ldcg(p.routing.pairs + item.first_row + min(row, item.num_rows - 1));
        store_shared(rows + row * 16,
                     uint4{pair, kGateUp ? 0 : __float_as_uint(weight_of(p, pair)),
                           (p.per_row == 1 ? pair : pair / p.per_row) * p.row_units, 0});
      }
      asm volatile("bar.sync 1, %0;" ::"n"(kGatherThreads) : "memory");
      const std::uint32_t halves = 2 * p.bank.tiles_per_strip;
      for (std::uint32_t half = 0; half < halves; ++half) {
        barrier_wait_hinted(base + kXEmpty + slot * 8, phase);
        const std::uint32_t unit = half * 8 + chunk, bytes = unit < p.present_units ? 16 : 0;
        const std::uint32_t to = base + slot * kXBytes + first * 128 + (chunk ^ first) * 16;
        const uint4* const from = p.rows + (bytes != 0 ? unit : 0);
#pragma unroll 4
        for (std::uint32_t i = 0; i * 8 < item.num_rows; ++i)
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + i * 1024),
                       "l"(from + load_shared_u32(rows + (first + i * 8) * 16 + 8)), "r"(bytes)
                       : "memory");
        // The first arrival is for the list of rows, the second happens when the copies are done.
        barrier_arrive(base + kXFull + slot * 8);
        asm volatile(
            "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(base + kXFull + slot * 8)
            : "memory");
        if (++slot == kXStages) slot = 0, phase ^= 1;
      }
    });
    wait_copies<0>();
  }

  // Where the rings of a consumer stand.
  std::uint32_t w_slot = 0, w_phase = 0, x_slot = 0, x_phase = 0, list = 0;

  // With an operand B of kWidth rows, of which the item has most: tensor cores take as long for
  // empty rows.
  template <int kWidth>
  __device__ __forceinline__ void multiply(const ExpertItem& item) {
    const std::uint32_t pair = item.strips * kWarps + warp, zero = warp >> 8;
    const std::uint8_t* const slot_data = p.bank.data + item.expert * p.bank.slot_bytes;
    const Overflows overflows{slot_data + p.bank.overflows, p.bank.max_overflows};
    uint2 palettes[2] = {};
    std::uint32_t next_escapes[2] = {};
    EscapeWords escapes[2];
    const auto load_escapes = [&](std::uint32_t tile) {
      const auto* const words = reinterpret_cast<const std::uint32_t*>(slot_data + p.bank.escapes);
#pragma unroll
      for (int s = 0; s < 2; ++s)
        next_escapes[s] =
            tile + lane / 4 < p.bank.tiles_per_strip
                ? __ldg(words + (strip_of(pair, s) * p.bank.tiles_per_strip + tile) * kEscapeWords +
                        lane)
                : 0;
    };
    if constexpr (kKind == Kind::kFixed) {
#pragma unroll
      for (int s = 0; s < 2; ++s)
        palettes[s] =
            __ldg(reinterpret_cast<const uint2*>(slot_data + kHeaderBytes) + strip_of(pair, s));
      load_escapes(0);
    }
    float sums[2][kWidth / 2];
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) sums[0][i] = sums[1][i] = 0.0f;
    HalfFragments a[2];
    std::uint32_t last_x = 0;
    const std::uint32_t my_codes = base + kW + warp * 2 * kTileBytes + lane * 16;
    // Codes are loaded before the tensor cores start on those before them. A branch between the
    // last write to operand A and wgmma would make the compiler wait for each wgmma.
    HalfInput<kKind> input;
    barrier_wait_hinted(base + kWFull + w_slot * 8, w_phase);
    input.load(my_codes + w_slot * kWBytes, 0);
    for (std::uint32_t tile = 0; tile < p.bank.tiles_per_strip; ++tile) {
      if (kKind == Kind::kFixed && tile % 8 == 0) {
        escapes[0].take(next_escapes[0]);
        escapes[1].take(next_escapes[1]);
        load_escapes(tile + 8);
      }
      const std::uint32_t codes = my_codes + w_slot * kWBytes;
      const bool is_last = tile + 1 == p.bank.tiles_per_strip;
#pragma unroll
      for (std::uint32_t half = 0; half < 2; ++half) {
        const std::uint32_t x = wgmma_descriptor(base + x_slot * kXBytes);
#pragma unroll
        for (std::uint32_t s = 0; s < 2; ++s) {
          // Computed twice: there are no registers to keep it.
          LanePalette palette;
          if constexpr (kKind == Kind::kFixed)
            palette = escapes[s].palette_of(tile % 8, palettes[s], overflows, lane);
          input.decode(a[s], half, palette);
          if (half == 0 || s == 0) {
            input.load(codes + (s ^ 1) * kTileBytes, half + s);
          } else {
            // The address depends on the loads, so that they are complete.
            const std::uint32_t after = (a[1].a[0][0] | a[1].a[2][0]) & zero;
            barrier_arrive_if(lane == 0, base + kWEmpty + w_slot * 8 + after);
            if (++w_slot == kWStages) w_slot = 0, w_phase ^= 1;
            barrier_wait_hinted(base + kWFull + w_slot * 8, w_phase, !is_last);
            input.load(my_codes + w_slot * kWBytes, 0);  // unused after the last tile
          }
          if (s == 0) {
            barrier_wait_hinted(base + kXFull + x_slot * 8, x_phase);
            fence_async_proxy();  // x was not written by the copy engine
          }
          wgmma_fence();
#pragma unroll
          for (int i = 0; i < 4; ++i) Wgmma<kWidth>::multiply(sums[s], a[s].a[i], x + i * 2);
          wgmma_commit();
          wgmma_wait<1>();
          // The group before is done. After its second strip, so is its stage of x.
          barrier_arrive_if(lane == 0 && s == 0 && (tile != 0 || half != 0),
                            base + kXEmpty + last_x * 8);
        }
        last_x = x_slot;
        if (++x_slot == kXStages) x_slot = 0, x_phase ^= 1;
      }
    }
    wgmma_wait<0>();
    barrier_arrive_if(lane == 0, base + kXEmpty + last_x * 8);
    store<kWidth>(sums, item, pair);
  }

  template <int kWidth>
  __device__ __forceinline__ void store(const float (&sums)[2][kWidth / 2], const ExpertItem& item,
                                        std::uint32_t pair) {
    const std::uint32_t rows = base + kRows + list * kMaxRows * 16;
    if (++list == kRowLists) list = 0;
    if (kGateUp ? pair >= p.bank.part_strips : 2 * pair >= p.bank.strips) return;
#pragma unroll
    for (int j = 0; j < kWidth / 8; j += 2) {
      float gate[2][4], other[2][4];
#pragma unroll
      for (int i = 0; i < 8; ++i)
        gate[i / 4][i % 4] = sums[0][j * 4 + i], other[i / 4][i % 4] = sums[1][j * 4 + i];
      if constexpr (kGateUp) {
        const std::uint32_t row = j * 8 + lane / 4 + lane % 4 / 2 * 8;
        const bool real = row < item.num_rows;
        const std::uint64_t to = load_shared_u32(rows + row * 16);
        store_h_in_order(p.out + to * p.out_row_bytes, swiglu(gate[0], other[0]),
                         swiglu(gate[1], other[1]), pair, real, lane);
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const std::uint32_t row = (j + i) * 8 + lane / 4;
          const bool real = row < item.num_rows;
          const uint2 to = load_shared_b64(rows + row * 16);
          store_weighted(p.out + to.x * p.out_row_bytes, gate[i], other[i], __uint_as_float(to.y),
                         pair, real, lane);
        }
      }
    }
  }

  // Columns of h behind those that items write: the products with down read whole tiles.
  __device__ __forceinline__ void clear_padding() const {
    const auto units = static_cast<std::uint32_t>(p.out_row_bytes / 16),
               empty = units - 2 * p.bank.part_strips;
    for (std::uint32_t i = blockIdx.x * 32 + lane; i < p.shape.num_pairs * empty;
         i += gridDim.x * 32)
      *reinterpret_cast<uint4*>(p.out + i / empty * p.out_row_bytes +
                                (2 * p.bank.part_strips + i % empty) * 16) = {};
  }

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      for (std::uint32_t i = 0; i < kWStages; ++i) {
        barrier_init(base + kWFull + i * 8, 1);
        barrier_init(base + kWEmpty + i * 8, kWarps);
      }
      for (std::uint32_t i = 0; i < kXStages; ++i) {
        barrier_init(base + kXFull + i * 8, 2 * kGatherThreads);
        barrier_init(base + kXEmpty + i * 8, kWarps);
      }
      barrier_init_fence();
    }
    // Routing is two kernels before down, and has ended when that starts.
    if (kGateUp || p.alone) wait_for_previous_kernel();
    num_active = walk.template load<kThreads>(p.routing, p.shape.experts);
    __syncthreads();
    let_next_kernel_start();
    total = static_cast<std::uint32_t>(walk.num_items(num_active, p.items));
    if (warp >= kWarps) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
      if (warp == kWarps) copy_weights();
      if (kGateUp && warp == kWarps + 1) clear_padding();
      if (warp >= kWarps + 2) {
        if (!kGateUp) wait_for_previous_kernel();
        gather_rows();
      }
    } else {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
      if (!kGateUp) wait_for_previous_kernel();
      for_each_item([&](const ExpertItem& item) {
        if constexpr (kNarrow != kMaxRows)
          if (item.num_rows <= kNarrow) return multiply<kNarrow>(item);
        multiply<kMaxRows>(item);
      });
    }
  }
};

template <Kind kKind, bool kGateUp, int kMaxRows>
__global__ void __launch_bounds__(ManyExpertRows<kKind, kGateUp, kMaxRows>::kThreads, 1)
    experts_many_rows(const __grid_constant__ ExpertsProduct p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::uint8_t memory[];
  if (shared_address(memory) % 1024 != 0) __trap();  // swizzled rows need it
  ManyExpertRows<kKind, kGateUp, kMaxRows>(p, shared_address(memory)).run();
#endif
}

}  // namespace snug::gemm
