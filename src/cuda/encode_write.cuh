// cuda/encode_write.cuh - writes the payload of a surveyed block straight to the
// frame, each writer warp of cuda/encode_wide.cuh a part of it.
#pragma once
#include "cuda/encode_ring.cuh"

namespace snug::cuda {

// Stores to global memory that nobody reads soon.
__device__ __forceinline__ void store_once(void* address, std::uint32_t v) {
  asm volatile("st.global.cs.u32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
}
__device__ __forceinline__ void store_once(void* address, uint2 v) {
  asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void store_once(void* address, uint4 v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

// Looks the values up that missed; sets their indices and returns the flags (bit 4i)
// of those that are escapes.
__device__ __forceinline__ std::uint32_t resolve_misses(const Lookup& look, std::uint32_t lut,
                                                        std::uint32_t& word) {
  std::uint32_t escapes = 0;
  for (std::uint32_t flags = look.miss_flags(); flags != 0; flags &= flags - 1) {
    const std::uint32_t bit = first_set(flags),
                        idx = load_shared_u8(lut + (look.top_byte(bit / 4) & 127));
    word = (word & ~(7u << bit)) | idx << bit;
    if (idx == 7) escapes |= 1u << bit;
  }
  return escapes;
}

// Where the escapes of a part go.
struct EscapeList {
  std::uint8_t* payload;
  std::uint32_t at;  // of the next one

  template <int kWidth>
  static __device__ __forceinline__ EscapeList of(const BlockInfo& info, std::uint8_t* payload,
                                                  unsigned part) {
    std::uint32_t before = 0;
#pragma unroll
    for (unsigned i = 0; i < kMaxParts; i += kWarp)
      if (i + lane_id() < part) before += info.escapes_of[i + lane_id()];
    return {payload, FixedParts(info.job.n, kWidth, info.plane_modes).head +
                         static_cast<std::uint32_t>(codec::FixedHeader::kBytes) +
                         4 * __reduce_add_sync(kAll, before)};
  }

  // By a whole warp: those (bit 4i) of the values from `first` on. Returns checksum terms.
  __device__ __forceinline__ std::uint64_t add(const Lookup& look, std::uint32_t flags,
                                               std::uint32_t first) {
    const std::uint32_t below = (1u << lane_id()) - 1, count = __popc(flags);
    std::uint32_t mine = at;
#pragma unroll
    for (unsigned b = 0; b < 4; ++b) {
      const unsigned lanes = __ballot_sync(kAll, (count >> b & 1) != 0);
      mine += __popc(lanes & below) << (b + 2);
      at += __popc(lanes) << (b + 2);
    }
    std::uint64_t sum = 0;
    for (; flags != 0; flags &= flags - 1, mine += 4) {
      const std::uint32_t value = first_set(flags) / 4;
      const std::uint32_t escape = (first + value) | look.top_byte(value) << 24;
      store_once(payload + mine, escape);
      sum += checksum_term(escape, mine / 4);
    }
    __syncwarp();
    return sum;
  }
};

// Constant planes, header and the end of the escapes, by one warp; `block` is the address of the
// first value.
template <int kWidth>
__device__ __noinline__ std::uint64_t write_fixed_rest(std::uint32_t block, const BlockInfo& info,
                                                       std::uint8_t* payload) {
  const unsigned lane = lane_id();
  const FixedParts parts(info.job.n, kWidth, info.plane_modes);
  std::uint64_t sum = 0;
  const auto put = [&](std::uint32_t at, uint4 v) {
    store_once(payload + at, v);
    sum += checksum_term(v, at / 16);
  };
  if (lane == 0) put(parts.head, {info.num_escapes, info.palette.x, info.palette.y, 0});
#pragma unroll
  for (unsigned p = 0; p + 1 < kWidth; ++p)
    if (lane == 0 && (info.plane_modes >> (2 * p) & 3) == 1)
      put(parts.plane[p], {load_shared_u32(block) >> (8 * p) & 255, 0, 0, 0});
  const std::uint32_t end = parts.head + static_cast<std::uint32_t>(codec::FixedHeader::kBytes) +
                            4 * (info.num_escapes + lane);
  if (end < info.payload_bytes) store_once(payload + end, 0u);
  return sum;
}

// A part of a whole block: kRows rows from `unit` on. read() is called when they are in registers.
template <int kWidth, unsigned kRows, unsigned kTables, class Read>
__device__ __forceinline__ std::uint64_t write_part(const RingBlock& block, const BlockInfo& info,
                                                    const FixedParts& parts, std::uint8_t* payload,
                                                    unsigned part, Read read) {
  const std::uint32_t unit = part * kRows * kWarp + lane_id(), modes = info.plane_modes;
  const std::uint32_t rows = block.at(8 * kWidth * kWarp * kRows * part);
  UnitVecs<kWidth> u[kRows];
#pragma unroll
  for (unsigned i = 0; i < kRows; ++i) u[i].load(rows, i * kWarp + lane_id());
  read();
  const PackTables tables[2] = {info.tables[0], info.tables[1]};
  std::uint64_t sum = 0;
  std::uint32_t flags[kRows], any = 0;
#pragma unroll
  for (unsigned i = 0; i < kRows; ++i) {
    const std::uint32_t at = unit + i * kWarp;
    uint2 lows[kWidth - 1], high;
    u[i].split(lows, high);
    const Lookup look(high, tables[0].value);
    std::uint32_t word = look.indices(tables[0].index);
    if constexpr (kTables > 0) {
      flags[i] = look.miss_flags();
      if constexpr (kTables == 2) {
        const Lookup next(high, tables[1].value);
        const std::uint32_t mask = flags[i] * 7;
        word = (word & ~mask) | (next.indices(tables[1].index) & mask);
        flags[i] &= next.miss_flags();
      }
      word |= flags[i] * 7;
    } else {
      flags[i] = look.misses() ? resolve_misses(look, shared_address(info.lut), word) : 0;
    }
    any |= flags[i];
    word |= sign_bits(high);
#pragma unroll
    for (int p = 0; p < kWidth - 1; ++p) {
      if (kWidth == 4 && (modes >> (2 * p) & 3) != 0) continue;
      store_once(payload + parts.plane[p] + 8 * at, lows[p]);
      sum += checksum_terms(lows[p], checksum_factor(parts.plane[p] / 4 + 2 * at));
    }
    store_once(payload + parts.nibbles + 4 * at, word);
    sum += checksum_term(word, parts.nibbles / 4 + at);
  }
  if (__any_sync(kAll, any != 0)) {
    EscapeList list = EscapeList::of<kWidth>(info, payload, part);
#pragma unroll
    for (unsigned i = 0; i < kRows; ++i)
      sum += list.add(Lookup(u[i].high(), tables[0].value), flags[i], 8 * (unit + i * kWarp));
  }
  return sum;
}

// The same for one that is cut short: covers the padding of the planes, and reads zeros where
// there are no values.
template <int kWidth>
__device__ __noinline__ std::uint64_t write_part_of_partial(RingBlock block, const BlockInfo& info,
                                                            std::uint8_t* payload, unsigned part,
                                                            std::uint32_t rows) {
  const FixedParts parts(info.job.n, kWidth, info.plane_modes);
  EscapeList list = EscapeList::of<kWidth>(info, payload, part);
  std::uint64_t sum = 0;
#pragma unroll 1
  for (std::uint32_t row = part * rows; row < (part + 1) * rows; ++row) {
    const std::uint32_t unit = row * kWarp + lane_id();
    const auto left = static_cast<std::int32_t>(info.job.n) - 8 * static_cast<std::int32_t>(unit);
    UnitVecs<kWidth> u;
    u.load(block.at(8 * kWidth * unit), 0);
    uint2 lows[kWidth - 1], high;
    u.split(lows, high);
    const Lookup look(high, info.tables[0].value);
    std::uint32_t word = look.indices(info.tables[0].index);
    const std::uint32_t flags =
        resolve_misses(look, shared_address(info.lut), word) & existing_flags(left);
    word = (word | sign_bits(high)) & ~rest_of_word(left);
#pragma unroll
    for (int p = 0; p < kWidth - 1; ++p) {
      if ((info.plane_modes >> (2 * p) & 3) != 0 || 8 * unit >= align16(info.job.n)) continue;
      store_once(payload + parts.plane[p] + 8 * unit, lows[p]);
      sum += checksum_terms(lows[p], checksum_factor(parts.plane[p] / 4 + 2 * unit));
    }
    if (4 * unit < parts.head - parts.nibbles) {
      store_once(payload + parts.nibbles + 4 * unit, word);
      sum += checksum_term(word, parts.nibbles / 4 + unit);
    }
    __syncwarp();
    sum += list.add(look, flags, 8 * unit);
  }
  return sum;
}

// One warp's parts of a fixed payload; returns their checksum terms. read(p) is called when piece
// p is in registers.
template <int kWidth, unsigned kRows, unsigned kTables, class Read>
__device__ __forceinline__ std::uint64_t write_parts(const RingBlock& block, const BlockInfo& info,
                                                     std::uint8_t* payload, unsigned warp,
                                                     unsigned num_pieces, Read read) {
  const FixedParts parts(info.job.n, kWidth, info.plane_modes);
  std::uint64_t sum = 0;
#pragma unroll 1
  for (unsigned p = 0; p < num_pieces; ++p)
    sum += write_part<kWidth, kRows, kTables>(block, info, parts, payload, p * kWriters + warp,
                                              [&] { read(p); });
  return sum;
}
template <int kWidth, class Read>
__device__ __forceinline__ std::uint64_t write_fixed(const RingBlock& block, const BlockInfo& info,
                                                     std::uint8_t* payload, unsigned warp,
                                                     Pieces pieces, std::uint32_t block_elems,
                                                     Read read) {
  std::uint64_t sum = 0;
  if (warp == 0) sum = write_fixed_rest<kWidth>(block.start, info, payload);
  if (info.job.n != block_elems) {
#pragma unroll 1
    for (unsigned p = 0; p < pieces.num; ++p) {
      sum += write_part_of_partial<kWidth>(block, info, payload, p * kWriters + warp, pieces.rows);
      read(p);
    }
    return sum;
  }
  const auto write = [&]<unsigned kRows, unsigned kTables>() {
    sum += write_parts<kWidth, kRows, kTables>(block, info, payload, warp, pieces.num, read);
  };
  if (info.num_tables == 1)
    pieces.rows == 2 ? write.template operator()<2, 1>() : write.template operator()<1, 1>();
  else if (info.num_tables == 2)
    pieces.rows == 2 ? write.template operator()<2, 2>() : write.template operator()<1, 2>();
  else
    pieces.rows == 2 ? write.template operator()<2, 0>() : write.template operator()<1, 0>();
  return sum;
}

// One warp's share of a raw block, which is copied, or of a constant one.
template <class Read>
__device__ __forceinline__ std::uint64_t write_plain(const RingBlock& block, const BlockInfo& info,
                                                     std::uint8_t* payload, unsigned warp,
                                                     unsigned width, unsigned num_pieces,
                                                     std::uint32_t block_bytes, Read read) {
  constexpr unsigned kBatch = 2;
  if (info.codec == static_cast<std::uint32_t>(Codec::kConstant)) {
    uint4 v = load_shared16(block.start);
    for (unsigned p = 0; p < num_pieces; ++p) read(p);
    if (warp != 0 || lane_id() != 0) return 0;
    if (width < 4) v.x &= (1u << (8 * width)) - 1;
    v = {v.x, width == 8 ? v.y : 0, 0, 0};
    store_once(payload, v);
    return checksum_term(v, 0);
  }
  const std::uint32_t num_vecs = info.payload_bytes / 16,
                      rows = block_bytes / (16 * kWarp * kWriters) / num_pieces;
  std::uint64_t sum = 0;
#pragma unroll 1
  for (unsigned p = 0; p < num_pieces; ++p) {
    std::uint32_t vec = (p * kWriters + warp) * rows * kWarp + lane_id();
#pragma unroll 1
    for (std::uint32_t row = 0; row < rows; row += kBatch, vec += kBatch * kWarp) {
      uint4 v[kBatch];
      const auto exists = [&](unsigned i) { return row + i < rows && vec + i * kWarp < num_vecs; };
#pragma unroll
      for (unsigned i = 0; i < kBatch; ++i)
        if (exists(i)) v[i] = load_shared16(block.at(16 * (vec + i * kWarp)));
      if (row + kBatch >= rows) read(p);
#pragma unroll
      for (unsigned i = 0; i < kBatch; ++i) {
        if (!exists(i)) break;
        store_once(payload + 16 * (vec + i * kWarp), v[i]);
        sum += checksum_term(v[i], vec + i * kWarp);
      }
    }
  }
  return sum;
}

template <int kWidth>
__device__ __forceinline__ void write_blocks(const Work& work, RingCursor cursor,
                                             EncodeWideSmem& smem) {
  const unsigned warp = threadIdx.x / kWarp;
  const std::uint32_t block_bytes = cursor.ring.block_units * kRingUnit;
  const Pieces pieces = Pieces::of<kWidth>(block_bytes);
  const std::uint32_t part_bytes = pieces.part_bytes<kWidth>();
  for (unsigned j = 0;; ++j, cursor.advance()) {
    await_block(smem.placed, j);
    // Long since; but these are the barriers that the block's bytes came with.
    await_block(smem.full, j);
    await_block(smem.counted, j);
    BlockInfo& info = smem.infos[j % kBlockInfos];
    if (info.ends) return;
    const RingBlock block = cursor.block();
    std::uint8_t* payload = static_cast<std::uint8_t*>(info.job.w.item.frame) + info.offset;
    // Every thread arrives for itself: tools that look for races understand that.
    const auto read = [&](unsigned piece) {
      const std::uint32_t unit = (piece * kWriters + warp) * part_bytes / kRingUnit;
      arrive(shared_address(&smem.empty[cursor.barrier(unit)]));
    };
    std::uint64_t sum = 0;
    if (info.written) {
      bool fixed = false;
      if constexpr (kWidth > 1) {
        fixed = info.codec == static_cast<std::uint32_t>(Codec::kFixed);
        if (fixed)
          sum =
              write_fixed<kWidth>(block, info, payload, warp, pieces, 1u << work.log2_block, read);
      }
      if (!fixed)
        sum = write_plain(block, info, payload, warp, width_of(work.dtype), pieces.num, block_bytes,
                          read);
    } else {
      for (unsigned p = 0; p < pieces.num; ++p) read(p);
    }
    __syncwarp();
    sum = warp_sum64(sum);
    if (lane_id() == 0) info.sums[warp] = sum;
    arrive(shared_address(&smem.written[j % kBlockInfos]));
    __syncwarp();
  }
}

}  // namespace snug::cuda
