// cuda/encode_fixed.cuh - the `fixed` codec for BF16: one thread block a block
// of the frame, 64 values a thread, all of them in registers from the load to
// the stores.
#pragma once
#include "codec/sample.h"
#include "cuda/encode_any.cuh"
#include "cuda/encode_frame.cuh"

namespace snug::cuda {

inline constexpr int kFixedVecs = 8;  // vectors of 8 values a thread
inline constexpr int kMaxFixedLog2 = 15;

struct FixedSmem {
  std::uint32_t histogram[256];
  std::uint8_t lut[256];  // index of a high byte, whatever its sign
  uint2 palette;
  std::uint32_t escapes_before[kFixedVecs * 16];  // [vector][warp]
  std::uint32_t num_escapes;
  std::uint32_t payload_bytes;
  std::uint32_t codec;
  std::uint64_t offset;
  unsigned ticket;
  EncodeJob job;  // registers are for the values
};

// Nibble word of 8 values (codec/kernels_scalar.cpp draws it).
__device__ __forceinline__ std::uint32_t pack_nibbles(uint4 v, const std::uint8_t* lut) {
  const std::uint32_t high[2] = {__byte_perm(v.x, v.y, 0x7531), __byte_perm(v.z, v.w, 0x7531)};
  std::uint32_t packed = (high[0] & 0x80808080u) | (high[1] & 0x80808080u) >> 4;
#pragma unroll
  for (unsigned i = 0; i < 8; ++i) packed |= std::uint32_t{lut[high[i / 4] >> (i % 4 * 8) & 255]} << (4 * i);
  return packed;
}

// What pack_nibbles gives where only `num_values` of the 8 exist.
__device__ __noinline__ std::uint32_t cut_nibbles(std::uint32_t packed, std::int32_t num_values) {
  for (std::int32_t i = max(num_values, 0); i < 8; ++i)
    packed &= ~(7u << (4 * i) | 1u << (i < 4 ? 8 * i + 7 : 8 * (i - 4) + 3));
  return packed;
}

// Bit 4i is set where value i is an escape (index 7).
__device__ __forceinline__ std::uint32_t escape_flags(std::uint32_t nibbles) {
  return nibbles & nibbles >> 1 & nibbles >> 2 & 0x11111111u;
}

// Value i of a block, without going over the registers.
template <class Access>
__device__ __forceinline__ std::uint32_t value_at(const Access& src, std::uint64_t pos, std::uint32_t i) {
  return src.load_byte(pos + 2 * std::uint64_t{i}) | std::uint32_t{src.load_byte(pos + 2 * std::uint64_t{i} + 1)} << 8;
}

// Statistics of the sampled runs of a whole block, by vectors, or of a partial
// one, by values.
template <class Access, int kThreads>
__device__ __forceinline__ void sample_fixed(const Access& src, std::uint64_t pos, std::uint32_t n, bool whole,
                                             std::uint32_t histogram) {
  const auto stride = static_cast<std::uint32_t>(codec::sample_stride(n));
  const std::uint32_t shift = 31 - __clz(static_cast<int>(stride));
  const auto vec_start = [&](std::uint32_t vec) {
    const std::uint32_t run = vec / 2;
    return ((run << shift) + (run & (stride - 1))) * 16 + vec % 2 * 8;
  };
  if (whole) {
#pragma unroll 1
    for (std::uint32_t vec = threadIdx.x; vec < n >> (3 + shift); vec += kThreads) {
      const uint4 v = src.peek16(pos + 2 * std::uint64_t{vec_start(vec)});
      const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        count_shared(histogram + (words[i] >> 5 & 0x3FC));
        count_shared(histogram + (words[i] >> 21 & 0x3FC));
      }
    }
    return;
  }
#pragma unroll 1
  for (std::uint32_t i = threadIdx.x; vec_start(i / 8) + i % 8 < n; i += kThreads)
    count_shared(histogram + (value_at(src, pos, vec_start(i / 8) + i % 8) >> 5 & 0x3FC));
}

// Codec, size and place of the block, by one warp.
__device__ __noinline__ void place_fixed_block(const Work& work, FixedSmem* smem, const EncodeJob* job_at, unsigned num_counts,
                                               bool constant) {
  const unsigned lane = lane_id();
  const EncodeJob& job = *job_at;
  const std::uint32_t n = job.n;
  std::uint32_t total = 0;
#pragma unroll 1
  for (unsigned base = 0; base < num_counts; base += kWarp) {
    const unsigned i = base + lane;
    const std::uint32_t count = i < num_counts ? smem->escapes_before[i] : 0;
    std::uint32_t sum = count;
    for (int d = 1; d < 32; d *= 2) {
      const std::uint32_t below = __shfl_up_sync(kAll, sum, d);
      if (lane >= static_cast<unsigned>(d)) sum += below;
    }
    if (i < num_counts) smem->escapes_before[i] = total + sum - count;
    total += __shfl_sync(kAll, sum, 31);
  }
  const auto room = static_cast<std::uint32_t>(align16(2 * n));
  const std::uint64_t coded =
      align16(n) + align16(codec::fixed_nibble_bytes(n)) + codec::FixedHeader::kBytes + align16(4 * std::uint64_t{total});
  const Codec codec = constant ? Codec::kConstant : coded < room ? Codec::kFixed : Codec::kRaw;
  const std::uint32_t payload = constant ? 16 : coded < room ? static_cast<std::uint32_t>(coded) : room;
  const std::uint64_t units =
      place_block(work.sizes + job.w.first_block, job.block, payload / 16, job.payload_start() / 16);
  if (lane == 0) {
    smem->num_escapes = total;
    smem->codec = static_cast<std::uint32_t>(codec);
    smem->payload_bytes = payload;
    smem->offset = units * 16;
  }
}

