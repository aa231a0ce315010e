// cuda/encode_fixed.cuh - the `fixed` codec for BF16 and F32, and raw and constant
// blocks of every type: what the worker threads of cuda/encode_wide.cuh do, which
// turn a block in shared memory into its payload in place.
#pragma once
#include "codec/sample.h"
#include "codec/sections.h"
#include "cuda/bulk_copy.cuh"
#include "cuda/encode_frame.cuh"
#include "cuda/fixed_palette.cuh"

namespace snug::cuda {

inline constexpr std::uint32_t kMaxStageBytes = 64 * 1024;  // three of them fit a multiprocessor

// Widths 2 and 4 stand for BF16 and F32 with the fixed codec; 1 for any type,
// raw or constant. A unit is 8 values, one word of nibbles.
template <int kWidth>
inline constexpr int kFixedUnits = kWidth == 4 ? 8 : 16;  // a thread, at most

// Escapes are collected here while the block they come from is overwritten; more
// than that are read again from the tensor.
__host__ __device__ constexpr std::uint32_t escape_room(std::uint32_t block_elems) {
  return block_elems / 32;
}

template <int kThreads>
struct FixedSmem {
  unsigned long long loaded;  // barrier
  EncodeJob job, next_job;
  bool ends;
  bool may_be_constant;
  bool by_hand;  // workers load the block: no bulk copy can
  uint2 palette;
  std::uint32_t num_escapes;
  std::uint32_t payload_bytes;
  std::uint32_t codec;
  std::uint32_t plane_modes;
  std::uint32_t differs;  // bits in which values differ from the first
  std::uint8_t lut[256];  // index of a high byte, whatever its sign
  std::uint32_t histogram[128 * kHistogramCopies];
  std::uint32_t num_escapes_of[kThreads / kWarp];  // warps
  unsigned long long sum;                          // checksum terms of the payload
};

template <int kThreads>
__device__ __forceinline__ void sync_all() {
  asm volatile("bar.sync 2, %0;" ::"n"(kThreads + kWarp) : "memory");
}
template <int kThreads>
__device__ __forceinline__ void sync_workers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

// Where the parts of a fixed payload are.
struct FixedParts {
  std::uint32_t plane[3];
  std::uint32_t nibbles;
  std::uint32_t head;

  __device__ FixedParts(std::uint32_t n, unsigned width, std::uint32_t plane_modes) {
    std::uint32_t at = 0;
#pragma unroll
    for (unsigned pass = 0; pass < 2; ++pass)
#pragma unroll
      for (unsigned p = 0; p < 3; ++p) {
        if (p + 1 >= width || (plane_modes >> (2 * p) & 3) != pass) continue;
        plane[p] = at;
        at += pass == 0 ? static_cast<std::uint32_t>(align16(n)) : 16;
      }
    nibbles = at;
    head = at + static_cast<std::uint32_t>(align16(codec::fixed_nibble_bytes(n)));
  }
};

// Eight values as planes: lows[p] holds byte p of each, high the top bytes.
template <int kWidth>
struct Unit {
  uint2 lows[kWidth == 4 ? 3 : 1];
  uint2 high;
  std::uint32_t differs;

  __device__ __forceinline__ Unit(std::uint32_t stage, std::uint32_t unit, std::uint32_t first) {
    if constexpr (kWidth == 2) {
      const uint4 v = load_shared16(stage + 16 * unit);
      differs = (v.x ^ first) | (v.y ^ first) | (v.z ^ first) | (v.w ^ first);
      lows[0] = {__byte_perm(v.x, v.y, 0x6420), __byte_perm(v.z, v.w, 0x6420)};
      high = {__byte_perm(v.x, v.y, 0x7531), __byte_perm(v.z, v.w, 0x7531)};
    } else {
      const uint4 a = load_shared16(stage + 32 * unit), b = load_shared16(stage + 32 * unit + 16);
      differs = (a.x ^ first) | (a.y ^ first) | (a.z ^ first) | (a.w ^ first) | (b.x ^ first) |
                (b.y ^ first) | (b.z ^ first) | (b.w ^ first);
#pragma unroll
      for (unsigned p = 0; p < 3; ++p) lows[p] = {column(a, p), column(b, p)};
      high = {column(a, 3), column(b, 3)};
    }
  }
  __device__ static __forceinline__ std::uint32_t column(uint4 v, unsigned p) {
    const unsigned pick = p | (p + 4) << 4;
    return __byte_perm(__byte_perm(v.x, v.y, pick), __byte_perm(v.z, v.w, pick), 0x5410);
  }
};

// Nibble word of 8 top bytes (codec/kernels_scalar.cpp draws it).
__device__ __forceinline__ std::uint32_t pack_nibbles(uint2 high, const std::uint8_t* lut) {
  std::uint32_t packed = (high.x & 0x80808080u) | (high.y & 0x80808080u) >> 4;
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    packed |= std::uint32_t{lut[high.x >> (8 * i) & 255]} << (4 * i);
    packed |= std::uint32_t{lut[high.y >> (8 * i) & 255]} << (4 * i + 16);
  }
  return packed;
}

