// codec/cuda/decode_any_block/decode_fixed_block.cuh - one block of the `fixed` codec.
#pragma once
#include "codec/cuda/frame/tensor_access.cuh"
#include "codec/sections.h"

namespace snug::cuda {

// Eight high bytes (sign and upper exponent bits) from their nibbles. The palette is in two
// registers: one permute looks up four values.
__device__ __forceinline__ uint2 fixed_high_bytes(u32 nibbles, uint2 palette) {
  const u32 idx = nibbles & 0x77777777u;
  return {__byte_perm(palette.x, palette.y, idx) | (nibbles & 0x80808080u),
          __byte_perm(palette.x, palette.y, idx >> 16) | (nibbles << 4 & 0x80808080u)};
}

// Eight BF16 values from their low and high bytes.
__device__ __forceinline__ uint4 merge_low_high(uint2 low, uint2 high) {
  return {__byte_perm(low.x, high.x, 0x5140), __byte_perm(low.x, high.x, 0x7362),
          __byte_perm(low.y, high.y, 0x5140), __byte_perm(low.y, high.y, 0x7362)};
}

// Offsets of the parts of a fixed block.
struct FixedLayout {
  u32 planes[3];     // raw low planes
  u32 constants[3];  // constant ones
  u32 nibbles;
  u32 escapes;
  u32 num_escapes;
  uint2 palette;
};

// Finds the parts up to the fixed header; false if the payload is too short for them.
__device__ inline bool lay_out_fixed(u32 num_bytes, u32 n, unsigned width, const DeviceEntry& entry,
                                     FixedLayout& layout) {
  u64 at = 0;
  if ((entry.plane_modes & 0xAAAA) != 0 || entry.plane_modes >> (2 * (width - 1)) != 0)
    return false;
#pragma unroll
  for (unsigned p = 0; p < 3; ++p) {
    layout.planes[p] = static_cast<u32>(at);
    if (p + 1 < width && entry.has(p, PlaneMode::kRaw)) at += align16(n);
  }
#pragma unroll
  for (unsigned p = 0; p < 3; ++p) {
    layout.constants[p] = static_cast<u32>(at);
    if (p + 1 < width && entry.has(p, PlaneMode::kConstant)) at += 16;
  }
  layout.nibbles = static_cast<u32>(at);
  at += align16(codec::fixed_nibble_bytes(n)) + codec::FixedHeader::kBytes;
  layout.escapes = static_cast<u32>(at);
  return at <= num_bytes;
}

// Parses the fixed header, which ends where the escapes start.
__device__ inline bool read_fixed_header(uint4 head, u32 num_bytes, u32 n, FixedLayout& layout) {
  layout.num_escapes = head.x;
  layout.palette = {head.y, head.z};
  return head.w == 0 && ((head.y | head.z) & 0x80808080u) == 0 && head.z >> 24 == 0 &&
         head.x <= n && layout.escapes + align16(u64{head.x} * 4) == num_bytes;
}

__device__ inline bool open_fixed(const u8* payload, u32 num_bytes, u32 n, unsigned width,
                                  const DeviceEntry& entry, FixedLayout& layout) {
  if (!lay_out_fixed(num_bytes, n, width, entry, layout)) return false;
  const uint4 head =
      __ldg(reinterpret_cast<const uint4*>(payload + layout.escapes - codec::FixedHeader::kBytes));
  return read_fixed_header(head, num_bytes, n, layout);
}

// This thread's share of the checksum terms of vectors [first, last).
template <class Team>
__device__ u64 checksum_range(const u8* payload, u32 first, u32 last) {
  u64 sum = 0;
#pragma unroll 4
  for (u32 vec = first + Team::idx(); vec < last; vec += Team::kSize)
    sum += checksum_term(__ldg(reinterpret_cast<const uint4*>(payload) + vec), vec);
  return sum;
}

template <class Team, class Access>
__device__ Reason patch_fixed_escapes(const u8* payload, const FixedLayout& layout, u32 n,
                                      unsigned width, const Access& dst, u64 pos) {
  Team::sync();  // escapes overwrite what other threads stored
  bool inside = true;
  for (u32 i = Team::idx(); i < layout.num_escapes; i += Team::kSize) {
    const u32 escape = __ldg(reinterpret_cast<const u32*>(payload + layout.escapes) + i);
    const u32 at = escape & 0xFFFFFF;
    if (at < n)
      dst.store_byte(pos + u64{at} * width + width - 1, static_cast<u8>(escape >> 24));
    else
      inside = false;
  }
  return Team::all(inside) ? kReasonNone : kReasonPayload;
}

// A block without constant planes: 8 values a thread and iteration, kUnroll iterations in flight.
template <class Team, class Access>
__device__ Reason decode_fixed_bf16_block(const u8* payload, const DeviceEntry& entry, u32 n,
                                          const Access& dst, u64 pos, u64& sum) {
  FixedLayout layout;
  if (!open_fixed(payload, entry.num_bytes, n, 2, entry, layout)) return kReasonPayload;
  constexpr int kUnroll = 4;
  const uint2* lows = reinterpret_cast<const uint2*>(payload);
  const u32* nibbles = reinterpret_cast<const u32*>(payload + layout.nibbles);
  const u32 nibble_word = layout.nibbles / 4;
  const u32 num_full = n / 8;
  u32 i = Team::idx();
  for (; i + (kUnroll - 1) * Team::kSize < num_full; i += kUnroll * Team::kSize) {
    uint2 low[kUnroll];
    u32 nibble[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      low[u] = __ldcs(lows + i + u * Team::kSize);
      nibble[u] = __ldcs(nibbles + i + u * Team::kSize);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const u32 at = i + u * Team::kSize;
      dst.store16(pos + 16 * u64{at},
                  merge_low_high(low[u], fixed_high_bytes(nibble[u], layout.palette)));
      sum += checksum_term(low[u].x, 2 * at) + checksum_term(low[u].y, 2 * at + 1) +
             checksum_term(nibble[u], nibble_word + at);
    }
  }
  for (; 8 * i < n; i += Team::kSize) {
    const uint2 low = __ldg(lows + i);
    const u32 nibble = __ldg(nibbles + i);
    store_upto16(dst, pos + 16 * u64{i},
                 merge_low_high(low, fixed_high_bytes(nibble, layout.palette)),
                 2 * (static_cast<i64>(n) - 8 * i));
    sum += checksum_term(low.x, 2 * i) + checksum_term(low.y, 2 * i + 1) +
           checksum_term(nibble, nibble_word + i);
  }
  // Padding of both planes, header and escapes.
  const u32 groups = (n + 7) / 8;
  for (u32 word = 2 * groups + Team::idx(); word < nibble_word; word += Team::kSize)
    sum += checksum_term(__ldg(reinterpret_cast<const u32*>(payload) + word), word);
  const u32 head_word = (layout.escapes - codec::FixedHeader::kBytes) / 4;
  for (u32 word = nibble_word + groups + Team::idx(); word < head_word; word += Team::kSize)
    sum += checksum_term(__ldg(reinterpret_cast<const u32*>(payload) + word), word);
  sum += checksum_range<Team>(payload, head_word / 4, entry.num_bytes / 16);
  return patch_fixed_escapes<Team>(payload, layout, n, 2, dst, pos);
}

}  // namespace snug::cuda