// Raw and constant blocks: read again, the registers hold halves.
template <class Access, int kThreads>
__device__ __noinline__ std::uint64_t write_plain_block(Access src, const FixedSmem* smem, const EncodeJob* job_at,
                                                        std::uint8_t* payload, bool write) {
  const EncodeJob& job = *job_at;
  const std::uint32_t used = smem->codec == static_cast<unsigned>(Codec::kConstant) ? 2 : 2 * job.n;
  std::uint64_t sum = 0;
#pragma unroll 4
  for (std::uint32_t vec = threadIdx.x; 16 * vec < used; vec += kThreads) {
    const uint4 v = load_upto16(src, job.pos + 16 * vec, static_cast<std::int64_t>(used) - 16 * vec);
    if (write) __stcs(reinterpret_cast<uint4*>(payload) + vec, v);
    sum += checksum_term(v, vec);
  }
  return sum;
}

// Header and escapes; those are listed by position: vector by vector, then
// thread by thread.
template <class Access, int kThreads>
__device__ __noinline__ std::uint64_t write_escapes(Access src, const FixedSmem* smem, const EncodeJob* job_at, std::uint32_t* out,
                                                    std::uint32_t head_word, const std::uint32_t* nibbles, bool write) {
  const EncodeJob& job = *job_at;
  const unsigned lane = lane_id(), warp = threadIdx.x / kWarp;
  std::uint64_t sum = 0;
  const auto put = [&](std::uint32_t word, std::uint32_t value) {
    if (write) out[word] = value;
    sum += checksum_term(value, word);
  };
  if (threadIdx.x == 0) {
    put(head_word, smem->num_escapes);
    put(head_word + 1, smem->palette.x);
    put(head_word + 2, smem->palette.y);
    put(head_word + 3, 0);
  }
  if (threadIdx.x < (0 - smem->num_escapes) % 4) put(head_word + 4 + smem->num_escapes + threadIdx.x, 0);
  // The nibbles are read back: escapes are few, and registers too.
#pragma unroll 1
  for (unsigned k = 0; k < kFixedVecs; ++k) {
    const std::uint32_t vec = k * kThreads + threadIdx.x;
    unsigned mine = escape_flags(nibbles[k]);
    if (__ballot_sync(kAll, mine != 0) == 0) continue;
    const std::uint32_t count = __popc(mine);
    std::uint32_t before = count;
    for (int d = 1; d < 32; d *= 2) {
      const std::uint32_t below = __shfl_up_sync(kAll, before, d);
      if (lane >= static_cast<unsigned>(d)) before += below;
    }
    std::uint32_t next = smem->escapes_before[k * (kThreads / kWarp) + warp] + before - count;
    for (; mine != 0; mine &= mine - 1, ++next) {
      const std::uint32_t i = 8 * vec + static_cast<std::uint32_t>(__ffs(static_cast<int>(mine)) - 1) / 4;
      put(head_word + 4 + next, i | value_at(src, job.pos, i) >> 8 << 24);
    }
  }
  return sum;
}

