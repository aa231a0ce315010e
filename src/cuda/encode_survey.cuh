// cuda/encode_survey.cuh - what becomes of a block that lies in shared memory: its
// palette and its escapes. The work of the surveyors of cuda/encode_wide.cuh.
#pragma once
#include "codec/sample.h"
#include "cuda/bulk_copy.cuh"
#include "cuda/encode_frame.cuh"
#include "cuda/fixed_pack.cuh"
#include "cuda/fixed_palette.cuh"

namespace snug::cuda {

inline constexpr unsigned kWriters = 16;   // warps that write payloads
inline constexpr unsigned kSurveyors = 8;  // warps that survey one block after the other
inline constexpr unsigned kSurveyThreads = kSurveyors * kWarp;
inline constexpr unsigned kPlacers = 3;  // warps that find places, block by block in turn
inline constexpr unsigned kMaxEncodeStages = 8;
inline constexpr unsigned kBlockInfos = 2 * kMaxEncodeStages;
inline constexpr std::uint32_t kRowElems = 8 * kWarp;  // a warp's step, one unit a lane
inline constexpr unsigned kMaxPieces = 4, kMaxParts = kMaxPieces * kWriters;

// Writers go through a block piece by piece, so that the next block can come to where they
// have been; of each piece every writer has a part of one or two rows.
struct Pieces {
  unsigned num;
  std::uint32_t rows;  // of a part

  // kWidth as in encode_wide_kernel.
  template <int kWidth>
  static __device__ __forceinline__ Pieces of(std::uint32_t block_bytes) {
    const std::uint32_t rows = block_bytes / ((kWidth == 4 ? 32 : 16) * kWarp * kWriters);
    return {rows < 2 ? 1 : rows / 2, rows < 2 ? 1u : 2u};
  }
};

// What the warps tell each other about a block. Each part is filled in by other ones:
// producer, surveyors, placers, writers.
struct BlockInfo {
  EncodeJob job;
  bool ends;     // there is no such block, nor a later one
  bool by_hand;  // the survey loads it: no bulk copy can

  std::uint32_t differs;  // bits in which values differ from the first
  std::uint32_t num_escapes;
  std::uint32_t escapes_of[kMaxParts];
  uint2 palette;
  PackTables tables[2];
  std::uint8_t lut[128];        // index of a top byte without its sign; 7: escape
  std::uint8_t is_escape[128];  // 1 for the latter
  unsigned num_tables;          // that hold all of the palette; 0: two do not

  std::uint64_t offset;  // of the payload in the frame
  bool written;          // it fits into the frame
  std::uint32_t codec;
  std::uint32_t plane_modes;
  std::uint32_t payload_bytes;

