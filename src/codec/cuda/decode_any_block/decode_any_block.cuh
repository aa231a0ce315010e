// codec/cuda/decode_any_block/decode_any_block.cuh - blocks that a decode kernel has no loop of its
// own for: raw and constant ones, and every other by the slow path.
#pragma once
#include <type_traits>

#include "codec/cuda/decode_any_block/decode_coded_pair.cuh"
#include "codec/cuda/decode_any_block/decode_fixed_block.cuh"
#include "codec/cuda/decode_any_block/decode_planes.cuh"
#include "codec/cuda/frame/decode_frame.cuh"
#include "codec/sections.h"

namespace snug::cuda {

inline constexpr unsigned kRawStages = 8;

// One warp copies a raw block. Loads in flight land in shared memory, kRawStages times 512 bytes at
// `room`: L1 is small where shared memory is large, and would throttle them.

__device__ __forceinline__ Reason copy_raw_block(const u8* payload, const DeviceEntry& e, u32 n,
                                                 unsigned width, DirectAccess dst, u64 pos,
                                                 u32 room, u64& sum) {
  const u32 raw = n * width, full = raw / 16, mine = room + 16 * lane_id();
  if (e.plane_modes != 0 || e.num_bytes != align16(raw)) return kReasonPayload;
  const uint4* vecs = reinterpret_cast<const uint4*>(payload);
  const auto fetch = [&](u32 vec, unsigned stage) {
    if (vec < full) copy_async_b128(mine + 16 * kWarpSize * stage, vecs + vec);
    commit_copies();
  };
  u32 vec = lane_id(), factor = checksum_factor(4 * vec);
  dst = advanced(dst, pos);
#pragma unroll
  for (unsigned s = 0; s < kRawStages; ++s) fetch(vec + kWarpSize * s, s);
#pragma unroll 1
  while (vec < full) {
#pragma unroll
    for (unsigned s = 0; s < kRawStages; ++s) {
      wait_copies<kRawStages - 1>();
      const uint4 v = load_shared_b128(mine + 16 * kWarpSize * s);
      fetch(vec + kWarpSize * kRawStages, s);
      if (vec < full) {
        dst.store16(16 * u64{vec}, v);
        sum += checksum_terms(v, factor);
      }
      vec += kWarpSize;
      factor += 4 * kWarpSize * frame::kChecksumStep;
    }
  }
  wait_copies<0>();
  if (raw % 16 != 0 && lane_id() == 0) {
    const uint4 last = __ldg(vecs + full);
    store_end(dst, 16 * u64{full}, last, static_cast<i32>(raw % 16));
    sum += checksum_term(last, full);
  }
  return kReasonNone;
}

template <class Team, class Access>
__device__ Reason decode_raw(const u8* payload, const DeviceEntry& e, u32 n, unsigned width,
                             const Access& dst, u64 pos, u64& sum) {
  const u64 raw = u64{n} * width;
  if (e.plane_modes != 0 || e.num_bytes != align16(raw)) return kReasonPayload;
  const uint4* vecs = reinterpret_cast<const uint4*>(payload);
  constexpr int kUnroll = 4;
  const u32 full = static_cast<u32>(raw / 16);
  u32 i = Team::idx();
  for (; i + (kUnroll - 1) * Team::kSize < full; i += kUnroll * Team::kSize) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) v[u] = __ldcs(vecs + i + u * Team::kSize);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      dst.store16(pos + 16 * u64{i + u * Team::kSize}, v[u]);
      sum += checksum_term(v[u], i + u * Team::kSize);
    }
  }
  for (; 16 * u64{i} < raw; i += Team::kSize) {
    const uint4 v = __ldg(vecs + i);
    store_upto16(dst, pos + 16 * u64{i}, v, static_cast<i64>(raw - 16 * u64{i}));
    sum += checksum_term(v, i);
  }
  return kReasonNone;
}

// A vector of repetitions of its first value.
__device__ __forceinline__ uint4 repeat_value(uint4 v, unsigned width) {
  if (width == 1) v.x = __byte_perm(v.x, 0, 0x0000);
  if (width == 2) v.x = __byte_perm(v.x, 0, 0x1010);
  if (width < 8) v.y = v.x;
  v.z = v.x;
  v.w = v.y;
  return v;
}

template <class Team, class Access>
__device__ Reason decode_constant(const u8* payload, const DeviceEntry& e, u32 n, unsigned width,
                                  const Access& dst, u64 pos, u64& sum) {
  if (e.plane_modes != 0 || e.num_bytes != 16) return kReasonPayload;
  const uint4 stored = __ldg(reinterpret_cast<const uint4*>(payload));
  if (Team::idx() == 0) sum += checksum_term(stored, 0);
  const uint4 v = repeat_value(stored, width);
  const u64 raw = u64{n} * width;
#pragma unroll 1
  for (u64 at = 16 * Team::idx(); at < raw; at += 16 * Team::kSize)
    store_upto16(dst, pos + at, v, static_cast<i64>(raw - at));
  return kReasonNone;
}