template <class Access, int kThreads>
__device__ __forceinline__ void encode_fixed_block(const Work& work, const Access& src, FixedSmem& smem) {
  const EncodeJob& job = smem.job;
  using Team = BlockTeam<kThreads>;
  const unsigned t = threadIdx.x, lane = lane_id(), warp = t / kWarp;
  constexpr unsigned kNumWarps = kThreads / kWarp;
  const std::uint32_t n = job.n;
  const std::uint64_t pos = job.pos;
  const bool whole = n == kThreads * kFixedVecs * 8;
  uint2 low[kFixedVecs];
  std::uint32_t nibbles[kFixedVecs];
  bool differs = false;
  {
    uint4 v[kFixedVecs];
#pragma unroll
    for (int k = 0; k < kFixedVecs; ++k) {
      const std::uint32_t at = 16 * (k * kThreads + t);
      v[k] = whole ? src.load16(pos + at) : load_end(src, pos + at, 2 * static_cast<std::int32_t>(n) - static_cast<std::int32_t>(at));
    }
    for (unsigned i = t; i < 256; i += kThreads) smem.histogram[i] = 0;
    for (unsigned i = t; i < 64; i += kThreads) reinterpret_cast<std::uint32_t*>(smem.lut)[i] = 0x07070707u;
    std::uint32_t first = value_at(src, pos, 0);
    first |= first << 16;
    __syncthreads();
    sample_fixed<Access, kThreads>(src, pos, n, whole, shared_address(smem.histogram));
#pragma unroll
    for (int k = 0; k < kFixedVecs; ++k)
      if (whole || 8 * (k * kThreads + t) + 8 <= n)
        differs |= ((v[k].x ^ first) | (v[k].y ^ first) | (v[k].z ^ first) | (v[k].w ^ first)) != 0;
    if (!whole)
      for (std::uint32_t i = n / 8 * 8 + t; i < n; i += kThreads) differs |= value_at(src, pos, i) != (first & 0xFFFF);
    differs = __syncthreads_or(differs);
    if (warp == 0) {
      const uint2 palette = make_fixed_palette(smem.histogram);
      if (lane < 14) {
        const unsigned i = lane / 2, high = (i < 4 ? palette.x : palette.y) >> (i % 4 * 8) & 255;
        smem.lut[high + lane % 2 * 128] = static_cast<std::uint8_t>(i);
      }
      if (lane == 0) smem.palette = palette;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kFixedVecs; ++k) {
      low[k] = {__byte_perm(v[k].x, v[k].y, 0x6420), __byte_perm(v[k].z, v[k].w, 0x6420)};
      nibbles[k] = pack_nibbles(v[k], smem.lut);
      if (!whole)
        nibbles[k] = cut_nibbles(nibbles[k], static_cast<std::int32_t>(n) - 8 * static_cast<std::int32_t>(k * kThreads + t));
      const std::uint32_t count = __reduce_add_sync(kAll, __popc(escape_flags(nibbles[k])));
      if (lane == 0) smem.escapes_before[k * kNumWarps + warp] = count;
    }
  }
  __syncthreads();
  if (warp == 0) place_fixed_block(work, &smem, &job, kFixedVecs * kNumWarps, !differs);
  __syncthreads();

  std::uint8_t* payload = static_cast<std::uint8_t*>(job.w.item.frame) + smem.offset;
  const bool written = job.fits && smem.offset + smem.payload_bytes <= job.w.item.frame_bytes;
  const auto low_part = static_cast<std::uint32_t>(align16(n));
  const auto nibble_part = static_cast<std::uint32_t>(align16(codec::fixed_nibble_bytes(n)));
  std::uint64_t sum = 0;
  if (smem.codec == static_cast<unsigned>(Codec::kFixed)) {
    std::uint32_t multiplier = 2 * t * frame::kChecksumStep + frame::kChecksumStart;
#pragma unroll
    for (int k = 0; k < kFixedVecs; ++k) {
      const std::uint32_t vec = k * kThreads + t;
      if (whole || 8 * vec < low_part) {
        if (written) __stcs(reinterpret_cast<uint2*>(payload) + vec, low[k]);
        sum += std::uint64_t{low[k].x} * (multiplier | 1u) +
               std::uint64_t{low[k].y} * ((multiplier + frame::kChecksumStep) | 1u);
      }
      multiplier += 2 * kThreads * frame::kChecksumStep;
      if (whole || 4 * vec < nibble_part) {
        if (written) __stcs(reinterpret_cast<std::uint32_t*>(payload + low_part) + vec, nibbles[k]);
        sum += checksum_term(nibbles[k], low_part / 4 + vec);
      }
    }
    sum += write_escapes<Access, kThreads>(src, &smem, &job, reinterpret_cast<std::uint32_t*>(payload),
                                           (low_part + nibble_part) / 4, nibbles, written);
  } else {
    sum = write_plain_block<Access, kThreads>(src, &smem, &job, payload, written);
  }
  sum = Team::sum(sum);
  if (t == 0)
    finish_block(work, job, src,
                 DeviceEntry{smem.offset, smem.codec, 0, smem.payload_bytes, checksum_finish(sum, smem.payload_bytes)},
                 written);
}

template <class Access, int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) encode_fixed_kernel(const __grid_constant__ Work work) {
  __shared__ FixedSmem smem;
  const std::uint64_t total = num_tickets(work);
  for (;;) {
    // Not earlier: who holds a ticket makes all later blocks wait for its size.
    if (threadIdx.x == 0) {
      smem.ticket = atomicAdd(work.ticket, 1u);
      if (smem.ticket < total) smem.job = make_encode_job(work, smem.ticket);
    }
    __syncthreads();
    if (smem.ticket >= total || upstream_failed(work, smem.ticket)) return;
    const Access src = access_item<Access>(work, smem.job.w.item);
    if (smem.job.num_blocks != 0)
      encode_fixed_block<Access, kThreads>(work, src, smem);
    else if (threadIdx.x == 0)
      finish_frame(work, smem.job, src);
    __syncthreads();
  }
}

}  // namespace snug::cuda