// What pack_nibbles gives where only `num_values` of the 8 exist.
inline __device__ __noinline__ std::uint32_t cut_nibbles(std::uint32_t packed,
                                                         std::int32_t num_values) {
  for (std::int32_t i = max(num_values, 0); i < 8; ++i)
    packed &= ~(7u << (4 * i) | 1u << (i < 4 ? 8 * i + 7 : 8 * (i - 4) + 3));
  return packed;
}

// Bit 4i is set where value i is an escape (index 7).
__device__ __forceinline__ std::uint32_t escape_flags(std::uint32_t nibbles) {
  return nibbles & nibbles >> 1 & nibbles >> 2 & 0x11111111u;
}

// Counts the upper exponent bits of the sampled values.
template <int kWidth, int kThreads>
__device__ __forceinline__ void sample_stage(const std::uint8_t* block, std::uint32_t n,
                                             std::uint32_t histogram) {
  const auto stride = static_cast<std::uint32_t>(codec::sample_stride(n));
  const std::uint32_t shift = 31 - __clz(static_cast<int>(stride));
  const auto unit_start = [&](std::uint32_t unit) {
    const std::uint32_t run = unit / 2;
    return ((run << shift) + (run & (stride - 1))) * 16 + unit % 2 * 8;
  };
  const std::uint32_t mine = histogram + 4 * (threadIdx.x % kHistogramCopies);
  const auto count = [&](std::uint32_t top) {
    count_shared(mine + (top & 127) * (4 * kHistogramCopies));
  };
  if (n % 4096 != 0) {  // the last block of a tensor, value by value
#pragma unroll 1
    for (std::uint32_t i = threadIdx.x; unit_start(i / 8) + i % 8 < n; i += kThreads)
      count(block[(unit_start(i / 8) + i % 8) * kWidth + kWidth - 1]);
    return;
  }
#pragma unroll 1
  for (std::uint32_t unit = threadIdx.x; unit < n >> (3 + shift); unit += kThreads) {
    const Unit<kWidth> u(shared_address(block), unit_start(unit) / 8, 0);
#pragma unroll
    for (unsigned i = 0; i < 32; i += 8) {
      count(u.high.x >> i);
      count(u.high.y >> i);
    }
  }
}

// What workers put into shared memory is 0 from the end of a partial block on.
template <int kThreads>
__device__ __noinline__ void clear_rest(std::uint8_t* block, std::uint32_t first,
                                        std::uint32_t last) {
  for (std::uint32_t i = first + threadIdx.x; i < last; i += kThreads) block[i] = 0;
}

// Bits in which values of a block of any type differ from the first value.
template <int kThreads>
__device__ __noinline__ std::uint32_t compare_values(const std::uint8_t* block,
                                                     std::uint32_t num_bytes, unsigned width) {
  std::uint32_t first[2] = {};
  for (unsigned i = 0; i < 8; ++i) first[i / 4] |= std::uint32_t{block[i % width]} << (i % 4 * 8);
  std::uint32_t differs = 0;
#pragma unroll 4
  for (std::uint32_t vec = threadIdx.x; vec < num_bytes / 16; vec += kThreads) {
    const uint4 v = reinterpret_cast<const uint4*>(block)[vec];
    differs |= (v.x ^ first[0]) | (v.y ^ first[1]) | (v.z ^ first[0]) | (v.w ^ first[1]);
  }
  for (std::uint32_t i = num_bytes / 16 * 16 + threadIdx.x; i < num_bytes; i += kThreads)
    differs |= static_cast<std::uint32_t>(block[i] ^ block[i % width]) << (i % width % 4 * 8);
  return differs;
}

