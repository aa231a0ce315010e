// cuda/encode_write.cuh - writes the payload of a surveyed block straight to the
// frame, each writer warp of cuda/encode_wide.cuh a part of it.
#pragma once
#include "cuda/encode_survey.cuh"

namespace snug::cuda {

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

// Lists the escapes of the rows in `rows` (a bit each) of this warp's part.
template <int kWidth>
__device__ __noinline__ std::uint64_t write_escapes(std::uint32_t stage, const BlockInfo& info,
                                                    std::uint8_t* payload, std::uint32_t rows,
                                                    std::uint32_t first_unit, unsigned warp) {
  const unsigned lane = lane_id();
  const std::uint32_t below = (1u << lane) - 1,
                      at = FixedParts(info.job.n, kWidth, info.plane_modes).head +
                           static_cast<std::uint32_t>(codec::FixedHeader::kBytes);
  std::uint32_t next = __reduce_add_sync(kAll, lane < warp ? info.escapes_of[lane] : 0);
  std::uint64_t sum = 0;
  for (; rows != 0; rows &= rows - 1) {
    const std::uint32_t unit = first_unit + first_set(rows) * kWarp;
    UnitVecs<kWidth> u;
    u.load(stage, unit);
    const Lookup look(u.high(), info.tables.value);
    std::uint32_t word = 0;
    std::uint32_t flags =
        resolve_misses(look, shared_address(info.lut), word) &
        existing_flags(static_cast<std::int32_t>(info.job.n) - 8 * static_cast<std::int32_t>(unit));
    __syncwarp();
    const std::uint32_t count = __popc(flags);
    std::uint32_t before = 0, total = 0;
#pragma unroll
    for (unsigned b = 0; b < 4; ++b) {
      const unsigned lanes = __ballot_sync(kAll, (count >> b & 1) != 0);
      before += __popc(lanes & below) << b;
      total += __popc(lanes) << b;
    }
    for (std::uint32_t i = next + before; flags != 0; flags &= flags - 1, ++i) {
      const std::uint32_t value = first_set(flags) / 4;
      const std::uint32_t escape = (8 * unit + value) | look.top_byte(value) << 24;
      store_global(payload + at + 4 * i, escape);
      sum += checksum_term(escape, at / 4 + i);
    }
    next += total;
  }
  return sum;
}

// Constant planes, header and the end of the escapes, by one warp.
template <int kWidth>
__device__ __noinline__ std::uint64_t write_fixed_rest(std::uint32_t stage, const BlockInfo& info,
                                                       std::uint8_t* payload) {
  const unsigned lane = lane_id();
  const FixedParts parts(info.job.n, kWidth, info.plane_modes);
  std::uint64_t sum = 0;
  const auto put = [&](std::uint32_t at, uint4 v) {
    store_global(payload + at, v);
    sum += checksum_term(v, at / 16);
  };
  if (lane == 0) put(parts.head, {info.num_escapes, info.palette.x, info.palette.y, 0});
#pragma unroll
  for (unsigned p = 0; p + 1 < kWidth; ++p)
    if (lane == 0 && (info.plane_modes >> (2 * p) & 3) == 1)
      put(parts.plane[p], {load_shared16(stage).x >> (8 * p) & 255, 0, 0, 0});
  const std::uint32_t end = parts.head + static_cast<std::uint32_t>(codec::FixedHeader::kBytes) +
                            4 * (info.num_escapes + lane);
  if (end < info.payload_bytes) store_global(payload + end, 0u);
  return sum;
}

// Where a lane's units go.
template <int kWidth>
struct RowTargets {
  std::uint8_t* lows[kWidth - 1];
  std::uint8_t* words;
  std::uint32_t low_factors[kWidth - 1], word_factor;  // for checksums

