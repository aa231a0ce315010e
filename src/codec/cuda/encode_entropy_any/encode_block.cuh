// codec/cuda/encode_entropy_any/encode_block.cuh - one warp codes one block of any kind, and writes
// it when its place is known: raw, constant, or with coded planes that wait in scratch memory.
#pragma once
#include "codec/cuda/encode_entropy_any/encode_large_fixed.cuh"
#include "codec/cuda/frame/encode_frame.cuh"

namespace snug::cuda {

// Where the payload of a block comes from.
enum class Origin { kTensor, kScratch, kRegister };

struct Encoded {
  Origin origin = Origin::kTensor;
  DeviceEntry entry{};
  u32 raw_bytes = 0;     // of planes that do not come from scratch
  u32 num_sections = 0;  // in scratch
};

template <class Access>
__device__ __noinline__ u64 copy_raw(Access src, u64 pos, u64 raw, u8* payload, bool write) {
  uint4* out = reinterpret_cast<uint4*>(payload);
  u64 sum = 0;
  constexpr int kUnroll = 8;
  const auto full = static_cast<u32>(raw / 16);
  u32 i = lane_id();
  for (; i + (kUnroll - 1) * kWarpSize < full; i += kUnroll * kWarpSize) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) v[u] = src.load16(pos + 16 * u64{i + u * kWarpSize});
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (write) __stcs(out + i + u * kWarpSize, v[u]);
      sum += checksum_term(v[u], i + u * kWarpSize);
    }
  }
  for (; 16 * u64{i} < raw; i += kWarpSize) {
    const uint4 v = load_upto16(src, pos + 16 * u64{i}, static_cast<i64>(raw - 16 * u64{i}));
    if (write) __stcs(out + i, v);
    sum += checksum_term(v, i);
  }
  return sum;
}

__device__ inline void set_raw(Encoded& e, u32 raw) {
  e.origin = Origin::kTensor;
  e.entry.codec = static_cast<u32>(Codec::kRaw);
  e.entry.plane_modes = 0;
  e.entry.num_bytes = static_cast<u32>(align16(raw));
}

__device__ inline void set_constant(Encoded& e) {
  e.origin = Origin::kRegister;
  e.entry.codec = static_cast<u32>(Codec::kConstant);
  e.entry.plane_modes = 0;
  e.entry.num_bytes = 16;
}

template <int kWidth, class Access>
__device__ __noinline__ Encoded encode_block_any(const Work& work, Access src, u64 pos, u32 n,
                                                 PlaneSmem* smem, u8* scratch) {
  Encoded e{};
  set_raw(e, n * kWidth);
  if (work.codec == Codec::kRaw) return e;
  const BlockValues<Access, kWidth> values{src, pos, n, has_sign_bit(work.dtype)};
  const bool entropy = work.codec == Codec::kEntropy;
  bool counted = false, may_be_constant = true;
  if constexpr (kWidth <= 2)
    counted =
        entropy && !has_exponent_plane(work.dtype) && count_top(values, smem, may_be_constant);
  if (entropy && !counted) may_be_constant = take_sample(values, smem);
  if (may_be_constant && is_constant_block(src, pos, n * kWidth, kWidth)) {
    set_constant(e);
    return e;
  }
  auto* sections = reinterpret_cast<Section*>(scratch);
  u8* room = scratch + kSectionListBytes;
  const auto most = static_cast<u32>(align16(u64{n} * kWidth));
  u32 modes = 0;
  if (entropy) {
    const auto log2_block = static_cast<int>(work.log2_block);
    u8* sections_end = room + sections_room(kWidth, log2_block);
    PlaneOut out{smem, sections, sections_end, sections_end + escapes_scratch(kWidth, log2_block),
                 0,    0,        most,         0};
    if (!encode_entropy_planes(values, work.dtype, counted, out, modes)) return e;
    e.raw_bytes = out.raw_bytes;
    e.num_sections = out.num_sections;
    e.entry.num_bytes = out.used;
  } else {
    FixedOut out{room, 0, most};
    bool coded = false;
    if constexpr (kWidth == 2 || kWidth == 4)
      coded = work.codec == Codec::kFixed && encode_fixed_any(values, work.dtype, smem, out, modes);
    if (!coded) return e;
    if (lane_id() == 0) sections[0] = {room, out.used, 0};
    e.num_sections = 1;
    e.entry.num_bytes = out.used;
  }
  __syncwarp();
  e.origin = Origin::kScratch;
  e.entry.codec = static_cast<u32>(work.codec);
  e.entry.plane_modes = modes;
  return e;
}