// Escapes of the warps before this one.
__device__ __forceinline__ std::uint32_t escapes_before(const std::uint32_t* num_escapes_of,
                                                        unsigned warp) {
  return __reduce_add_sync(kAll, lane_id() < warp ? num_escapes_of[lane_id()] : 0);
}

// Lists the escapes of one unit of each lane from place `first` on; returns where
// the next ones go. A call of its own: few units have any.
template <int kWidth>
__device__ __noinline__ std::uint32_t collect_escapes(std::uint32_t stage, std::uint32_t unit,
                                                      std::uint32_t flags, std::uint32_t first,
                                                      std::uint32_t* escapes, std::uint32_t room) {
  const unsigned lane = lane_id();
  const std::uint32_t count = __popc(flags);
  std::uint32_t before = count;
  for (int d = 1; d < 32; d *= 2) {
    const std::uint32_t below = __shfl_up_sync(kAll, before, d);
    if (lane >= static_cast<unsigned>(d)) before += below;
  }
  const std::uint32_t after = first + __shfl_sync(kAll, before, 31);
  if (flags == 0) return after;
  std::uint32_t next = first + before - count;
  const uint2 high = Unit<kWidth>(stage, unit, 0).high;
  for (; flags != 0; flags &= flags - 1, ++next) {
    const std::uint32_t i = static_cast<std::uint32_t>(__ffs(static_cast<int>(flags)) - 1) / 4;
    if (next < room)
      escapes[next] = (8 * unit + i) | ((i < 4 ? high.x : high.y) >> (i % 4 * 8) & 255) << 24;
  }
  return after;
}

// Escapes that found no room, straight from the tensor. Rare: 3 % of a block.
template <class Access, int kWidth, int kThreads>
__device__ __noinline__ void collect_late_escapes(Access src, std::uint64_t pos, std::uint32_t n,
                                                  const std::uint8_t* lut, std::uint32_t room,
                                                  std::uint32_t* out) {
  if (threadIdx.x >= kWarp) return;
  std::uint32_t found = 0;
  for (std::uint32_t base = 0; base < n; base += kWarp) {
    const std::uint32_t i = base + threadIdx.x;
    const std::uint32_t top =
        i < n ? src.load_byte(pos + std::uint64_t{i} * kWidth + kWidth - 1) : 0;
    const bool escaped = i < n && lut[top] == 7;
    const unsigned mask = __ballot_sync(kAll, escaped);
    const std::uint32_t next = found + __popc(mask & ((1u << threadIdx.x) - 1));
    if (escaped && next >= room) out[next] = i | top << 24;
    found += __popc(mask);
  }
}

