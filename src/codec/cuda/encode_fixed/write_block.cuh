// codec/cuda/encode_fixed/write_block.cuh - the writers of encode_fixed.cu: the payload of an
// analyzed block, straight to the frame, a part a warp.
#pragma once
#include "codec/cuda/encode_fixed/fixed_escapes.cuh"

namespace snug::cuda {

// Constant planes, header and the padding of the escapes, by one warp; `block` is the address of
// the first value.
template <int kWidth>
__device__ __noinline__ u64 write_fixed_rest(u32 block, const BlockInfo& info, u8* payload) {
  const unsigned lane = lane_id();
  const FixedParts parts(info.job.n, kWidth, info.plane_modes);
  u64 sum = 0;
  const auto put = [&](u32 at, uint4 v) {
    store_streaming(payload + at, v);
    sum += checksum_term(v, at / 16);
  };
  if (lane == 0) put(parts.head, {info.num_escapes, info.palette.x, info.palette.y, 0});
#pragma unroll
  for (unsigned p = 0; p + 1 < kWidth; ++p)
    if (lane == 0 && has_mode(info.plane_modes, p, PlaneMode::kConstant))
      put(parts.plane[p], {load_shared_u32(block) >> (8 * p) & 255, 0, 0, 0});
  const u32 end =
      parts.head + static_cast<u32>(codec::FixedHeader::kBytes) + 4 * (info.num_escapes + lane);
  if (end < info.payload_bytes) store_streaming(payload + end, 0u);
  return sum;
}

// One warp's parts of a whole block, kRows rows each. Calls read(address) when the part at that
// address of the ring is in registers.
template <int kWidth, unsigned kRows, class Read>
__device__ __forceinline__ u64 write_parts(const RingBlock& block, const BlockInfo& info,
                                           u8* payload, unsigned warp, unsigned num_pieces,
                                           Read read) {
  constexpr u32 kPartUnits = kRows * kWarpSize, kPieceUnits = kPartUnits * kWriters;
  const FixedParts parts(info.job.n, kWidth, info.plane_modes);
  const PackTables table = info.tables[0];
  const u32 modes = info.plane_modes;
  u32 unit = warp * kPartUnits + lane_id();
  u32 rows = block.at(8 * kWidth * kPartUnits * warp);
  u8* low_at[kWidth - 1];
  u32 low_factor[kWidth - 1];
#pragma unroll
  for (int p = 0; p < kWidth - 1; ++p) {
    low_at[p] = payload + parts.plane[p] + 8 * unit;
    low_factor[p] = checksum_factor(parts.plane[p] / 4 + 2 * unit);
  }
  u8* word_at = payload + parts.nibbles + 4 * unit;
  u32 word_factor = checksum_factor(parts.nibbles / 4 + unit);
  u64 sum = 0;
#pragma unroll 1
  for (unsigned piece = 0; piece < num_pieces; ++piece) {
    UnitVecs<kWidth> u[kRows];
#pragma unroll
    for (unsigned i = 0; i < kRows; ++i) u[i].load(rows, i * kWarpSize + lane_id());
    read(rows);
    u32 words[kRows], misses = 0;
    Lookup look[kRows];
#pragma unroll
    for (unsigned i = 0; i < kRows; ++i) {
      uint2 lows[kWidth - 1], high;
      u[i].split(lows, high);
      look[i] = Lookup(high, table.value);
      words[i] = with_signs(look[i].indices(table.index), high);
      misses |= look[i].even_misses | look[i].odd_misses;
      // The index of a plane's word is even, and that of a nibble word has the parity of the lane:
      // so factors of neighbours differ by a constant.
#pragma unroll
      for (int p = 0; p < kWidth - 1; ++p) {
        if (kWidth == 4 && !has_mode(modes, p, PlaneMode::kRaw)) continue;
        store_streaming(low_at[p] + 8 * kWarpSize * i, lows[p]);
        const u32 factor = low_factor[p] + 2 * kWarpSize * i * frame::kChecksumStep;
        sum = mad_wide(lows[p].y, factor + kNextFactor, mad_wide(lows[p].x, factor, sum));
      }
    }
    if (__any_sync(kAllLanes, misses != 0)) {
      u32 flags[kRows], any = 0;
#pragma unroll
      for (unsigned i = 0; i < kRows; ++i) {
        flags[i] = set_missed_indices(info, look[i], words[i]);
        any |= flags[i];
      }
      if (__any_sync(kAllLanes, any != 0)) {
        EscapeList list = EscapeList::of<kWidth>(info, payload, piece * kWriters + warp);
#pragma unroll
        for (unsigned i = 0; i < kRows; ++i)
          sum += list.add(look[i], flags[i], 8 * (unit + i * kWarpSize));
      }
    }
#pragma unroll
    for (unsigned i = 0; i < kRows; ++i) {
      store_streaming(word_at + 4 * kWarpSize * i, words[i]);
      sum = mad_wide(words[i], word_factor + kWarpSize * i * frame::kChecksumStep, sum);
    }
    unit += kPieceUnits;
    rows += 8 * kWidth * kPieceUnits;
    if (rows >= block.end) rows -= block.wrap;
#pragma unroll
    for (int p = 0; p < kWidth - 1; ++p) {
      low_at[p] += 8 * kPieceUnits;
      low_factor[p] += 2 * kPieceUnits * frame::kChecksumStep;
    }
    word_at += 4 * kPieceUnits;
    word_factor += kPieceUnits * frame::kChecksumStep;
  }
  return sum;
}

// The same for a partial block: covers the padding of the planes, where it reads zeros.
template <int kWidth>
__device__ __noinline__ u64 write_part_of_partial(RingBlock block, const BlockInfo& info,
                                                  u8* payload, unsigned part, u32 rows) {
  const FixedParts parts(info.job.n, kWidth, info.plane_modes);
  EscapeList list = EscapeList::of<kWidth>(info, payload, part);
  u64 sum = 0;
#pragma unroll 1
  for (u32 row = part * rows; row < (part + 1) * rows; ++row) {
    const u32 unit = row * kWarpSize + lane_id();
    const auto left = static_cast<i32>(info.job.n) - 8 * static_cast<i32>(unit);
    UnitVecs<kWidth> u;
    u.load(block.at(8 * kWidth * unit), 0);
    uint2 lows[kWidth - 1], high;
    u.split(lows, high);
    const Lookup look(high, info.tables[0].value);
    u32 word = look.indices(info.tables[0].index);
    const u32 flags = resolve_misses(look, shared_address(info.lut), word) & existing_flags(left);
    word = with_signs(word, high) & ~rest_of_word(left);
#pragma unroll
    for (int p = 0; p < kWidth - 1; ++p) {
      if (!has_mode(info.plane_modes, p, PlaneMode::kRaw) || 8 * unit >= align16(info.job.n))
        continue;
      store_streaming(payload + parts.plane[p] + 8 * unit, lows[p]);
      sum += checksum_terms(lows[p], checksum_factor(parts.plane[p] / 4 + 2 * unit));
    }
    if (4 * unit < parts.head - parts.nibbles) {
      store_streaming(payload + parts.nibbles + 4 * unit, word);
      sum += checksum_term(word, parts.nibbles / 4 + unit);
    }
    __syncwarp();
    sum += list.add(look, flags, 8 * unit);
  }
  return sum;
}

// One warp's share of a fixed payload; returns its checksum terms.
template <int kWidth, class Read>
__device__ __forceinline__ u64 write_fixed(const RingBlock& block, const BlockInfo& info,
                                           u8* payload, unsigned warp, Pieces pieces,
                                           u32 block_elems, Read read) {
  u64 sum = 0;
  if (warp == 0) sum = write_fixed_rest<kWidth>(block.start, info, payload);
  if (info.job.n != block_elems) {
#pragma unroll 1
    for (unsigned p = 0; p < pieces.num; ++p) {
      const unsigned part = p * kWriters + warp;
      sum += write_part_of_partial<kWidth>(block, info, payload, part, pieces.rows);
      read(block.at(part * pieces.part_bytes<kWidth>()));
    }
    return sum;
  }
  sum += pieces.rows == 2 ? write_parts<kWidth, 2>(block, info, payload, warp, pieces.num, read)
                          : write_parts<kWidth, 1>(block, info, payload, warp, pieces.num, read);
  return sum;
}

// One warp's share of a raw or a constant block.
template <class Read>
__device__ __forceinline__ u64 write_plain(const RingBlock& block, const BlockInfo& info,
                                           u8* payload, unsigned warp, unsigned width,
                                           unsigned num_pieces, u32 block_bytes, Read read) {
  const u32 rows = block_bytes / (16 * kWarpSize * kWriters) / num_pieces;
  const auto read_part = [&](unsigned p) {
    read(block.at((p * kWriters + warp) * rows * (16 * kWarpSize)));
  };
  constexpr unsigned kBatch = 2;
  if (info.is(Codec::kConstant)) {
    uint4 v = load_shared_b128(block.start);
    for (unsigned p = 0; p < num_pieces; ++p) read_part(p);
    if (warp != 0 || lane_id() != 0) return 0;
    if (width < 4) v.x &= (1u << (8 * width)) - 1;
    v = {v.x, width == 8 ? v.y : 0, 0, 0};
    store_streaming(payload, v);
    return checksum_term(v, 0);
  }
  const u32 num_vecs = info.payload_bytes / 16;
  u64 sum = 0;
#pragma unroll 1
  for (unsigned p = 0; p < num_pieces; ++p) {
    u32 vec = (p * kWriters + warp) * rows * kWarpSize + lane_id();
#pragma unroll 1
    for (u32 row = 0; row < rows; row += kBatch, vec += kBatch * kWarpSize) {
      uint4 v[kBatch];
      const auto exists = [&](unsigned i) {
        return row + i < rows && vec + i * kWarpSize < num_vecs;
      };
#pragma unroll
      for (unsigned i = 0; i < kBatch; ++i)
        if (exists(i)) v[i] = load_shared_b128(block.at(16 * (vec + i * kWarpSize)));
      if (row + kBatch >= rows) read_part(p);
#pragma unroll
      for (unsigned i = 0; i < kBatch; ++i) {
        if (!exists(i)) break;
        store_streaming(payload + 16 * (vec + i * kWarpSize), v[i]);
        sum += checksum_term(v[i], vec + i * kWarpSize);
      }
    }
  }
  return sum;
}

template <int kWidth>
__device__ __forceinline__ void write_blocks(const Work& work, RingCursor cursor,
                                             EncodeFixedSmem& smem) {
  const unsigned warp = threadIdx.x / kWarpSize;
  const u32 block_bytes = cursor.ring.block_units * kRingUnit;
  const Pieces pieces = Pieces::of<kWidth>(block_bytes);
  const u32 part_bytes = pieces.part_bytes<kWidth>();
  const u32 empty = kept_shared_address(smem.empty);
  for (unsigned j = 0;; ++j, cursor.advance()) {
    await_block(smem.placed, j);
    // These have passed long since, but they are the barriers that the block's bytes came with.
    await_block(smem.full, j);
    await_block(smem.counted, j);
    BlockInfo& info = smem.infos[j % kBlockInfos];
    if (info.ends) return;
    const RingBlock block = cursor.block();
    u8* payload = static_cast<u8*>(info.job.w.item.frame) + info.offset;
    const auto read = [&](u32 address) {
      barrier_arrive(empty + (address - cursor.ring.address) / kRingUnit * 8);
    };
    u64 sum = 0;
    if (info.written) {
      bool fixed = false;
      if constexpr (kWidth > 1) {
        fixed = info.is(Codec::kFixed);
        if (fixed)
          sum =
              write_fixed<kWidth>(block, info, payload, warp, pieces, 1u << work.log2_block, read);
      }
      if (!fixed)
        sum = write_plain(block, info, payload, warp, width_in<kWidth>(work), pieces.num,
                          block_bytes, read);
    } else {
      for (unsigned p = 0; p < pieces.num; ++p) read(block.at((p * kWriters + warp) * part_bytes));
    }
    __syncwarp();
    sum = warp_sum(sum);
    if (lane_id() == 0) info.sums[warp] = sum;
    barrier_arrive(shared_address(&smem.written[j % kBlockInfos]));
    __syncwarp();
  }
}

}  // namespace snug::cuda