  __device__ __forceinline__ RowTargets(std::uint8_t* payload, const FixedParts& parts,
                                        std::uint32_t unit)
      : words(payload + parts.nibbles + 4 * unit),
        word_factor(checksum_factor(parts.nibbles / 4 + unit)) {
#pragma unroll
    for (int p = 0; p < kWidth - 1; ++p) {
      lows[p] = payload + parts.plane[p] + 8 * unit;
      low_factors[p] = checksum_factor(parts.plane[p] / 4 + 2 * unit);
    }
  }
  __device__ __forceinline__ void advance(unsigned num_rows) {
#pragma unroll
    for (int p = 0; p < kWidth - 1; ++p) {
      lows[p] += num_rows * 8 * kWarp;
      low_factors[p] += num_rows * (2 * kWarp * frame::kChecksumStep);
    }
    words += num_rows * 4 * kWarp;
    word_factor += num_rows * (kWarp * frame::kChecksumStep);
  }
};

// kBatch rows of units that all exist. Sets the bits of `with_escapes` from `bit` on.
template <int kWidth, unsigned kBatch>
__device__ __forceinline__ std::uint64_t write_rows(std::uint32_t stage, std::uint32_t unit,
                                                    const PackTables& tables, std::uint32_t lut,
                                                    std::uint32_t modes,
                                                    const RowTargets<kWidth>& to, std::uint32_t bit,
                                                    std::uint32_t& with_escapes) {
  UnitVecs<kWidth> u[kBatch];
#pragma unroll
  for (unsigned i = 0; i < kBatch; ++i) u[i].load(stage, unit + i * kWarp);
  std::uint64_t sum = 0;
#pragma unroll
  for (unsigned i = 0; i < kBatch; ++i) {
    uint2 lows[kWidth - 1], high;
    u[i].split(lows, high);
    const Lookup look(high, tables.value);
    std::uint32_t word = look.indices(tables.index);
    if (look.misses() && resolve_misses(look, lut, word) != 0) with_escapes |= bit << i;
    word |= sign_bits(high);
#pragma unroll
    for (int p = 0; p < kWidth - 1; ++p) {
      if (kWidth == 4 && (modes >> (2 * p) & 3) != 0) continue;
      store_global(to.lows[p] + i * 8 * kWarp, lows[p]);
      sum += checksum_terms(lows[p], to.low_factors[p] + i * (2 * kWarp * frame::kChecksumStep));
    }
    store_global(to.words + i * 4 * kWarp, word);
    sum += std::uint64_t{word} * (to.word_factor + i * (kWarp * frame::kChecksumStep));
  }
  return sum;
}

// What write_rows does for a whole block, for the rows of one that is cut short: covers
// the padding of the planes, and reads zeros where there are no values.
template <int kWidth>
__device__ __noinline__ std::uint64_t write_rows_of_partial(std::uint32_t stage,
                                                            const BlockInfo& info,
                                                            std::uint8_t* payload,
                                                            std::uint32_t first_unit,
                                                            std::uint32_t rows) {
  const FixedParts parts(info.job.n, kWidth, info.plane_modes);
  std::uint64_t sum = 0;
#pragma unroll 1
  for (std::uint32_t row = 0; row < rows; ++row) {
    const std::uint32_t unit = first_unit + row * kWarp;
    const auto left = static_cast<std::int32_t>(info.job.n) - 8 * static_cast<std::int32_t>(unit);
    UnitVecs<kWidth> u;
    u.load(stage, unit);
    uint2 lows[kWidth - 1], high;
    u.split(lows, high);
    const Lookup look(high, info.tables.value);
    std::uint32_t word = look.indices(info.tables.index);
    resolve_misses(look, shared_address(info.lut), word);
    word = (word | sign_bits(high)) & ~rest_of_word(left);
#pragma unroll
    for (int p = 0; p < kWidth - 1; ++p) {
      if ((info.plane_modes >> (2 * p) & 3) != 0 || 8 * unit >= align16(info.job.n)) continue;
      store_global(payload + parts.plane[p] + 8 * unit, lows[p]);
      sum += checksum_terms(lows[p], checksum_factor(parts.plane[p] / 4 + 2 * unit));
    }
    if (4 * unit < parts.head - parts.nibbles) {
      store_global(payload + parts.nibbles + 4 * unit, word);
      sum += checksum_term(word, parts.nibbles / 4 + unit);
    }
  }
  return sum;
}

// One warp's part of a fixed payload; returns its checksum terms.
template <int kWidth>
__device__ __forceinline__ std::uint64_t write_fixed_part(std::uint32_t stage,
                                                          const BlockInfo& info,
                                                          std::uint8_t* payload, unsigned warp,
                                                          std::uint32_t block_elems) {
  constexpr unsigned kBatch = kWidth == 2 ? 4 : 2;
  const std::uint32_t rows = block_elems / kRowElems / kWriters;
  const std::uint32_t first_unit = warp * rows * kWarp + lane_id();
  const FixedParts parts(info.job.n, kWidth, info.plane_modes);
  std::uint64_t sum = 0;
  std::uint32_t with_escapes = 0;  // rows, a bit each
  if (info.job.n != block_elems) {
    sum = write_rows_of_partial<kWidth>(stage, info, payload, first_unit, rows);
    with_escapes = (1u << rows) - 1;
  } else {
    const PackTables tables = info.tables;
    const std::uint32_t lut = kept_shared_address(info.lut), modes = info.plane_modes;
    RowTargets<kWidth> to(payload, parts, first_unit);
    const unsigned step = rows % kBatch == 0 ? kBatch : 1;
    std::uint32_t unit = first_unit;
#pragma unroll 1
    for (std::uint32_t row = 0; row < rows; row += step, unit += step * kWarp) {
      sum += step == 1 ? write_rows<kWidth, 1>(stage, unit, tables, lut, modes, to, 1u << row,
                                               with_escapes)
                       : write_rows<kWidth, kBatch>(stage, unit, tables, lut, modes, to, 1u << row,
                                                    with_escapes);
      to.advance(step);
    }
  }
  if (warp == 0) sum += write_fixed_rest<kWidth>(stage, info, payload);
  with_escapes = __reduce_or_sync(kAll, with_escapes);
  if (with_escapes != 0)
    sum += write_escapes<kWidth>(stage, info, payload, with_escapes, first_unit, warp);
  return sum;
}

// One warp's part of a raw block, which is copied, or of a constant one.
__device__ __forceinline__ std::uint64_t write_plain_part(std::uint32_t stage,
                                                          const BlockInfo& info,
                                                          std::uint8_t* payload, unsigned warp,
                                                          unsigned width) {
  if (info.codec == static_cast<std::uint32_t>(Codec::kConstant)) {
    if (warp != 0 || lane_id() != 0) return 0;
    uint4 v = load_shared16(stage);
    if (width < 4) v.x &= (1u << (8 * width)) - 1;
    v = {v.x, width == 8 ? v.y : 0, 0, 0};
    store_global(payload, v);
    return checksum_term(v, 0);
  }
  constexpr unsigned kBatch = 4;
  const std::uint32_t num_vecs = info.payload_bytes / 16, rows = (num_vecs + kWarp - 1) / kWarp;
  const std::uint32_t first = warp * rows / kWriters, last = (warp + 1) * rows / kWriters;
  std::uint64_t sum = 0;
#pragma unroll 1
  for (std::uint32_t row = first; row < last; row += kBatch) {
    uint4 v[kBatch];
    const std::uint32_t vec = row * kWarp + lane_id(), factor = checksum_factor(4 * vec);
    const auto exists = [&](unsigned i) { return row + i < last && vec + i * kWarp < num_vecs; };
#pragma unroll
    for (unsigned i = 0; i < kBatch; ++i)
      if (exists(i)) v[i] = load_shared16(stage + 16 * (vec + i * kWarp));
#pragma unroll
    for (unsigned i = 0; i < kBatch; ++i) {
      if (!exists(i)) break;
      store_global(payload + 16 * (vec + i * kWarp), v[i]);
      sum += checksum_terms(v[i], factor + i * (4 * kWarp * frame::kChecksumStep));
    }
  }
  return sum;
}

template <int kWidth>
__device__ __forceinline__ void write_blocks(const Work& work, const std::uint8_t* stages,
                                             std::uint32_t block_bytes, unsigned num_stages,
                                             EncodeWideSmem& smem) {
  const unsigned warp = threadIdx.x / kWarp;
  for (unsigned j = 0;; ++j) {
    const unsigned s = j % num_stages;
    wait_barrier(shared_address(&smem.placed[s]), j / num_stages & 1);
    // Long since; but these are the barriers that the stage's bytes came with.
    wait_barrier(shared_address(&smem.full[s]), j / num_stages & 1);
    wait_barrier(shared_address(&smem.counted[s]), j / num_stages & 1);
    BlockInfo& info = smem.infos[j % kBlockInfos];
    if (info.ends) return;
    const std::uint32_t stage = kept_shared_address(stages + s * block_bytes);
    std::uint8_t* payload = static_cast<std::uint8_t*>(info.job.w.item.frame) + info.offset;
    std::uint64_t sum = 0;
    if (info.written) {
      bool fixed = false;
      if constexpr (kWidth > 1) {
        fixed = info.codec == static_cast<std::uint32_t>(Codec::kFixed);
        if (fixed)
          sum = write_fixed_part<kWidth>(stage, info, payload, warp, 1u << work.log2_block);
      }
      if (!fixed) sum = write_plain_part(stage, info, payload, warp, width_of(work.dtype));
    }
    __syncwarp();
    sum = warp_sum64(sum);
    if (lane_id() == 0) {
      info.sums[warp] = sum;
      arrive(shared_address(&smem.empty[s]));
    }
    __syncwarp();
  }
}

}  // namespace snug::cuda