template <class Access>
__device__ Reason decode_fixed_general(const u8* payload, const DeviceEntry& e, u32 n, DType dtype,
                                       const Access& dst, u64 pos) {
  if (dtype != DType::kBF16 && dtype != DType::kF32) return kReasonPayload;
  const unsigned width = width_of(dtype);
  FixedLayout layout;
  if (!open_fixed(payload, e.num_bytes, n, width, e, layout)) return kReasonPayload;
  for (u32 i = lane_id(); i < n; i += kWarpSize) {
    u64 v = 0;
#pragma unroll
    for (unsigned p = 0; p < 3; ++p)
      if (p + 1 < width)
        v |= u64{e.has(p, PlaneMode::kConstant) ? payload[layout.constants[p]]
                                                : payload[layout.planes[p] + i]}
             << (8 * p);
    const u32 word = reinterpret_cast<const u32*>(payload + layout.nibbles)[i / 8];
    const uint2 high = fixed_high_bytes(word, layout.palette);
    v |= u64{(i % 8 < 4 ? high.x : high.y) >> (i % 4 * 8) & 255} << (8 * (width - 1));
    store_elem(dst, pos + u64{i} * width, width, v);
  }
  return patch_fixed_escapes<WarpTeam>(payload, layout, n, width, dst, pos);
}

// The slow path. Arguments by value: what is passed by reference lives in local memory in the
// callers' hot loops, too.
template <int kWidth, class Access>
__device__ __noinline__ BlockResult decode_any(const u8* payload, DeviceEntry e, u32 n, DType dtype,
                                               Access dst, u64 pos, StreamRoom room) {
  const bool is_entropy = e.is(Codec::kEntropy);
  if constexpr (kWidth == 2)
    if (dtype == DType::kBF16 && is_entropy &&
        e.plane_modes == (mode_bits(PlaneMode::kPalette, 1) | mode_bits(PlaneMode::kBytes, 0))) {
      const BlockResult r = decode_coded_pair(payload, e.num_bytes, n, dst, pos, room);
      if (r.reason != kTooManyRows) return r;
    }
  const u64 sum = checksum_range<WarpTeam>(payload, 0, e.num_bytes / 16);
  __syncwarp();
  if (is_entropy) return {decode_entropy_planes<kWidth>(payload, e, n, dtype, dst, pos, room), sum};
  if (e.is(Codec::kFixed)) return {decode_fixed_general(payload, e, n, dtype, dst, pos), sum};
  return {kReasonPayload, sum};
}

// A block that its kernel has no loop for, by one warp. The room's slots have 4 KiB or more.
template <int kWidth, class Access>
__device__ __forceinline__ BlockResult decode_other(const u8* payload, const DeviceEntry& e, u32 n,
                                                    DType dtype, const Access& dst, u64 pos,
                                                    const StreamRoom& room) {
  BlockResult r{};
  if (e.is(Codec::kRaw)) {
    if constexpr (std::is_same_v<Access, DirectAccess>)
      r.reason = copy_raw_block(payload, e, n, kWidth, dst, pos, room.slots, r.sum);
    else
      r.reason = decode_raw<WarpTeam>(payload, e, n, kWidth, dst, pos, r.sum);
  } else if (e.is(Codec::kConstant)) {
    r.reason = decode_constant<WarpTeam>(payload, e, n, kWidth, dst, pos, r.sum);
  } else {
    r = decode_any<kWidth>(payload, e, n, dtype, dst, pos, room);
  }
  return r;
}

// Any block, by a team of warps; by the first warp alone where only the slow path will do.
template <class Team, int kWidth, class Access>
__device__ __forceinline__ BlockResult decode_by_team(const DecodeJob& job, DType dtype,
                                                      const Access& dst, const DecodeSmem& smem) {
  BlockResult r{};
  const DeviceEntry& e = job.entry;
  if (e.is(Codec::kFixed) && dtype == DType::kBF16 && e.plane_modes == 0)
    r.reason = decode_fixed_bf16_block<Team>(job.payload, e, job.n, dst, job.pos, r.sum);
  else if (e.is(Codec::kRaw))
    r.reason = decode_raw<Team>(job.payload, e, job.n, kWidth, dst, job.pos, r.sum);
  else if (e.is(Codec::kConstant))
    r.reason = decode_constant<Team>(job.payload, e, job.n, kWidth, dst, job.pos, r.sum);
  else if (Team::idx() < kWarpSize)
    r = decode_any<kWidth>(job.payload, e, job.n, dtype, dst, job.pos, smem.room());
  return r;
}

}  // namespace snug::cuda
