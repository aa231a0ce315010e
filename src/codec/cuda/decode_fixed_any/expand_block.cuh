// codec/cuda/decode_fixed_any/expand_block.cuh - one warp's part of a fixed or raw block whose
// payload is in shared memory, where each part is whole rows of 512 bytes.
#pragma once
#include "codec/cuda/decode_any_block/decode_any_block.cuh"
#include "codec/cuda/decode_any_block/decode_fixed_block.cuh"
#include "codec/cuda/frame/decode_frame.cuh"

namespace snug::cuda {

inline constexpr unsigned kConsumers = 16;  // warps: blocks of 4096 values and more divide evenly
inline constexpr unsigned kConsumerThreads = kConsumers * kWarpSize;

// Element widths of types that have the fixed codec.
template <int kWidth>
inline constexpr bool kHasFixed = kWidth == 2 || kWidth == 4;

// Where a warp puts its part of a block: `first` plus the offset in the block up to offset `limit`,
// `second` plus the offset from there on, where a page of a scattered tensor ends inside the part.
// The producer finds them.
struct PartPlace {
  u8* first;
  u8* second;
  u32 limit;
};

template <class Access>
struct PartTarget;

template <>
struct PartTarget<DirectAccess> {
  u8* base;

  __device__ PartTarget(const DirectAccess& dst, u64 pos, const PartPlace&)
      : base(dst.data + pos) {}
  __device__ __forceinline__ u8* at(u32 offset) const { return base + offset; }
};

template <>
struct PartTarget<ScatteredAccess> {
  PartPlace place;