// Copies the planes that `plane_modes` leaves raw from the tensor; returns checksum terms.
template <class Access, int kWidth>
__device__ __noinline__ u64 write_raw_planes(BlockValues<Access, kWidth> values, u32 plane_modes,
                                             u8* payload) {
  const auto part = static_cast<u32>(align16(values.n));
  u64 sum = 0;
  // Eight values a lane; all loads of a batch are issued before the first store.
  constexpr u32 kBatch = 16 / kWidth;
  u32 first = 0;
#pragma unroll 1
  for (; first + kBatch * 256 <= values.n; first += kBatch * 256) {
    u32 low[kBatch][kWidth], high[kBatch][kWidth];
#pragma unroll
    for (u32 u = 0; u < kBatch; ++u) {
      const u32 value = first + u * 256 + 8 * lane_id();
      if constexpr (kWidth == 2) {
        const uint4 v = values.src.peek16(values.pos + 2 * u64{value});
        low[u][0] = v.x, low[u][1] = v.y, high[u][0] = v.z, high[u][1] = v.w;
      } else {
        values.load_whole(value, low[u]);
        values.load_whole(value + 4, high[u]);
      }
    }
#pragma unroll
    for (u32 u = 0; u < kBatch; ++u) {
      values.rotate_words(low[u]);
      values.rotate_words(high[u]);
      u32 at = first + u * 256 + 8 * lane_id();
      u32 factor = checksum_factor(at / 4);
#pragma unroll
      for (unsigned p = 0; p < kWidth; ++p) {
        if (!has_mode(plane_modes, p, PlaneMode::kRaw)) continue;
        const uint2 bytes = {plane_of<kWidth>(low[u], p), plane_of<kWidth>(high[u], p)};
        __stcs(reinterpret_cast<uint2*>(payload + at), bytes);
        sum = mad_wide(bytes.x, factor, sum);
        sum = mad_wide(bytes.y, factor + kNextFactor, sum);
        at += part;
        factor += part / 4 * frame::kChecksumStep;
      }
    }
  }
#pragma unroll 1
  for (u32 value = first + 4 * lane_id(); value < part; value += 128) {
    u32 words[kWidth];
    values.load(value, words);
    values.rotate_words(words);
    u32 at = value;
#pragma unroll
    for (unsigned p = 0; p < kWidth; ++p) {
      if (!has_mode(plane_modes, p, PlaneMode::kRaw)) continue;
      const u32 bytes = plane_of<kWidth>(words, p);
      __stcs(reinterpret_cast<u32*>(payload + at), bytes);
      sum += checksum_term(bytes, at / 4);
      at += part;
    }
  }
  return sum;
}

// Raw planes are read again when the place is known. Much of the block has left the cache by then:
// prefetches its first part.
template <int kWidth, class Access>
__device__ __forceinline__ void prefetch_raw(const Access& src, u64 pos, u32 n, const Encoded& e) {
  constexpr u32 kLinesBack = 64;
  if (e.origin != Origin::kTensor && e.raw_bytes == 0) return;
  for (u32 line = lane_id(); line < min(n * kWidth / 128, kLinesBack); line += kWarpSize)
    src.prefetch(pos + 128 * u64{line});
}

// Copies all sections behind the raw planes; only the last one may have escapes.
__device__ __forceinline__ u64 copy_sections(const Encoded& e, const u8* scratch,
                                             const u8* escapes_end, u8* payload) {
  u64 sum = 0;
  u32 done = e.raw_bytes;
#pragma unroll 1
  for (u32 i = 0; i < e.num_sections; ++i) {
    const Section section = reinterpret_cast<const Section*>(scratch)[i];
    sum += copy_section(section, escapes_end - section.num_escapes, payload, done);
    done += section.payload_bytes();
  }
  return sum;
}

// Writes the payload, unless `written` is false; returns this lane's checksum terms.
template <int kWidth, class Access>
__device__ __forceinline__ u64 write_block_any(const Work& work, const Access& src, u64 pos, u32 n,
                                               const Encoded& e, const u8* scratch, u8* payload,
                                               bool written) {
  if (e.origin == Origin::kTensor) return copy_raw(src, pos, u64{n} * kWidth, payload, written);
  u64 sum = 0;
  if (e.origin == Origin::kScratch) {
    const BlockValues<Access, kWidth> values{src, pos, n, has_sign_bit(work.dtype)};
    if constexpr (kWidth > 1)
      if (written && e.raw_bytes != 0) sum = write_raw_planes(values, e.entry.plane_modes, payload);
    const u8* escapes_end = scratch + block_scratch(kWidth, static_cast<int>(work.log2_block));
    if (written) sum += copy_sections(e, scratch, escapes_end, payload);
  } else if (lane_id() == 0) {
    const u64 v = load_elem(src, pos, kWidth);
    const uint4 value = {static_cast<u32>(v), static_cast<u32>(v >> 32), 0, 0};
    if (written) *reinterpret_cast<uint4*>(payload) = value;
    sum = checksum_term(value, 0);
  }
  return sum;
}

}  // namespace snug::cuda
