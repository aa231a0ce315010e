// codec/cuda/encode_fixed/analyze_block.cuh - the analyzers of encode_fixed.cu: palette and number
// of escapes of a block in the ring, and whether it is constant.
#pragma once
#include "codec/cuda/encode_fixed/encode_ring.cuh"
#include "codec/sample.h"

namespace snug::cuda {

using AnalyzerTeam = BarrierTeam<kAnalyzerThreads>;

// Counts the upper exponent bits of the sampled values. Returns bits in which sampled values differ
// from the first one.
template <int kWidth>
__device__ __forceinline__ u32 sample_block(const RingBlock& block, u32 n, u32 histogram,
                                            unsigned thread) {
  const auto stride = static_cast<u32>(codec::sample_stride(n));
  const u32 shift = 31 - __clz(static_cast<int>(stride));
  const auto unit_start = [&](u32 unit) {
    const u32 run = unit / 2;
    return ((run << shift) + (run & (stride - 1))) * 16 + unit % 2 * 8;
  };
  const u32 mine = histogram + 4 * (thread % kHistogramCopies);
  const auto count = [&](u32 top) {
    increment_shared(mine + (top & 127) * (4 * kHistogramCopies));
  };
  if (n % 4096 != 0) {  // the last block of a tensor, value by value
#pragma unroll 1
    for (u32 i = thread; unit_start(i / 8) + i % 8 < n; i += kAnalyzerThreads)
      count(load_shared_u8(block.at((unit_start(i / 8) + i % 8) * kWidth + kWidth - 1)));
    return 0;
  }
  u32 first = load_shared_u32(block.start), differs = 0;
  if constexpr (kWidth == 2) first = __byte_perm(first, 0, 0x1010);
  // Two units at a time: their loads overlap.
  const u32 num_units = n >> (3 + shift);
#pragma unroll 1
  for (u32 unit = thread; unit < num_units; unit += 2 * kAnalyzerThreads) {
    UnitVecs<kWidth> u[2];
    const bool two = unit + kAnalyzerThreads < num_units;
    u[0].load(block.at(unit_start(unit) * kWidth), 0);
    if (two) u[1].load(block.at(unit_start(unit + kAnalyzerThreads) * kWidth), 0);
#pragma unroll
    for (unsigned k = 0; k < 2; ++k) {
      if (k == 1 && !two) break;
      differs |= u[k].differs(first);
      const uint2 high = u[k].high();
#pragma unroll
      for (unsigned i = 0; i < 32; i += 8) {
        count(high.x >> i);
        count(high.y >> i);
      }
    }
  }
  return differs;
}

// Bits in which values of a block of any type differ from the first one.
inline __device__ __noinline__ u32 compare_values(RingBlock block, u32 num_bytes, unsigned width,
                                                  unsigned thread) {
  u32 first[2] = {};
  for (unsigned i = 0; i < 8; ++i)
    first[i / 4] |= load_shared_u8(block.start + i % width) << (i % 4 * 8);
  u32 differs = 0;
#pragma unroll 4
  for (u32 vec = thread; vec < num_bytes / 16; vec += kAnalyzerThreads) {
    const uint4 v = load_shared_b128(block.at(16 * vec));
    differs |= (v.x ^ first[0]) | (v.y ^ first[1]) | (v.z ^ first[0]) | (v.w ^ first[1]);
  }
  for (u32 i = num_bytes / 16 * 16 + thread; i < num_bytes; i += kAnalyzerThreads)
    differs |= (load_shared_u8(block.at(i)) ^ load_shared_u8(block.start + i % width))
               << (i % width % 4 * 8);
  return differs;
}

// Whether a block with these differences has no constant plane.
template <int kWidth>
__device__ __forceinline__ bool varies_everywhere(u32 differs) {
  if constexpr (kWidth == 4)
    return (differs & 0xFF) != 0 && (differs & 0xFF00) != 0 && (differs & 0xFF0000) != 0;
  return differs != 0;
}

// Before make_tables: every value is an escape, and each slot has a value that never matches.
__device__ __forceinline__ void clear_tables(BlockInfo& info, unsigned thread) {
  if (thread < 32) reinterpret_cast<u32*>(info.lut)[thread] = 0x07070707u;
  if (thread - 32 < sizeof(info.tables) / 4)
    reinterpret_cast<u32*>(info.tables)[thread - 32] = thread % 4 == 0   ? 0x02030001u
                                                       : thread % 4 == 1 ? 0x06070405u
                                                                         : 0;
}

// Palette and tables, by one warp; `sampled` is the number of values in the histogram.
__device__ __forceinline__ void make_tables(const u32* histogram, u32 sampled, BlockInfo& info) {
  const unsigned lane = lane_id();
  u32 most_common;
  const uint2 palette = make_fixed_palette<kHistogramCopies>(histogram, &most_common);
  const u32 entry = (lane < 4 ? palette.x : palette.y) >> (lane % 4 * 8) & 255;
  const u32 slot = lane < 7 ? entry & 7 : lane + 1;
  const unsigned below = __match_any_sync(kAllLanes, slot) & ((1u << lane) - 1);
  const auto rank = static_cast<unsigned>(__popc(below));
  const bool needs_second = __any_sync(kAllLanes, rank == 1),
             needs_more = __any_sync(kAllLanes, rank > 1);
  if (lane < 7) {
    info.lut[entry] = static_cast<u8>(lane);
    if (rank < 2) {
      PackTables& table = info.tables[rank];
      reinterpret_cast<u8*>(&table.value)[slot] = static_cast<u8>(entry);
      reinterpret_cast<u8*>(&table.index)[slot] = static_cast<u8>(lane);
    }
  }
  if (lane == 0) {
    info.palette = palette;
    info.num_tables = needs_more ? 0 : needs_second ? 2 : 1;
    info.sure_escapes = static_cast<int>(sampled) - 7 * static_cast<int>(most_common);
    info.may_be_raw = info.sure_escapes > static_cast<int>(sampled / 8);
  }
}

// Counts the escapes of this warp's parts, two parts of kRows rows at a time. Most have none. One
// or two tables hold the palette.
template <int kWidth, unsigned kRows>
__device__ __forceinline__ void count_escapes(const RingBlock& block, BlockInfo& info,
                                              unsigned warp, unsigned num_pieces) {
  static_assert(kPartsOfAnalyzer % 2 == 0);
  const uint2 first = info.tables[0].value;
  const unsigned lane = lane_id(), last_part = kPartsOfAnalyzer * (warp + 1) * num_pieces;
  u32 total = 0;
#pragma unroll 1
  for (unsigned part = kPartsOfAnalyzer * warp * num_pieces; part < last_part; part += 2) {
    // Both parts are in the same unit of the ring.
    const u32 rows = block.at(8 * kWidth * kWarpSize * kRows * part);
    u32 misses = 0, both = 0;
    UnitVecs<kWidth> u[2 * kRows];
#pragma unroll
    for (unsigned i = 0; i < 2 * kRows; ++i) u[i].load(rows, i * kWarpSize + lane);
    Lookup look[2 * kRows];
#pragma unroll
    for (unsigned i = 0; i < 2 * kRows; ++i) {
      look[i] = Lookup(u[i].high(), first);
      misses |= look[i].even_misses | look[i].odd_misses;
    }
    if (__any_sync(kAllLanes, misses != 0)) {
      u32 flags[2 * kRows];
#pragma unroll
      for (unsigned i = 0; i < 2 * kRows; ++i) flags[i] = look[i].miss_flags();
      if (info.num_tables == 2) {
        const uint2 second = info.tables[1].value;
#pragma unroll
        for (unsigned i = 0; i < 2 * kRows; ++i) flags[i] &= look[i].with(second).miss_flags();
      }
      u32 count[2] = {};
#pragma unroll
      for (unsigned i = 0; i < 2 * kRows; ++i)
        count[i / kRows] += static_cast<u32>(__popc(flags[i]));
      both = __reduce_add_sync(kAllLanes, count[0] | count[1] << 16);
      total += (both & 0xFFFF) + (both >> 16);
    }
    if (lane == 0) {
      info.escapes_of[part] = static_cast<u16>(both);
      info.escapes_of[part + 1] = static_cast<u16>(both >> 16);
    }
  }
  if (lane == 0 && total != 0) atomicAdd(&info.num_escapes, total);
}

// The same for partial blocks and for palettes that two tables do not hold. Counting may stop
// (`may_stop`) when there are so many escapes that the block becomes raw.
template <int kWidth>
__device__ __forceinline__ void count_escapes_slow(const RingBlock& block, BlockInfo& info,
                                                   unsigned warp, Pieces pieces, bool is_whole,
                                                   bool may_stop) {
  const unsigned lane = lane_id();
  const u32 n = info.job.n, lut = kept_shared_address(info.lut);
  // Values of a part that sure_escapes has counted already.
  const auto sampled = static_cast<int>(pieces.rows * 8 * kWarpSize / codec::sample_stride(n));
  const auto is_escape = [&](u32 top) { return load_shared_u8(lut + (top & 127)) == 7 ? 1u : 0u; };
  const uint2 value = info.tables[0].value;
#pragma unroll 1
  for (unsigned part = kPartsOfAnalyzer * warp * pieces.num;
       part < kPartsOfAnalyzer * (warp + 1) * pieces.num; ++part) {
    u32 count = 0;
#pragma unroll 1
    for (u32 row = part * pieces.rows; row < (part + 1) * pieces.rows; ++row) {
      const u32 unit = row * kWarpSize + lane;
      UnitVecs<kWidth> u;
      u.load(block.at(8 * kWidth * unit), 0);
      const Lookup look(u.high(), value);
      if (!look.misses()) continue;
      if (8 * unit + 8 <= n) {
#pragma unroll
        for (unsigned k = 0; k < 32; k += 8)
          count += is_escape(look.even >> k) + is_escape(look.odd >> k);
      } else {
        for (u32 v = 0; 8 * unit + v < n; ++v) count += is_escape(look.top_byte(v));
      }
    }
    count = __reduce_add_sync(kAllLanes, count);
    bool is_enough = false;
    if (lane == 0) {
      info.escapes_of[part] = static_cast<u16>(count);
      const u32 total = atomicAdd(&info.num_escapes, count) + count;
      const int others = static_cast<int>(count) - sampled,
                sure = atomicAdd(&info.sure_escapes, others) + others;
      const bool is_sure = may_stop && is_whole && sure > static_cast<int>(n / 8);
      if (is_sure) atomicMax(&info.num_escapes, n);  // more than it may have
      is_enough = is_sure || total > n / 8;
    }
    if (may_stop && __shfl_sync(kAllLanes, is_enough, 0)) return;
  }
}

// Completes a block in the ring: loads what bulk copies cannot, and pads a partial one with zeros.
template <class Access>
__device__ __noinline__ void complete_block(Access src, const BlockInfo& info, RingBlock block,
                                            u32 num_bytes, u32 block_bytes, unsigned thread) {
  // Bulk copies move whole vectors: the bytes behind the last one are missing.
  const u32 start = info.by_hand ? 0 : num_bytes & ~15u;
  for (u32 at = start + 16 * thread; at < block_bytes; at += 16 * kAnalyzerThreads)
    store_shared(block.at(at), load_end(src, info.job.pos + at,
                                        static_cast<i32>(num_bytes) - static_cast<i32>(at)));
  fence_async_proxy();  // a bulk copy overwrites these bytes next
}

template <class Access, int kWidth>
__device__ __forceinline__ void analyze_blocks(const Work& work, RingCursor cursor, unsigned thread,
                                               EncodeFixedSmem& smem) {
  const unsigned warp = thread / kWarpSize, width = width_in<kWidth>(work);
  const u32 block_bytes = cursor.ring.block_units * kRingUnit;
  const u32 block_elems = 1u << work.log2_block;
  const Pieces pieces = Pieces::of<kWidth>(block_bytes);
  const auto sampled = static_cast<u32>(block_elems / codec::sample_stride(block_elems));
  smem.totals[0].clear(thread);
  AnalyzerTeam::sync();
  for (unsigned j = 0;; ++j, cursor.advance()) {
    BlockInfo& info = smem.infos[j % kBlockInfos];
    const RingBlock block = cursor.block();
    await_block(smem.full, j);
    if (info.ends) return;
    AnalyzerTotals& totals = smem.totals[j % 2];
    if constexpr (kWidth > 1) clear_tables(info, thread);
    const u32 n = info.job.n, num_bytes = n * width;
    if (info.by_hand || n != block_elems) {
      // `full` does not imply that there is room: the producer arrives there before it waits.
      for (unsigned unit = 0; unit < cursor.ring.block_units; ++unit)
        if (!cursor.is_new(unit))
          barrier_wait(shared_address(&smem.empty[cursor.barrier(unit)]), cursor.parity(unit));
      complete_block(access_item<Access>(work, info.job.w.item), info, block, num_bytes,
                     block_bytes, thread);
      AnalyzerTeam::sync();
    }
    u32 differs = 0;
    const auto add_differences = [&](unsigned of) {
      differs = __reduce_or_sync(kAllLanes, differs);
      if (lane_id() == 0 && differs != 0) atomicOr(&totals.differs[of], differs);
      AnalyzerTeam::sync();
      differs = totals.differs[of];
    };
    if constexpr (kWidth > 1) {
      differs = sample_block<kWidth>(block, n, kept_shared_address(totals.histogram), thread);
      add_differences(0);
      if (warp == 0) make_tables(totals.histogram, sampled, info);
    }
    smem.totals[(j + 1) % 2].clear(thread);
    const bool varies = work.codec == Codec::kRaw || varies_everywhere<kWidth>(differs);
    if (!varies) {
      differs = compare_values(block, num_bytes, width, thread);
      add_differences(1);
    }
    AnalyzerTeam::sync();
    if constexpr (kWidth > 1) {
      if (info.num_tables == 0 || info.may_be_raw || n != block_elems)
        count_escapes_slow<kWidth>(block, info, warp, pieces, n == block_elems, varies);
      else
        pieces.rows == 2 ? count_escapes<kWidth, 2>(block, info, warp, pieces.num)
                         : count_escapes<kWidth, 1>(block, info, warp, pieces.num);
    }
    if (thread == 0) info.differs = differs;
    barrier_arrive(shared_address(&smem.counted[j % kBlockInfos]));
  }
}

}  // namespace snug::cuda
