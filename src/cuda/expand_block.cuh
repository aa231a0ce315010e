// cuda/expand_block.cuh - one warp's part of a `fixed`, raw or constant block whose
// payload is in shared memory; used by cuda/decode_wide.cuh.
#pragma once
#include <type_traits>

#include "cuda/decode_any.cuh"
#include "cuda/decode_fixed.cuh"
#include "cuda/decode_frame.cuh"

namespace snug::cuda {

inline constexpr unsigned kConsumers =
    22;  // warps: parts of 64 and of 128 chunks come out nearly even
inline constexpr unsigned kConsumerThreads = kConsumers * kWarp;

// Element widths of types that have the fixed codec.
template <int kWidth>
inline constexpr bool kHasFixed = kWidth == 2 || kWidth == 4;

struct StageInfo {
  DecodeJob job;
  std::uint64_t ticket;
  FixedLayout layout;               // of a fixed block, all but what its header says
  bool staged;                      // the payload is in shared memory
  std::uint8_t* bases[kConsumers];  // of PartTarget
  std::uint64_t sums[kConsumers];
  Reason reasons[kConsumers];
  std::uint32_t num_patched[kConsumers];  // escapes that were found where they belong
};

// A part of the block in the tensor, in one piece wherever that is possible.
template <class Access>
struct PartTarget {
  Access dst;
  std::uint64_t pos;   // of the block
  std::uint8_t* base;  // of the block, as far as this part is concerned, or null

  // A vector of which `left` bytes belong to the block.
  __device__ __forceinline__ void put(std::uint32_t at, uint4 v, std::uint32_t left) const {
    if (left < 16)
      store_end(dst, pos + at, v, static_cast<std::int32_t>(left));
    else if (std::is_same_v<Access, DirectAccess> || base != nullptr)
      __stcs(reinterpret_cast<uint4*>(base + at), v);
    else
      dst.store16(pos + at, v);
  }
};

// Chunks of 256 values (fixed) or 512 bytes (others) in a block; those of fixed
// blocks cover the padding of both planes.
__device__ __forceinline__ std::uint32_t count_chunks(bool fixed, std::uint32_t n, unsigned width) {
  if (!fixed) return (n * width + 511) / 512;
  const std::uint64_t units = align16(n) / 8,
                      nibble_words = align16(codec::fixed_nibble_bytes(n)) / 4;
  return (static_cast<std::uint32_t>(units > nibble_words ? units : nibble_words) + kWarp - 1) /
         kWarp;
}

// Those that one consumer works on.
struct Part {
  std::uint32_t first, last;
  __device__ Part(std::uint32_t num_chunks, unsigned warp)
      : first(warp * num_chunks / kConsumers), last((warp + 1) * num_chunks / kConsumers) {}
};

// The bytes of a block that `part` covers at least; a multiple of 16 to start with.
__device__ __forceinline__ std::uint8_t* find_base(const ScatteredAccess& dst, std::uint64_t pos,
                                                   std::uint32_t first, std::uint32_t last) {
  if (first >= last) return nullptr;
  const auto piece = dst.find(pos + first);
  return piece.left >= last - first && reinterpret_cast<std::uintptr_t>(piece.at) % 16 == 0
             ? piece.at - first
             : nullptr;
}

// The base for a consumer: the producer has found those of scattered tensors.
__device__ __forceinline__ std::uint8_t* base_of(const DirectAccess& dst, const StageInfo& info,
                                                 unsigned) {
  return dst.data + info.job.pos;
}
__device__ __forceinline__ std::uint8_t* base_of(const ScatteredAccess&, const StageInfo& info,
                                                 unsigned warp) {
  return info.bases[warp];
}

// The values of a unit (8 of them, one word of nibbles) in memory order.
template <int kWidth>
struct UnitWords {
  std::uint32_t w[2 * kWidth];
  std::uint32_t num_patched;
};

template <int kWidth>
__device__ __forceinline__ void merge_unit(const uint2 (&lows)[kWidth - 1], uint2 high,
                                           UnitWords<kWidth>& out) {
  if constexpr (kWidth == 2) {
    out.w[0] = __byte_perm(lows[0].x, high.x, 0x5140);
    out.w[1] = __byte_perm(lows[0].x, high.x, 0x7362);
    out.w[2] = __byte_perm(lows[0].y, high.y, 0x5140);
    out.w[3] = __byte_perm(lows[0].y, high.y, 0x7362);
  } else {
    const uint4 a = transpose_bytes(lows[0].x, lows[1].x, lows[2].x, high.x);
    const uint4 b = transpose_bytes(lows[0].y, lows[1].y, lows[2].y, high.y);
    out.w[0] = a.x, out.w[1] = a.y, out.w[2] = a.z, out.w[3] = a.w;
    out.w[4] = b.x, out.w[5] = b.y, out.w[6] = b.z, out.w[7] = b.w;
  }
}

// Puts escapes into a unit. Encoders list them by position, so that those of the
// warp's next units follow each other: `next` is the first of them, moved on. A
// unit that finds another one there leaves it to patch_all.
template <int kWidth>
__device__ __noinline__ UnitWords<kWidth> patch_unit(UnitWords<kWidth> out, std::uint32_t flags,
                                                     std::uint32_t unit, std::uint32_t escapes,
                                                     std::uint32_t next,
                                                     std::uint32_t num_escapes) {
  const unsigned lane = lane_id();
  const std::uint32_t count = __popc(flags);
  std::uint32_t before = count;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const std::uint32_t below = __shfl_up_sync(kAll, before, d);
    if (lane >= static_cast<unsigned>(d)) before += below;
  }
  next += before - count;
  for (; flags != 0 && next < num_escapes; flags &= flags - 1, ++next) {
    const std::uint32_t i = static_cast<std::uint32_t>(__ffs(static_cast<int>(flags)) - 1) / 4;
    const std::uint32_t escape = load_shared_u32(escapes + 4 * next);
    if ((escape & 0xFFFFFF) != 8 * unit + i) break;
    ++out.num_patched;
    const unsigned selector = kWidth == 2 && i % 2 == 0 ? 0x3240 : 0x4210;
#pragma unroll
    for (unsigned k = 0; k < 2 * kWidth; ++k)
      out.w[k] = __byte_perm(out.w[k], escape >> 24, k == i * kWidth / 4 ? selector : 0x3210);
  }
  return out;
}

