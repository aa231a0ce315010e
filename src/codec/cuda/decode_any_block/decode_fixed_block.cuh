// codec/cuda/decode_any_block/decode_fixed_block.cuh - one block of the `fixed` codec.
#pragma once
#include "codec/cuda/frame/tensor_access.cuh"
#include "codec/sections.h"

namespace snug::cuda {

// Eight high bytes (sign and upper exponent bits) from their nibbles. The palette is in two
// registers: one permute looks up four values.
__device__ __forceinline__ uint2 fixed_high_bytes(std::uint32_t nibbles, uint2 palette) {
  const std::uint32_t idx = nibbles & 0x77777777u;
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
  std::uint32_t planes[3];     // raw low planes
  std::uint32_t constants[3];  // constant ones
  std::uint32_t nibbles;
  std::uint32_t escapes;
  std::uint32_t num_escapes;
  uint2 palette;
};

// Finds the parts up to the fixed header; false if the payload is too short for them.
__device__ inline bool lay_out_fixed(std::uint32_t num_bytes, std::uint32_t n, unsigned width,
                                     const DeviceEntry& entry, FixedLayout& layout) {
  std::uint64_t at = 0;
  if ((entry.plane_modes & 0xAAAA) != 0 || entry.plane_modes >> (2 * (width - 1)) != 0)
    return false;
#pragma unroll
  for (unsigned p = 0; p < 3; ++p) {
    layout.planes[p] = static_cast<std::uint32_t>(at);
    if (p + 1 < width && entry.has(p, PlaneMode::kRaw)) at += align16(n);
  }
#pragma unroll
  for (unsigned p = 0; p < 3; ++p) {
    layout.constants[p] = static_cast<std::uint32_t>(at);
    if (p + 1 < width && entry.has(p, PlaneMode::kConstant)) at += 16;
  }
  layout.nibbles = static_cast<std::uint32_t>(at);
  at += align16(codec::fixed_nibble_bytes(n)) + codec::FixedHeader::kBytes;
  layout.escapes = static_cast<std::uint32_t>(at);
  return at <= num_bytes;
}

// Parses the fixed header, which ends where the escapes start.
__device__ inline bool read_fixed_header(uint4 head, std::uint32_t num_bytes, std::uint32_t n,
                                         FixedLayout& layout) {
  layout.num_escapes = head.x;
  layout.palette = {head.y, head.z};
  return head.w == 0 && ((head.y | head.z) & 0x80808080u) == 0 && head.z >> 24 == 0 &&
         head.x <= n && layout.escapes + align16(std::uint64_t{head.x} * 4) == num_bytes;
}

__device__ inline bool open_fixed(const std::uint8_t* payload, std::uint32_t num_bytes,
                                  std::uint32_t n, unsigned width, const DeviceEntry& entry,
                                  FixedLayout& layout) {
  if (!lay_out_fixed(num_bytes, n, width, entry, layout)) return false;
  const uint4 head =
      __ldg(reinterpret_cast<const uint4*>(payload + layout.escapes - codec::FixedHeader::kBytes));
  return read_fixed_header(head, num_bytes, n, layout);
}

// This thread's share of the checksum terms of vectors [first, last).
template <class Team>
__device__ std::uint64_t checksum_range(const std::uint8_t* payload, std::uint32_t first,
                                        std::uint32_t last) {
  std::uint64_t sum = 0;
#pragma unroll 4
  for (std::uint32_t vec = first + Team::idx(); vec < last; vec += Team::kSize)
    sum += checksum_term(__ldg(reinterpret_cast<const uint4*>(payload) + vec), vec);
  return sum;
}

template <class Team, class Access>
__device__ Reason patch_fixed_escapes(const std::uint8_t* payload, const FixedLayout& layout,
                                      std::uint32_t n, unsigned width, const Access& dst,
                                      std::uint64_t pos) {
  Team::sync();  // escapes overwrite what other threads stored
  bool inside = true;
  for (std::uint32_t i = Team::idx(); i < layout.num_escapes; i += Team::kSize) {
    const std::uint32_t escape =
        __ldg(reinterpret_cast<const std::uint32_t*>(payload + layout.escapes) + i);
    const std::uint32_t at = escape & 0xFFFFFF;
    if (at < n)
      dst.store_byte(pos + std::uint64_t{at} * width + width - 1,
                     static_cast<std::uint8_t>(escape >> 24));
    else
      inside = false;
  }
  return Team::all(inside) ? kReasonNone : kReasonPayload;
}

// A block without constant planes: 8 values a thread and iteration, kUnroll iterations in flight.
template <class Team, class Access>
__device__ Reason decode_fixed_bf16_block(const std::uint8_t* payload, const DeviceEntry& entry,
                                          std::uint32_t n, const Access& dst, std::uint64_t pos,
                                          std::uint64_t& sum) {
  FixedLayout layout;
  if (!open_fixed(payload, entry.num_bytes, n, 2, entry, layout)) return kReasonPayload;
  constexpr int kUnroll = 4;
  const uint2* lows = reinterpret_cast<const uint2*>(payload);
  const std::uint32_t* nibbles = reinterpret_cast<const std::uint32_t*>(payload + layout.nibbles);
  const std::uint32_t nibble_word = layout.nibbles / 4;
  const std::uint32_t num_full = n / 8;
  std::uint32_t i = Team::idx();
  for (; i + (kUnroll - 1) * Team::kSize < num_full; i += kUnroll * Team::kSize) {
    uint2 low[kUnroll];
    std::uint32_t nibble[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      low[u] = __ldcs(lows + i + u * Team::kSize);
      nibble[u] = __ldcs(nibbles + i + u * Team::kSize);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const std::uint32_t at = i + u * Team::kSize;
      dst.store16(pos + 16 * std::uint64_t{at},
                  merge_low_high(low[u], fixed_high_bytes(nibble[u], layout.palette)));
      sum += checksum_term(low[u].x, 2 * at) + checksum_term(low[u].y, 2 * at + 1) +
             checksum_term(nibble[u], nibble_word + at);
    }
  }
  for (; 8 * i < n; i += Team::kSize) {
    const uint2 low = __ldg(lows + i);
    const std::uint32_t nibble = __ldg(nibbles + i);
    store_upto16(dst, pos + 16 * std::uint64_t{i},
                 merge_low_high(low, fixed_high_bytes(nibble, layout.palette)),
                 2 * (static_cast<std::int64_t>(n) - 8 * i));
    sum += checksum_term(low.x, 2 * i) + checksum_term(low.y, 2 * i + 1) +
           checksum_term(nibble, nibble_word + i);
  }
  // Padding of both planes, header and escapes.
  const std::uint32_t groups = (n + 7) / 8;
  for (std::uint32_t word = 2 * groups + Team::idx(); word < nibble_word; word += Team::kSize)
    sum += checksum_term(__ldg(reinterpret_cast<const std::uint32_t*>(payload) + word), word);
  const std::uint32_t head_word = (layout.escapes - codec::FixedHeader::kBytes) / 4;
  for (std::uint32_t word = nibble_word + groups + Team::idx(); word < head_word;
       word += Team::kSize)
    sum += checksum_term(__ldg(reinterpret_cast<const std::uint32_t*>(payload) + word), word);
  sum += checksum_range<Team>(payload, head_word / 4, entry.num_bytes / 16);
  return patch_fixed_escapes<Team>(payload, layout, n, 2, dst, pos);
}

}  // namespace snug::cuda
