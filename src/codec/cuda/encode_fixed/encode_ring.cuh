// codec/cuda/encode_fixed/encode_ring.cuh - what the warps of
// codec/cuda/encode_fixed/encode_fixed_kernel.cuh have in common: the ring in shared memory that
// blocks arrive in, what is known about each, and the barriers that it passes.
#pragma once
#include "codec/cuda/encode_fixed/fixed_pack.cuh"
#include "codec/cuda/encode_fixed/fixed_palette.cuh"
#include "codec/cuda/frame/bulk_copy.cuh"
#include "codec/cuda/frame/encode_frame.cuh"

namespace snug::cuda {

inline constexpr unsigned kWriters = 16;   // warps that write payloads
inline constexpr unsigned kSurveyors = 8;  // warps that survey one block after the other
inline constexpr unsigned kSurveyThreads = kSurveyors * kWarpSize;
inline constexpr unsigned kPartsOfSurveyor = kWriters / kSurveyors;  // of each piece, see below
inline constexpr unsigned kPlacers = 3;           // warps that find places, block by block in turn
inline constexpr unsigned kBlockInfos = 16;       // blocks that warps may know about,
inline constexpr unsigned kMaxBlocksAhead = 8;    // and that may be in the ring as a whole
inline constexpr std::uint32_t kRingUnit = 8192;  // blocks arrive in a ring of such pieces
inline constexpr unsigned kMaxRingUnits = 8 * kMaxBlocksAhead;
inline constexpr unsigned kMaxPieces = 4, kMaxParts = kMaxPieces * kWriters;

// Bytes of an element. kWidth as in encode_wide_kernel.
template <int kWidth>
__device__ __forceinline__ unsigned width_in(const Work& work) {
  return kWidth > 1 ? kWidth : width_of(work.dtype);
}

// Writers go through a block piece by piece, so that the next block can come to where they
// have been; of each piece every writer has a part of one or two rows.
struct Pieces {
  unsigned num;
  std::uint32_t rows;  // of a part

  // kWidth as in encode_wide_kernel.
  template <int kWidth>
  static __device__ __forceinline__ Pieces of(std::uint32_t block_bytes) {
    const std::uint32_t rows = block_bytes / ((kWidth == 4 ? 32 : 16) * kWarpSize * kWriters);
    return {rows < 2 ? 1 : rows / 2, rows < 2 ? 1u : 2u};
  }
  // Bytes of a part; a whole number of them is a unit of the ring.
  template <int kWidth>
  __device__ __forceinline__ std::uint32_t part_bytes() const {
    return rows * (kWidth == 4 ? 32 : 16) * kWarpSize;
  }
};

// The ring that blocks arrive in, one behind the other.
struct BlockRing {
  std::uint32_t address;  // shared memory
  unsigned num_units;
  unsigned block_units;  // of one block

  __device__ __forceinline__ unsigned num_blocks() const { return num_units / block_units; }
};

// A block in it.
struct RingBlock {
  std::uint32_t start, end, wrap;

  // The shared memory address of a byte of the block.
  __device__ __forceinline__ std::uint32_t at(std::uint32_t offset) const {
    const std::uint32_t address = start + offset;
    return address < end ? address : address - wrap;
  }
};

// Goes through the blocks in the ring; each warp has its own.
struct RingCursor {
  BlockRing ring;
  unsigned unit = 0;   // the first one of the block
  unsigned round = 0;  // how often the ring's end has been passed

  __device__ __forceinline__ RingBlock block() const {
    const std::uint32_t wrap = ring.num_units * kRingUnit;
    return {ring.address + unit * kRingUnit, ring.address + wrap, wrap};
  }
  __device__ __forceinline__ void advance() {
    unit += ring.block_units;
    if (unit < ring.num_units) return;
    unit -= ring.num_units;
    ++round;
  }
  // Whether nothing was ever in this unit of the block; if not, the barrier that says when
  // what was there has been read, and its parity.
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

// What the warps tell each other about a block. Each part is filled in by other ones:
// producer, surveyors, placers, writers.
struct BlockInfo {
  EncodeJob job;
  bool ends;     // there is no such block, nor a later one
  bool by_hand;  // surveyors load it: no bulk copy can

  std::uint32_t differs;  // bits in which values differ from the first
  std::uint32_t num_escapes;
  int sure_escapes;  // that there are at least, of values sampled or counted
  std::uint16_t escapes_of[kMaxParts];
  uint2 palette;
  PackTables tables[2];
  std::uint8_t lut[128];  // index of a top byte without its sign; 7: escape
  unsigned num_tables;    // that hold all of the palette; 0: two do not
  bool may_be_raw;        // an eighth of the sampled values are escapes

  std::uint64_t offset;  // of the payload in the frame
  bool written;          // it fits into the frame
  std::uint32_t codec;
  std::uint32_t plane_modes;
  std::uint32_t payload_bytes;

  std::uint64_t sums[kWriters];  // checksum terms of the payload
};

// What surveyors add up for a block.
struct SurveyTotals {
  alignas(16) std::uint32_t histogram[128 * kHistogramCopies];
  std::uint32_t differs[2];  // after the sample, and after all values

  // Not by the first warp, which others wait for meanwhile.
  __device__ __forceinline__ void clear(unsigned thread) {
    constexpr unsigned kVecs = sizeof(histogram) / 16;
    static_assert(kVecs + 2 + kWarpSize <= kSurveyThreads);
    const unsigned i = thread - kWarpSize;
    if (i < kVecs) reinterpret_cast<uint4*>(histogram)[i] = {};
    if (i - kVecs < 2) differs[i - kVecs] = 0;
  }
};

// Every thread arrives at barriers for itself: tools that look for races follow no others.
struct EncodeWideSmem {
  unsigned long long full[kBlockInfos];     // barriers: the block has arrived,
  unsigned long long counted[kBlockInfos];  // its size is known,
  unsigned long long placed[kBlockInfos];   // and its place,
  unsigned long long written[kBlockInfos];  // writers are done with it
  unsigned long long empty[kMaxRingUnits];  // and have read what was in a unit of the ring
  BlockInfo infos[kBlockInfos];
  SurveyTotals totals[2];  // of the block surveyed, and zeros for the next one
};

// Waits at one of kBlockInfos barriers for block j.
__device__ __forceinline__ void await_block(unsigned long long (&barriers)[kBlockInfos],
                                            unsigned j) {
  barrier_wait(shared_address(&barriers[j % kBlockInfos]), j / kBlockInfos & 1);
}

}  // namespace snug::cuda