// The payload of a fixed block in place of the block; returns checksum terms.
template <class Access, int kWidth, int kThreads>
__device__ __forceinline__ std::uint64_t write_fixed(
    const Access& src, std::uint8_t* block, const FixedSmem<kThreads>& smem,
    const std::uint32_t (&nibbles)[kFixedUnits<kWidth>], std::uint32_t first_unit, int units_each,
    std::uint32_t* escapes, std::uint32_t room) {
  constexpr int kUnits = kFixedUnits<kWidth>, kLows = kWidth == 4 ? 3 : 1;
  const std::uint32_t t = threadIdx.x, stage = shared_address(block), n = smem.job.n;
  std::uint32_t next = smem.num_escapes == 0 ? 0 : escapes_before(smem.num_escapes_of, t / kWarp);
  uint2 lows[kUnits][kLows];
#pragma unroll
  for (int k = 0; k < kUnits; ++k) {
    if (k >= units_each) break;
    const std::uint32_t flags = escape_flags(nibbles[k]);
    if (smem.num_escapes != 0 && __any_sync(kAll, flags != 0))
      next = collect_escapes<kWidth>(stage, first_unit + k * kWarp, flags, next, escapes, room);
    const Unit<kWidth> u(stage, first_unit + k * kWarp, 0);
#pragma unroll
    for (int p = 0; p < kLows; ++p) lows[k][p] = u.lows[p];
  }
  sync_workers<kThreads>();
  const FixedParts parts(n, kWidth, smem.plane_modes);
  const auto low_part = static_cast<std::uint32_t>(align16(n)),
             nibble_part = parts.head - parts.nibbles;
  const bool whole = n == 8 * kThreads * static_cast<std::uint32_t>(units_each);
  std::uint64_t sum = 0;
#pragma unroll
  for (int k = 0; k < kUnits; ++k) {
    if (k >= units_each) break;
    const std::uint32_t unit = first_unit + k * kWarp;
    if (whole || 8 * unit < low_part) {
#pragma unroll
      for (int p = 0; p < kLows; ++p) {
        if (kWidth == 4 && (smem.plane_modes >> (2 * p) & 3) != 0) continue;
        store_shared(stage + parts.plane[p] + 8 * unit, lows[k][p]);
        const std::uint32_t word = parts.plane[p] / 4 + 2 * unit;
        sum += checksum_term(lows[k][p].x, word) + checksum_term(lows[k][p].y, word + 1);
      }
    }
    if (whole || 4 * unit < nibble_part) {
      store_shared(stage + parts.nibbles + 4 * unit, nibbles[k]);
      sum += checksum_term(nibbles[k], parts.nibbles / 4 + unit);
    }
  }
  const auto put = [&](std::uint32_t at, std::uint32_t value) {
    store_shared(stage + at, value);
    sum += checksum_term(value, at / 4);
  };
  if (t == 0) {
    if constexpr (kWidth == 4) {
#pragma unroll
      for (int p = 0; p < kLows; ++p) {
        if ((smem.plane_modes >> (2 * p) & 3) != 1) continue;
        put(parts.plane[p], lows[0][p].x & 255);
        for (unsigned i = 4; i < 16; i += 4) put(parts.plane[p] + i, 0);
      }
    }
    put(parts.head, smem.num_escapes);
    put(parts.head + 4, smem.palette.x);
    put(parts.head + 8, smem.palette.y);
    put(parts.head + 12, 0);
  }
  const std::uint32_t first = parts.head + codec::FixedHeader::kBytes;
  if (smem.num_escapes > room)
    collect_late_escapes<Access, kWidth, kThreads>(src, smem.job.pos, n, smem.lut, room,
                                                   reinterpret_cast<std::uint32_t*>(block + first));
  if (smem.num_escapes > room) sync_workers<kThreads>();
  for (std::uint32_t i = t; first + 4 * i < smem.payload_bytes; i += kThreads) {
    std::uint32_t value = 0;
    if (i < smem.num_escapes)
      value = i < room ? escapes[i] : *reinterpret_cast<std::uint32_t*>(block + first + 4 * i);
    put(first + 4 * i, value);
  }
  return sum;
}

// Raw: checksum terms of what is there. Constant: the first value alone.
template <int kThreads>
__device__ __noinline__ std::uint64_t write_plain(std::uint8_t* block, std::uint32_t payload_bytes,
                                                  bool constant, unsigned width) {
  std::uint64_t sum = 0;
  if (constant && threadIdx.x < 16 && threadIdx.x >= width) block[threadIdx.x] = 0;
  if (constant) sync_workers<kThreads>();
#pragma unroll 4
  for (std::uint32_t vec = threadIdx.x; vec < payload_bytes / 16; vec += kThreads)
    sum += checksum_term(reinterpret_cast<const uint4*>(block)[vec], vec);
  return sum;
}