  std::uint64_t sums[kWriters];  // checksum terms of the payload
};

struct EncodeWideSmem {
  unsigned long long full[kMaxEncodeStages];               // barriers: the block has arrived,
  unsigned long long counted[kMaxEncodeStages];            // its size is known,
  unsigned long long placed[kMaxEncodeStages];             // and its place,
  unsigned long long empty[kMaxEncodeStages][kMaxPieces];  // writers have read a piece of it,
  unsigned long long written[kBlockInfos];                 // and are done with all of it
  BlockInfo infos[kBlockInfos];
  std::uint32_t differs[2];  // after the sample, and after all values
  std::uint32_t histogram[128 * kHistogramCopies];
};

__device__ __forceinline__ void sync_surveyors() {
  asm volatile("bar.sync 1, %0;" ::"n"(kSurveyThreads) : "memory");
}

// Counts the upper exponent bits of the sampled values. Returns bits in which some
// of them differ from the first value; not all such bits are found.
template <int kWidth>
__device__ __forceinline__ std::uint32_t sample_block(const std::uint8_t* block,
                                                      std::uint32_t stage, std::uint32_t n,
                                                      std::uint32_t histogram, unsigned thread) {
  const auto stride = static_cast<std::uint32_t>(codec::sample_stride(n));
  const std::uint32_t shift = 31 - __clz(static_cast<int>(stride));
  const auto unit_start = [&](std::uint32_t unit) {
    const std::uint32_t run = unit / 2;
    return ((run << shift) + (run & (stride - 1))) * 16 + unit % 2 * 8;
  };
  const std::uint32_t mine = histogram + 4 * (thread % kHistogramCopies);
  const auto count = [&](std::uint32_t top) {
    count_shared(mine + (top & 127) * (4 * kHistogramCopies));
  };
  if (n % 4096 != 0) {  // the last block of a tensor, value by value
#pragma unroll 1
    for (std::uint32_t i = thread; unit_start(i / 8) + i % 8 < n; i += kSurveyThreads)
      count(block[(unit_start(i / 8) + i % 8) * kWidth + kWidth - 1]);
    return 0;
  }
  std::uint32_t first = *reinterpret_cast<const std::uint32_t*>(block), differs = 0;
  if constexpr (kWidth == 2) first = __byte_perm(first, 0, 0x1010);
#pragma unroll 2
  for (std::uint32_t unit = thread; unit < n >> (3 + shift); unit += kSurveyThreads) {
    UnitVecs<kWidth> u;
    u.load(stage, unit_start(unit) / 8);
    differs |= u.differs(first);
    const uint2 high = u.high();
#pragma unroll
    for (unsigned i = 0; i < 32; i += 8) {
      count(high.x >> i);
      count(high.y >> i);
    }
  }
  return differs;
}

// Bits in which values of a block of any type differ from the first value.
inline __device__ __noinline__ std::uint32_t compare_values(const std::uint8_t* block,
                                                            std::uint32_t num_bytes, unsigned width,
                                                            unsigned thread) {
  std::uint32_t first[2] = {};
  for (unsigned i = 0; i < 8; ++i) first[i / 4] |= std::uint32_t{block[i % width]} << (i % 4 * 8);
  std::uint32_t differs = 0;
#pragma unroll 4
  for (std::uint32_t vec = thread; vec < num_bytes / 16; vec += kSurveyThreads) {
    const uint4 v = reinterpret_cast<const uint4*>(block)[vec];
    differs |= (v.x ^ first[0]) | (v.y ^ first[1]) | (v.z ^ first[0]) | (v.w ^ first[1]);
  }
  for (std::uint32_t i = num_bytes / 16 * 16 + thread; i < num_bytes; i += kSurveyThreads)
    differs |= static_cast<std::uint32_t>(block[i] ^ block[i % width]) << (i % width % 4 * 8);
  return differs;
}

// Whether a block with these differences is neither constant nor has constant planes.
template <int kWidth>
__device__ __forceinline__ bool varies_everywhere(std::uint32_t differs) {
  if constexpr (kWidth == 4)
    return (differs & 0xFF) != 0 && (differs & 0xFF00) != 0 && (differs & 0xFF0000) != 0;
  return differs != 0;
}

// Palette and tables, by one warp; `lut` and `is_escape` say escape everywhere before.
__device__ __forceinline__ void make_tables(const std::uint32_t* histogram, BlockInfo& info) {
  const unsigned lane = lane_id();
  const uint2 palette = make_fixed_palette<kHistogramCopies>(histogram);
  // A byte of value or index for each slot; a value with other bits than its slot is never met.
  auto* words = reinterpret_cast<std::uint32_t*>(info.tables);
  if (lane < sizeof(info.tables) / 4)
    words[lane] = lane % 4 == 0 ? 0x02030001u : lane % 4 == 1 ? 0x06070405u : 0;
  const std::uint32_t entry = (lane < 4 ? palette.x : palette.y) >> (lane % 4 * 8) & 255;
  const std::uint32_t slot = lane < 7 ? entry & 7 : lane + 1;
  const unsigned below = __match_any_sync(kAll, slot) & ((1u << lane) - 1);
  const auto rank = static_cast<unsigned>(__popc(below));
  const unsigned most = __reduce_max_sync(kAll, rank);
  __syncwarp();
  if (lane < 7) {
    info.lut[entry] = static_cast<std::uint8_t>(lane);
    info.is_escape[entry] = 0;
    if (rank < 2) {
      reinterpret_cast<std::uint8_t*>(&info.tables[rank].value)[slot] =
          static_cast<std::uint8_t>(entry);
      reinterpret_cast<std::uint8_t*>(&info.tables[rank].index)[slot] =
          static_cast<std::uint8_t>(lane);
    }
  }
  if (lane == 0) {
    info.palette = palette;
    info.num_tables = most < 2 ? most + 1 : 0;
  }
}

// Counts the escapes of this warp's parts, two at a time, kRows rows each.
template <int kWidth, unsigned kRows, unsigned kTables>
__device__ __forceinline__ void count_escapes(std::uint32_t stage, BlockInfo& info, unsigned warp,
                                              unsigned num_pieces) {
  static_assert(kWriters == 2 * kSurveyors);
  const uint2 values[2] = {info.tables[0].value, info.tables[1].value};
  std::uint32_t total = 0;
#pragma unroll 1
  for (unsigned part = 2 * warp * num_pieces; part < 2 * (warp + 1) * num_pieces; part += 2) {
    UnitVecs<kWidth> u[2 * kRows];
#pragma unroll
    for (unsigned i = 0; i < 2 * kRows; ++i)
      u[i].load(stage, (part * kRows + i) * kWarp + lane_id());
    std::uint32_t count[2] = {};
#pragma unroll
    for (unsigned i = 0; i < 2 * kRows; ++i)
      count[i / kRows] += __popc(miss_flags<kTables>(u[i].high(), values));
    const std::uint32_t both = __reduce_add_sync(kAll, count[0] | count[1] << 16);
    if (lane_id() == 0) {
      info.escapes_of[part] = both & 0xFFFF;
      info.escapes_of[part + 1] = both >> 16;
    }
    total += (both & 0xFFFF) + (both >> 16);
  }
  if (lane_id() == 0 && total != 0) atomicAdd(&info.num_escapes, total);
}

// The same for blocks that are cut short or have a palette that needs a closer look. A block with
// so many escapes that it becomes raw for sure need not be counted to the end (`may_stop`).
template <int kWidth>
__device__ __forceinline__ void count_with_care(std::uint32_t stage, BlockInfo& info, unsigned warp,
                                                Pieces pieces, bool may_stop) {
  const unsigned lane = lane_id();
  const std::uint32_t n = info.job.n, is_escape = kept_shared_address(info.is_escape);
  const uint2 value = info.tables[0].value;
#pragma unroll 1
  for (unsigned part = 2 * warp * pieces.num; part < 2 * (warp + 1) * pieces.num; ++part) {
    std::uint32_t count = 0;
#pragma unroll 1
    for (std::uint32_t row = part * pieces.rows; row < (part + 1) * pieces.rows; ++row) {
      const std::uint32_t unit = row * kWarp + lane;
      UnitVecs<kWidth> u;
      u.load(stage, unit);
      const Lookup look(u.high(), value);
      if (!look.misses()) continue;
      if (8 * unit + 8 <= n) {
#pragma unroll
        for (unsigned k = 0; k < 32; k += 8)
          count += load_shared_u8(is_escape + (look.even >> k & 127)) +
                   load_shared_u8(is_escape + (look.odd >> k & 127));
      } else {
        for (std::uint32_t v = 0; 8 * unit + v < n; ++v)
          count += load_shared_u8(is_escape + (look.top_byte(v) & 127));
      }
    }
    count = __reduce_add_sync(kAll, count);
    std::uint32_t total = 0;
    if (lane == 0) {
      info.escapes_of[part] = count;
      total = atomicAdd(&info.num_escapes, count) + count;
    }
    if (may_stop && __shfl_sync(kAll, total, 0) > n / 8) return;
  }
}

// Makes the stage a whole block: loads it where bulk copies cannot, and writes zeros
// behind the end of a partial one.
template <class Access>
__device__ __noinline__ void complete_stage(Access src, const BlockInfo& info, std::uint8_t* block,
                                            std::uint32_t num_bytes, std::uint32_t block_bytes,
                                            unsigned thread) {
  std::uint32_t at = 16 * thread;
  if (info.by_hand)
    for (; at < num_bytes; at += 16 * kSurveyThreads)
      store_shared(shared_address(block) + at,
                   load_end(src, info.job.pos + at, static_cast<std::int32_t>(num_bytes - at)));
  const std::uint32_t end =
      info.by_hand ? static_cast<std::uint32_t>(align16(num_bytes)) : num_bytes;
  for (std::uint32_t i = end + thread; i < block_bytes; i += kSurveyThreads) block[i] = 0;
  fence_for_bulk();  // the next block comes by a bulk copy
}

template <class Access, int kWidth>
__device__ __forceinline__ void survey_blocks(const Work& work, std::uint8_t* stages,
                                              std::uint32_t block_bytes, unsigned num_stages,
                                              unsigned thread, EncodeWideSmem& smem) {
  const unsigned warp = thread / kWarp, width = width_of(work.dtype);
  const std::uint32_t block_elems = 1u << work.log2_block;
  const std::uint32_t counts = kept_shared_address(smem.histogram);
  const Pieces pieces = Pieces::of<kWidth>(block_bytes);
  for (unsigned j = 0;; ++j) {
    const unsigned s = j % num_stages;
    BlockInfo& info = smem.infos[j % kBlockInfos];
    std::uint8_t* block = stages + s * block_bytes;
    const std::uint32_t stage = kept_shared_address(block);
    if constexpr (kWidth > 1) {
      for (unsigned i = thread; i < 128 * kHistogramCopies; i += kSurveyThreads)
        smem.histogram[i] = 0;
      if (thread < 32) {
        reinterpret_cast<std::uint32_t*>(info.lut)[thread] = 0x07070707u;
        reinterpret_cast<std::uint32_t*>(info.is_escape)[thread] = 0x01010101u;
      }
    }
    if (thread < 2) smem.differs[thread] = 0;
    wait_barrier(shared_address(&smem.full[s]), j / num_stages & 1);
    if (info.ends) return;
    const std::uint32_t n = info.job.n, num_bytes = n * width;
    if (info.by_hand || n != block_elems) {
      // Long since: the producer has waited for it too.
      if (j >= num_stages)
        for (unsigned p = 0; p < pieces.num; ++p)
          wait_barrier(shared_address(&smem.empty[s][p]), (j / num_stages - 1) & 1);
      complete_stage(access_item<Access>(work, info.job.w.item), info, block, num_bytes,
                     block_bytes, thread);
    }
    sync_surveyors();
    std::uint32_t differs = 0;
    const auto add_differences = [&](unsigned of) {
      differs = __reduce_or_sync(kAll, differs);
      if (lane_id() == 0 && differs != 0) atomicOr(&smem.differs[of], differs);
      sync_surveyors();
      differs = smem.differs[of];
    };
    if constexpr (kWidth > 1) {
      differs = sample_block<kWidth>(block, stage, n, counts, thread);
      add_differences(0);
      if (warp == 0) make_tables(smem.histogram, info);
    }
    const bool varies = work.codec == Codec::kRaw || varies_everywhere<kWidth>(differs);
    if (!varies) {
      differs = compare_values(block, num_bytes, width, thread);
      add_differences(1);
    }
    sync_surveyors();
    if constexpr (kWidth > 1) {
      if (info.num_tables == 0 || n != block_elems)
        count_with_care<kWidth>(stage, info, warp, pieces, varies);
      else if (info.num_tables == 2)
        pieces.rows == 2 ? count_escapes<kWidth, 2, 2>(stage, info, warp, pieces.num)
                         : count_escapes<kWidth, 1, 2>(stage, info, warp, pieces.num);
      else
        pieces.rows == 2 ? count_escapes<kWidth, 2, 1>(stage, info, warp, pieces.num)
                         : count_escapes<kWidth, 1, 1>(stage, info, warp, pieces.num);
    }
    if (thread == 0) info.differs = differs;
    __syncwarp();
    if (lane_id() == 0) arrive(shared_address(&smem.counted[s]));
  }
}

}  // namespace snug::cuda