  __device__ PartTarget(const ScatteredAccess&, u64, const PartPlace& place) : place(place) {}
  __device__ __forceinline__ u8* at(u32 offset) const {
    return (offset < place.limit ? place.first : place.second) + offset;
  }
};

// Finds the place of bytes [first, last) of the block at `pos`; false if they are in more than two
// pieces, not 16-byte aligned, or a row is in two pieces.
__device__ __forceinline__ bool find_place(const DirectAccess&, u64, u32, u32, PartPlace&) {
  return true;
}
inline __device__ __noinline__ bool find_place(const ScatteredAccess& dst, u64 pos, u32 first,
                                               u32 last, PartPlace& place) {
  if (first >= last) return true;
  const ScatteredAccess::Piece piece = dst.find(pos + first);
  place.first = piece.at - first;
  place.limit = last;
  if (reinterpret_cast<std::uintptr_t>(piece.at) % 16 != 0) return false;
  if (piece.left >= last - first) return true;
  place.limit = first + static_cast<u32>(piece.left);
  const ScatteredAccess::Piece next = dst.find(pos + place.limit);
  place.second = next.at - place.limit;
  return place.limit % 512 == 0 && reinterpret_cast<std::uintptr_t>(next.at) % 16 == 0 &&
         next.left >= last - place.limit;
}

struct StageInfo {
  DecodeJob job;
  u64 ticket;
  FixedLayout layout;  // of a fixed block, without what its header says
  bool staged;         // the payload is in shared memory
  bool in_rows;        // and each part is whole rows at its `places`
  PartPlace places[kConsumers];
  u64 sums[kConsumers];
  Reason reasons[kConsumers];
  u32 num_patched[kConsumers];  // escapes that a warp found by their order
};

// The first escape at or after a position; encoders list them by rising position.
__device__ __forceinline__ u32 find_escape(u32 escapes, u32 num_escapes, u32 position) {
  u32 first = 0, last = num_escapes;
  const auto count_before = [&](u32 step) {
    const u32 i = first + lane_id() * step;
    return static_cast<u32>(__popc(__ballot_sync(
        kAllLanes, i < last && (load_shared_u32(escapes + 4 * i) & 0xFFFFFF) < position)));
  };
  while (last - first > kWarpSize) {
    const u32 step = (last - first + kWarpSize - 1) / kWarpSize, before = count_before(step);
    if (before == 0) return first;
    first += (before - 1) * step + 1;
    last = min(last, first + step - 1);
  }
  return first + count_before(1);
}

// Escapes of this warp's part, positions [first, last) of the block, after its values are stored.
// Returns how many this lane has written.
template <int kWidth, class PutByte>
__device__ __forceinline__ u32 patch_part(u32 escapes, u32 num_escapes, u32 first, u32 last,
                                          PutByte put_byte) {
  __syncwarp();  // other lanes' stores come first
  u32 num_patched = 0;
  for (u32 i = find_escape(escapes, num_escapes, first) + lane_id();; i += kWarpSize) {
    const u32 escape = i < num_escapes ? load_shared_u32(escapes + 4 * i) : 0xFFFFFFu;
    const u32 at = escape & 0xFFFFFF;
    const bool mine = i < num_escapes && at >= first && at < last;
    if (mine) {
      put_byte(at * kWidth + kWidth - 1, static_cast<u8>(escape >> 24));
      ++num_patched;
    }
    if (!__all_sync(kAllLanes, mine)) return num_patched;
  }
}

struct FixedView {
  u32 base;  // of the stage
  FixedLayout layout;
  u32 modes;
  u32 n;
};

// A part of whole rows of a BF16 block: 256 values a row, 8 of them a lane.
template <class Access>
__device__ __forceinline__ u64 expand_rows_bf16(const FixedView& v, u32 rows, u32 first_row,
                                                const PartTarget<Access>& target) {
  constexpr unsigned kBatch = 4;
  const u32 first_unit = first_row * kWarpSize + lane_id();
  const u32 lows = v.base + 8 * first_unit, words = v.base + v.layout.nibbles + 4 * first_unit;
  u32 low_factor = checksum_factor(2 * first_unit),
      word_factor = checksum_factor(v.layout.nibbles / 4 + first_unit);
  u64 sum = 0;
#pragma unroll 1
  for (u32 row = 0; row < rows; row += kBatch) {
    uint2 low[kBatch];
    u32 word[kBatch];
#pragma unroll
    for (unsigned i = 0; i < kBatch; ++i) {
      if (row + i >= rows) break;
      low[i] = load_shared_b64(lows + (row + i) * 8 * kWarpSize);
      word[i] = load_shared_u32(words + (row + i) * 4 * kWarpSize);
    }
    const u32 at = (first_row + row) * 512;
#pragma unroll
    for (unsigned i = 0; i < kBatch; ++i) {
      if (row + i >= rows) break;
      store_global(target.at(at + i * 512) + 16 * lane_id(),
                   merge_low_high(low[i], fixed_high_bytes(word[i], v.layout.palette)));
      sum += checksum_terms(low[i], low_factor) + u64{word[i]} * word_factor;
      low_factor += 2 * kWarpSize * frame::kChecksumStep;
      word_factor += kWarpSize * frame::kChecksumStep;
    }
  }
  return sum;
}

// The same for F32: 128 values a row, 4 of them a lane, so that the stores of a warp are
// contiguous; two lanes share a word of nibbles.
template <class Access>
__device__ __forceinline__ u64 expand_rows_f32(const FixedView& v, u32 rows, u32 first_row,
                                               const u8* stage, const PartTarget<Access>& target) {
  constexpr unsigned kBatch = 4;
  const unsigned lane = lane_id(), odd = lane % 2;
  const u32 first_word = first_row * (kWarpSize / 2) + lane / 2;
  u32 word_factor = checksum_factor(v.layout.nibbles / 4 + first_word);
  u32 lows[3], low_factors[3], constants[3];
#pragma unroll
  for (unsigned p = 0; p < 3; ++p) {
    lows[p] = v.base + v.layout.planes[p] + 4 * (first_row * kWarpSize + lane);
    low_factors[p] = checksum_factor(v.layout.planes[p] / 4 + first_row * kWarpSize + lane);
    constants[p] = stage[v.layout.constants[p]] * 0x01010101u;
  }
  u64 sum = 0;
#pragma unroll 1
  for (u32 row = 0; row < rows; row += kBatch) {
    u32 low[kBatch][3], word[kBatch];
#pragma unroll
    for (unsigned i = 0; i < kBatch; ++i) {
      if (row + i >= rows) break;
#pragma unroll
      for (unsigned p = 0; p < 3; ++p)
        low[i][p] = (v.modes >> (2 * p) & 1) == 0
                        ? load_shared_u32(lows[p] + (row + i) * 4 * kWarpSize)
                        : constants[p];
      word[i] = load_shared_u32(v.base + v.layout.nibbles +
                                4 * (first_word + (row + i) * (kWarpSize / 2)));
    }
    const u32 at = (first_row + row) * 512;
#pragma unroll
    for (unsigned i = 0; i < kBatch; ++i) {
      if (row + i >= rows) break;
      const u32 idx = (word[i] >> (16 * odd)) & 0x7777u;
      const u32 high = __byte_perm(v.layout.palette.x, v.layout.palette.y, idx) |
                       (word[i] << (4 * odd) & 0x80808080u);
      store_global(target.at(at + i * 512) + 16 * lane,
                   transpose_bytes(low[i][0], low[i][1], low[i][2], high));
#pragma unroll
      for (unsigned p = 0; p < 3; ++p) {
        if ((v.modes >> (2 * p) & 1) == 0) sum += u64{low[i][p]} * low_factors[p];
        low_factors[p] += kWarpSize * frame::kChecksumStep;
      }
      sum += u64{odd != 0 ? 0 : word[i]} * word_factor;
      word_factor += kWarpSize / 2 * frame::kChecksumStep;
    }
  }
  return sum;
}

// kBatch rows of a raw block.
template <unsigned kBatch, class Access>
__device__ __forceinline__ u64 copy_rows(u32 base, u32 row, const PartTarget<Access>& target) {
  const u32 at = row * 512 + 16 * lane_id(), factor = checksum_factor(at / 4);
  uint4 v[kBatch];
#pragma unroll
  for (unsigned i = 0; i < kBatch; ++i) v[i] = load_shared_b128(base + at + i * 512);
  u64 sum = 0;
#pragma unroll
  for (unsigned i = 0; i < kBatch; ++i) {
    store_global(target.at((row + i) * 512) + 16 * lane_id(), v[i]);
    sum += checksum_terms(v[i], factor + i * (128 * frame::kChecksumStep));
  }
  return sum;
}

// One warp's part of a block that is `in_rows`.
template <int kWidth, class Access>
__device__ __forceinline__ BlockResult expand_rows(const u8* stage, const StageInfo& info,
                                                   const Access& dst, u32& num_patched) {
  const unsigned warp = warp_id();
  const DecodeJob& job = info.job;
  const u32 base = kept_shared_address(stage), n = job.n, num_bytes = job.entry.num_bytes;
  const PartTarget<Access> target(dst, job.pos, info.places[warp]);
  u64 sum = 0;
  if constexpr (kHasFixed<kWidth>) {
    if (job.entry.is(Codec::kFixed)) {
      FixedView v{base, info.layout, job.entry.plane_modes, n};
      const u32 head = v.layout.escapes - static_cast<u32>(codec::FixedHeader::kBytes);
      if (!read_fixed_header(load_shared_b128(base + head), num_bytes, n, v.layout))
        return {kReasonPayload, 0};
      const u32 first = n / kConsumers * warp, count = n / kConsumers;
      if constexpr (kWidth == 2)
        sum = expand_rows_bf16(v, count / 256, first / 256, target);
      else
        sum = expand_rows_f32(v, count / 128, first / 128, stage, target);
      if (v.layout.num_escapes != 0)
        num_patched = patch_part<kWidth>(base + v.layout.escapes, v.layout.num_escapes, first,
                                         first + count, [&](u32 at, u8 b) { *target.at(at) = b; });
      const u32 at = 16 * threadIdx.x, constants = v.layout.constants[0];
      if (kWidth == 4 && constants + at < v.layout.nibbles)
        sum += checksum_term(load_shared_b128(base + constants + at), (constants + at) / 16);
      for (u32 i = head + at; i < num_bytes; i += 16 * kConsumerThreads)
        sum += checksum_term(load_shared_b128(base + i), i / 16);
      return {kReasonNone, sum};
    }
  }
  constexpr unsigned kBatch = 4;
  const u32 rows = n * kWidth / 512, last = (warp + 1) * rows / kConsumers;
  u32 row = warp * rows / kConsumers;
#pragma unroll 1
  for (; row + kBatch <= last; row += kBatch) sum += copy_rows<kBatch>(base, row, target);
#pragma unroll 1
  for (; row < last; ++row) sum += copy_rows<1>(base, row, target);
  return {kReasonNone, sum};
}

// Whether a block has whole rows for every warp, and a layout that expand_rows knows.
template <int kWidth>
__device__ __forceinline__ bool divides_into_rows(const DecodeJob& job) {
  if (job.entry.is(Codec::kFixed))
    return job.n % (256 * kConsumers) == 0 && (kWidth == 4 || job.entry.plane_modes == 0);
  return job.entry.is(Codec::kRaw) && job.n * kWidth % 512 == 0 && job.entry.plane_modes == 0 &&
         job.entry.num_bytes == job.n * kWidth;
}

// Where the part of a warp starts in the block.
template <int kWidth>
__device__ __forceinline__ u32 part_start(const DecodeJob& job, unsigned warp) {
  if (job.entry.is(Codec::kFixed)) return job.n / kConsumers * warp * kWidth;
  return warp * (job.n * kWidth / 512) / kConsumers * 512;
}

}  // namespace snug::cuda