template <class Access, int kWidth, int kThreads>
__device__ __forceinline__ void code_blocks(const Work& work, std::uint8_t* block,
                                            FixedSmem<kThreads>& smem) {
  constexpr int kUnits = kFixedUnits<kWidth>;
  const unsigned t = threadIdx.x, lane = lane_id(), warp = t / kWarp;
  const unsigned width = width_of(work.dtype);
  const std::uint32_t block_elems = 1u << work.log2_block, block_bytes = block_elems * width;
  const std::uint32_t stage = shared_address(block), barrier = shared_address(&smem.loaded);
  auto* escapes = reinterpret_cast<std::uint32_t*>(block + block_bytes);
  // Each warp has units of its own, one after the other; a lane every 32nd.
  const auto units_each = static_cast<int>((block_elems / 8 + kThreads - 1) / kThreads);
  const std::uint32_t first_unit = warp * static_cast<unsigned>(units_each) * kWarp + lane;
  for (unsigned parity = 0;;) {
    if constexpr (kWidth > 1) {
      for (unsigned i = t; i < 128 * kHistogramCopies; i += kThreads) smem.histogram[i] = 0;
      for (unsigned i = t; i < 64; i += kThreads)
        reinterpret_cast<std::uint32_t*>(smem.lut)[i] = 0x07070707u;
    }
    if (t == 0) smem.differs = 0;
    sync_all<kThreads>();
    if (smem.ends) return;
    const std::uint32_t n = smem.job.n;
    const bool whole = n == block_elems;
    const Access src = access_item<Access>(work, smem.job.w.item);
    if (smem.by_hand) {
      for (std::uint32_t at = 16 * t; at < n * width; at += 16 * kThreads)
        store_shared(stage + at,
                     load_end(src, smem.job.pos + at, static_cast<std::int32_t>(n * width - at)));
    } else {
      wait_barrier(barrier, parity);
      parity ^= 1;
    }
    if (!whole) clear_rest<kThreads>(block, n * width, block_bytes);
    if (!whole || smem.by_hand) sync_workers<kThreads>();

    std::uint32_t nibbles[kUnits] = {};
    std::uint32_t differs = 0;
    if constexpr (kWidth == 1) {
      if (work.codec != Codec::kRaw) differs = compare_values<kThreads>(block, n * width, width);
    } else {
      sample_stage<kWidth, kThreads>(block, n, shared_address(smem.histogram));
      sync_all<kThreads>();
      // The placer makes the palette.
      sync_all<kThreads>();
      std::uint32_t first = *reinterpret_cast<const std::uint32_t*>(block), num_escapes = 0;
      if constexpr (kWidth == 2) first = __byte_perm(first, 0, 0x1010);
      // Planes of F32 may be constant on their own.
      const bool compare = kWidth == 4 || smem.may_be_constant;
      if (!compare) differs = 1;
#pragma unroll
      for (int k = 0; k < kUnits; ++k) {
        if (k >= units_each) break;
        const std::uint32_t unit = first_unit + k * kWarp;
        const Unit<kWidth> u(stage, unit, first);
        if (compare) differs |= u.differs;
        nibbles[k] = pack_nibbles(u.high, smem.lut);
        if (!whole)
          nibbles[k] = cut_nibbles(
              nibbles[k], static_cast<std::int32_t>(n) - 8 * static_cast<std::int32_t>(unit));
        num_escapes += __popc(escape_flags(nibbles[k]));
      }
      if (!whole) differs = compare_values<kThreads>(block, n * width, width);
      num_escapes = __reduce_add_sync(kAll, num_escapes);
      if (lane == 0) smem.num_escapes_of[warp] = num_escapes;
    }
    differs = __reduce_or_sync(kAll, differs);
    if (lane == 0 && differs != 0) atomicOr(&smem.differs, differs);
    sync_all<kThreads>();
    // The placer settles codec and size.
    sync_all<kThreads>();
    std::uint64_t sum = 0;
    bool fixed = false;
    if constexpr (kWidth > 1) {
      fixed = smem.codec == static_cast<unsigned>(Codec::kFixed);
      if (fixed)
        sum = write_fixed<Access, kWidth, kThreads>(src, block, smem, nibbles, first_unit,
                                                    units_each, escapes, escape_room(block_elems));
    }
    if (!fixed)
      sum = write_plain<kThreads>(block, smem.payload_bytes,
                                  smem.codec == static_cast<unsigned>(Codec::kConstant), width);
    sum = warp_sum64(sum);
    if (lane == 0) atomicAdd(&smem.sum, static_cast<unsigned long long>(sum));
    fence_for_bulk();
    sync_all<kThreads>();
  }
}

}  // namespace snug::cuda
