// codec/cuda/encode_fixed/encode_ring.cuh - what the warps of encode_fixed.cu share: the ring in
// shared memory through which blocks pass, what is known about each block, and the barriers between
// the roles.
#pragma once
#include "codec/cuda/encode_fixed/fixed_pack.cuh"
#include "codec/cuda/encode_fixed/fixed_palette.cuh"
#include "codec/cuda/frame/encode_frame.cuh"
#include "gpu/ptx_barrier.cuh"

namespace snug::cuda {

inline constexpr unsigned kWriters = 16;   // warps that write payloads
inline constexpr unsigned kAnalyzers = 8;  // warps that analyze one block after the other
inline constexpr unsigned kAnalyzerThreads = kAnalyzers * kWarpSize;
inline constexpr unsigned kPartsOfAnalyzer = kWriters / kAnalyzers;  // of each piece, see Pieces
inline constexpr unsigned kPlacers = 3;         // warps that look back, for one block each
inline constexpr unsigned kBlockInfos = 16;     // blocks between producer and writers,
inline constexpr unsigned kMaxBlocksAhead = 8;  // of which so many may be whole in the ring
inline constexpr u32 kRingUnit = 8192;          // the ring consists of such pieces
inline constexpr unsigned kMaxRingUnits = 8 * kMaxBlocksAhead;
inline constexpr unsigned kMaxPieces = 4, kMaxParts = kMaxPieces * kWriters;

// Bytes of an element; kWidth as in encode_fixed_kernel.
template <int kWidth>
__device__ __forceinline__ unsigned width_in(const Work& work) {
  return kWidth > 1 ? kWidth : width_of(work.dtype);
}

// Writers pass through a block piece by piece, so that the next block can be loaded behind them. Of
// each piece every writer has a part of one or two rows.
struct Pieces {
  unsigned num;
  u32 rows;  // of a part

  template <int kWidth>
  static __device__ __forceinline__ Pieces of(u32 block_bytes) {
    const u32 rows = block_bytes / ((kWidth == 4 ? 32 : 16) * kWarpSize * kWriters);
    return {rows < 2 ? 1 : rows / 2, rows < 2 ? 1u : 2u};
  }
  // Bytes of a part; a unit of the ring is a whole number of parts.
  template <int kWidth>
  __device__ __forceinline__ u32 part_bytes() const {
    return rows * (kWidth == 4 ? 32 : 16) * kWarpSize;
  }
};

struct BlockRing {
  u32 address;  // shared memory
  unsigned num_units;
  unsigned block_units;  // of one block

  __device__ __forceinline__ unsigned num_blocks() const { return num_units / block_units; }
};

// A block in the ring.
struct RingBlock {
  u32 start, end, wrap;

  // The shared memory address of a byte of the block.
  __device__ __forceinline__ u32 at(u32 offset) const {
    const u32 address = start + offset;
    return address < end ? address : address - wrap;
  }
};

// Steps through the blocks in the ring; each warp has its own.
struct RingCursor {
  BlockRing ring;
  unsigned unit = 0;   // the first one of the block
  unsigned round = 0;  // how often the end of the ring was passed

  __device__ __forceinline__ RingBlock block() const {
    const u32 wrap = ring.num_units * kRingUnit;
    return {ring.address + unit * kRingUnit, ring.address + wrap, wrap};
  }
  __device__ __forceinline__ void advance() {
    unit += ring.block_units;
    if (unit < ring.num_units) return;
    unit -= ring.num_units;
    ++round;
  }
  // Whether this unit of the block was never used before; else barrier and parity tell when its
  // previous content has been read.
  __device__ __forceinline__ bool is_new(unsigned of_block) const {
    return round == 0 && unit + of_block < ring.num_units;
  }
  __device__ __forceinline__ unsigned barrier(unsigned of_block) const {
    const unsigned i = unit + of_block;
    return i < ring.num_units ? i : i - ring.num_units;
  }
  __device__ __forceinline__ unsigned parity(unsigned of_block) const {
    return (round + (unit + of_block < ring.num_units ? 1 : 0)) & 1;
  }
};

// What the warps tell each other about a block. The groups of fields are filled in by producer,
// analyzers, placers and writers.
struct BlockInfo {
  EncodeJob job;
  bool ends;     // there is no such block, nor a later one
  bool by_hand;  // analyzers load it, because bulk copies cannot

  u32 differs;  // bits in which values differ from the first one
  u32 num_escapes;
  int sure_escapes;  // a lower bound from values sampled or counted
  u16 escapes_of[kMaxParts];
  uint2 palette;
  PackTables tables[2];
  u8 lut[128];          // index of a top byte without its sign; 7: escape
  unsigned num_tables;  // that hold the whole palette; 0: two are not enough
  bool may_be_raw;      // an eighth of the sampled values are escapes

  u64 offset;    // of the payload in the frame
  bool written;  // it fits into the frame
  u32 codec;
  u32 plane_modes;
  u32 payload_bytes;

  u64 sums[kWriters];  // checksum terms of the payload

  __device__ bool is(Codec other) const { return codec == static_cast<u32>(other); }
};

// What analyzers add up for a block.
struct AnalyzerTotals {
  alignas(16) u32 histogram[128 * kHistogramCopies];
  u32 differs[2];  // after the sample, and after all values

  // Not by the first warp: the others wait for it meanwhile.
  __device__ __forceinline__ void clear(unsigned thread) {
    constexpr unsigned kVecs = sizeof(histogram) / 16;
    static_assert(kVecs + 2 + kWarpSize <= kAnalyzerThreads);
    const unsigned i = thread - kWarpSize;
    if (i < kVecs) reinterpret_cast<uint4*>(histogram)[i] = {};
    if (i - kVecs < 2) differs[i - kVecs] = 0;
  }
};

// Every thread arrives at barriers for itself: race checkers do not follow arrivals for others.
struct EncodeFixedSmem {
  unsigned long long full[kBlockInfos];     // barriers: the block has arrived,
  unsigned long long counted[kBlockInfos];  // its escapes are counted,
  unsigned long long placed[kBlockInfos];   // its place is known,
  unsigned long long written[kBlockInfos];  // its payload is written,
  unsigned long long empty[kMaxRingUnits];  // a unit of the ring has been read
  BlockInfo infos[kBlockInfos];
  AnalyzerTotals totals[2];  // of this block, and zeros for the next one
};

// Waits for block j.
__device__ __forceinline__ void await_block(unsigned long long (&barriers)[kBlockInfos],
                                            unsigned j) {
  barrier_wait(shared_address(&barriers[j % kBlockInfos]), j / kBlockInfos & 1);
}

}  // namespace snug::cuda