// The first escape at or after a position, as listed by encoders.
inline __device__ __noinline__ std::uint32_t find_escape(std::uint32_t escapes,
                                                         std::uint32_t num_escapes,
                                                         std::uint32_t position) {
  std::uint32_t first = 0, last = num_escapes;
  while (first < last) {
    const std::uint32_t mid = (first + last) / 2;
    if ((load_shared_u32(escapes + 4 * mid) & 0xFFFFFF) < position)
      first = mid + 1;
    else
      last = mid;
  }
  return first;
}

// One warp's part of a fixed block.
template <int kWidth, class Access>
__device__ __forceinline__ Reason expand_fixed(const std::uint8_t* stage, const StageInfo& info,
                                               const Access& dst, std::uint64_t& sum,
                                               std::uint32_t& num_patched) {
  const DecodeJob& job = info.job;
  constexpr int kLows = kWidth - 1;
  const unsigned warp = threadIdx.x / kWarp, lane = lane_id();
  const std::uint32_t base = shared_address(stage), n = job.n, num_bytes = job.entry.num_bytes;
  FixedLayout layout = info.layout;
  if (!read_fixed_header(load_shared16(base + layout.escapes - codec::FixedHeader::kBytes),
                         num_bytes, n, layout))
    return kReasonPayload;
  const std::uint32_t low_part = static_cast<std::uint32_t>(align16(n));
  const std::uint32_t head =
      layout.escapes - static_cast<std::uint32_t>(codec::FixedHeader::kBytes);
  const std::uint32_t nibble_part = head - layout.nibbles, escapes = base + layout.escapes;
  const auto [first, last] = Part(count_chunks(true, n, kWidth), warp);
  const PartTarget<Access> target{dst, job.pos, base_of(dst, info, warp)};
  std::uint32_t next =
      layout.num_escapes == 0 ? 0 : find_escape(escapes, layout.num_escapes, first * 256);
  std::uint32_t constants[kLows] = {};
  if constexpr (kWidth == 4)
    for (int p = 0; p < kLows; ++p) constants[p] = stage[layout.constants[p]] * 0x01010101u;
#pragma unroll(kWidth == 2 ? 4 : 2)
  for (std::uint32_t chunk = first; chunk < last; ++chunk) {
    const std::uint32_t unit = chunk * kWarp + lane;
    uint2 lows[kLows];
    std::uint32_t nibbles = 0;
#pragma unroll
    for (int p = 0; p < kLows; ++p) {
      lows[p] = {constants[p], constants[p]};
      if ((kWidth == 4 && job.entry.mode(p) == 1) || 8 * unit >= low_part) continue;
      lows[p] = load_shared8(base + layout.planes[p] + 8 * unit);
      const std::uint32_t word = layout.planes[p] / 4 + 2 * unit;
      sum += checksum_term(lows[p].x, word) + checksum_term(lows[p].y, word + 1);
    }
    if (4 * unit < nibble_part) {
      nibbles = load_shared_u32(base + layout.nibbles + 4 * unit);
      sum += checksum_term(nibbles, layout.nibbles / 4 + unit);
    }
    UnitWords<kWidth> out;
    merge_unit<kWidth>(lows, fixed_high_bytes(nibbles, layout.palette), out);
    out.num_patched = num_patched;
    std::uint32_t flags = nibbles & nibbles >> 1 & nibbles >> 2 & 0x11111111u;
    if (8 * unit + 8 > n) flags = 8 * unit < n ? flags & ((1u << (4 * (n - 8 * unit))) - 1) : 0;
    if (layout.num_escapes != 0 && __any_sync(kAll, flags != 0)) {
      out = patch_unit<kWidth>(out, flags, unit, escapes, next, layout.num_escapes);
      num_patched = out.num_patched;
      next += __reduce_add_sync(kAll, __popc(flags));
    }
#pragma unroll
    for (std::uint32_t k = 0; k < 2 * kWidth; k += 4) {
      const std::uint32_t at = 8 * kWidth * unit + 4 * k;
      if (at < n * kWidth)
        target.put(at, {out.w[k], out.w[k + 1], out.w[k + 2], out.w[k + 3]}, n * kWidth - at);
    }
  }
  const auto add_vecs = [&](std::uint32_t from, std::uint32_t to) {
    for (std::uint32_t at = from + 16 * threadIdx.x; at < to; at += 16 * kConsumerThreads)
      sum += checksum_term(load_shared16(base + at), at / 16);
  };
  if constexpr (kWidth == 4) add_vecs(layout.constants[0], layout.nibbles);
  add_vecs(head, num_bytes);
  return kReasonNone;
}

