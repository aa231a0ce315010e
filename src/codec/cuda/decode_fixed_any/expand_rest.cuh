// codec/cuda/decode_fixed_any/expand_rest.cuh - one warp's part of any other fixed, raw or constant
// block whose payload is in shared memory.
#pragma once
#include "codec/cuda/decode_fixed_any/expand_block.cuh"

namespace snug::cuda {

// The values of a unit (8 of them, one word of nibbles) in memory order.
template <int kWidth>
__device__ __forceinline__ void merge_unit(const uint2 (&lows)[kWidth - 1], uint2 high,
                                           uint4 (&out)[kWidth / 2]) {
  if constexpr (kWidth == 2) {
    out[0] = merge_low_high(lows[0], high);
  } else {
    out[0] = transpose_bytes(lows[0].x, lows[1].x, lows[2].x, high.x);
    out[1] = transpose_bytes(lows[0].y, lows[1].y, lows[2].y, high.y);
  }
}

// One row of units, 8 values a lane; covers the padding of both planes.
template <int kWidth, class Access>
__device__ __forceinline__ u64 expand_units(const FixedView& v, u32 row, const u8* stage,
                                            const Access& dst, u64 pos) {
  const u32 unit = row * kWarpSize + lane_id(), raw = v.n * kWidth;
  const auto low_part = static_cast<u32>(align16(v.n)),
             nibble_part = static_cast<u32>(align16(codec::fixed_nibble_bytes(v.n)));
  u64 sum = 0;
  uint2 lows[kWidth - 1];
  u32 word = 0;
#pragma unroll
  for (int p = 0; p < kWidth - 1; ++p) {
    lows[p].x = lows[p].y = stage[v.layout.constants[p]] * 0x01010101u;
    if ((v.modes >> (2 * p) & 1) != 0 || 8 * unit >= low_part) continue;
    lows[p] = load_shared_b64(v.base + v.layout.planes[p] + 8 * unit);
    sum += checksum_terms(lows[p], checksum_factor(v.layout.planes[p] / 4 + 2 * unit));
  }
  if (4 * unit < nibble_part) {
    word = load_shared_u32(v.base + v.layout.nibbles + 4 * unit);
    sum += checksum_term(word, v.layout.nibbles / 4 + unit);
  }
  uint4 out[kWidth / 2];
  merge_unit<kWidth>(lows, fixed_high_bytes(word, v.layout.palette), out);
#pragma unroll
  for (u32 k = 0; k < kWidth / 2; ++k) {
    const u32 at = 8 * kWidth * unit + 16 * k;
    if (at < raw) store_upto16(dst, pos + at, out[k], static_cast<i64>(raw - at));
  }
  return sum;
}

template <int kWidth, class Access>
__device__ __forceinline__ BlockResult expand_other_fixed(const u8* stage, const StageInfo& info,
                                                          const Access& dst, u32& num_patched) {
  const DecodeJob& job = info.job;
  const unsigned warp = warp_id();
  FixedView v{shared_address(stage), info.layout, job.entry.plane_modes, job.n};
  const u32 num_bytes = job.entry.num_bytes;
  const u32 head = v.layout.escapes - static_cast<u32>(codec::FixedHeader::kBytes);
  if (!read_fixed_header(load_shared_b128(v.base + head), num_bytes, v.n, v.layout))
    return {kReasonPayload, 0};
  // Both planes have the same number of rows, padding included.
  const u32 rows = (static_cast<u32>(align16(v.n)) + 255) / 256;
  const u32 first = warp * rows / kConsumers, last = (warp + 1) * rows / kConsumers;
  u64 sum = 0;
#pragma unroll 1
  for (u32 row = first; row < last; ++row) sum += expand_units<kWidth>(v, row, stage, dst, job.pos);
  if (v.layout.num_escapes != 0)
    num_patched = patch_part<kWidth>(v.base + v.layout.escapes, v.layout.num_escapes, first * 256,
                                     min(last * 256, v.n),
                                     [&](u32 at, u8 b) { dst.store_byte(job.pos + at, b); });
  const auto add_vecs = [&](u32 from, u32 to) {
    for (u32 at = from + 16 * threadIdx.x; at < to; at += 16 * kConsumerThreads)
      sum += checksum_term(load_shared_b128(v.base + at), at / 16);
  };
  add_vecs(v.layout.constants[0], v.layout.nibbles);
  add_vecs(head, num_bytes);
  return {kReasonNone, sum};
}

template <class Access>
__device__ __forceinline__ BlockResult expand_other_plain(const u8* stage, const StageInfo& info,
                                                          unsigned width, const Access& dst) {
  const DecodeJob& job = info.job;
  const u32 base = shared_address(stage), raw = job.n * width;
  const bool constant = job.entry.is(Codec::kConstant);
  if (job.entry.plane_modes != 0 || job.entry.num_bytes != (constant ? 16 : align16(raw)))
    return {kReasonPayload, 0};
  const uint4 stored = load_shared_b128(base), value = repeat_value(stored, width);
  u64 sum = constant && threadIdx.x == 0 ? checksum_term(stored, 0) : 0;
#pragma unroll 1
  for (u32 at = 16 * threadIdx.x; at < raw; at += 16 * kConsumerThreads) {
    const uint4 v = constant ? value : load_shared_b128(base + at);
    if (!constant) sum += checksum_term(v, at / 16);
    store_upto16(dst, job.pos + at, v, static_cast<i64>(raw - at));
  }
  return {kReasonNone, sum};
}

template <int kWidth, class Access>
__device__ __forceinline__ BlockResult expand_other(const u8* stage, const StageInfo& info,
                                                    const Access& dst, u32& num_patched) {
  if constexpr (kHasFixed<kWidth>)
    if (info.job.entry.is(Codec::kFixed))
      return expand_other_fixed<kWidth>(stage, info, dst, num_patched);
  return expand_other_plain(stage, info, kWidth, dst);
}

}  // namespace snug::cuda