// One warp's part of a raw or constant block.
template <class Access>
__device__ __forceinline__ Reason expand_plain(const std::uint8_t* stage, const StageInfo& info,
                                               unsigned width, const Access& dst,
                                               std::uint64_t& sum) {
  const DecodeJob& job = info.job;
  const unsigned warp = threadIdx.x / kWarp, lane = lane_id();
  const std::uint32_t base = shared_address(stage), raw = job.n * width;
  const bool constant = job.entry.codec == static_cast<unsigned>(Codec::kConstant);
  if (job.entry.plane_modes != 0 || job.entry.num_bytes != (constant ? 16 : align16(raw)))
    return kReasonPayload;
  const auto [first, last] = Part(count_chunks(false, job.n, width), warp);
  const PartTarget<Access> target{dst, job.pos, base_of(dst, info, warp)};
  const uint4 value = repeat_value(load_shared16(base), width);
  if (constant && threadIdx.x == 0) sum += checksum_term(load_shared16(base), 0);
#pragma unroll 4
  for (std::uint32_t chunk = first; chunk < last; ++chunk) {
    const std::uint32_t at = chunk * 512 + 16 * lane;
    if (at >= raw) break;
    const uint4 v = constant ? value : load_shared16(base + at);
    if (!constant) sum += checksum_term(v, at / 16);
    target.put(at, v, raw - at);
  }
  return kReasonNone;
}

}  // namespace snug::cuda
