// codec/cuda/encode_entropy_any/encode_large_fixed.cuh - the fixed codec for blocks too large for
// encode_fixed.cu: one warp, value by value, into scratch memory.
#pragma once
#include "codec/cuda/encode_entropy_any/encode_planes.cuh"
#include "codec/cuda/encode_fixed/fixed_palette.cuh"

namespace snug::cuda {

template <class Access>
struct Elements {
  Access src;
  std::uint64_t pos;
  std::uint32_t n;
  unsigned width;

  __device__ std::uint32_t byte(std::uint32_t i, unsigned plane) const {
    return src.load_byte(pos + std::uint64_t{i} * width + plane);
  }
};

// The payload of a fixed block in scratch memory.
struct FixedOut {
  std::uint8_t* payload;
  std::uint32_t used;
  std::uint32_t room;

  __device__ std::uint8_t* take(std::uint64_t num_bytes) {
    if (num_bytes > room - used) return nullptr;
    std::uint8_t* at = payload + used;
    used += static_cast<std::uint32_t>(num_bytes);
    return at;
  }
};

// block_encode.cpp's encode_fixed.
template <class Access, int kWidth>
__device__ __noinline__ bool encode_fixed_any(const BlockValues<Access, kWidth>& values,
                                              DType dtype, PlaneSmem* smem, FixedOut& out,
                                              std::uint32_t& plane_modes) {
  const unsigned lane = lane_id();
  if (!has_fixed_codec(dtype)) return false;
  take_sample(values, smem);
  const uint2 palette = make_fixed_palette<2>(smem->histogram);
  __syncwarp();
  auto* lut = reinterpret_cast<std::uint8_t*>(smem->lut);
  for (unsigned i = lane; i < 128; i += kWarpSize) lut[i] = 7;
  __syncwarp();
  if (lane == 0)
    for (int i = 7; i-- > 0;)
      lut[(i < 4 ? palette.x : palette.y) >> (i % 4 * 8) & 255] = static_cast<std::uint8_t>(i);
  __syncwarp();
  const Elements<Access> e{values.src, values.pos, values.n, kWidth};
  plane_modes = 0;
  if (dtype == DType::kF32)
    for (unsigned p = 0; p < 3; ++p) {
      const std::uint32_t first = e.byte(0, p);
      bool same = true;
      for (std::uint32_t i = lane; i < e.n; i += kWarpSize) same &= e.byte(i, p) == first;
      if (__all_sync(kAllLanes, same)) plane_modes |= mode_bits(PlaneMode::kConstant, p);
    }
  for (unsigned pass = 0; pass < 2; ++pass)
    for (unsigned p = 0; p + 1 < e.width; ++p) {
      if ((plane_modes >> (2 * p) & 3) != pass) continue;
      const std::uint32_t used = pass == 0 ? e.n : 1;
      std::uint8_t* at = out.take(align16(used));
      if (at == nullptr) return false;
      for (std::uint32_t i = lane; i < align16(used); i += kWarpSize)
        at[i] = i < used ? static_cast<std::uint8_t>(e.byte(i, p)) : 0;
    }
  std::uint8_t* nibbles = out.take(align16(codec::fixed_nibble_bytes(e.n)));
  std::uint8_t* head = out.take(codec::FixedHeader::kBytes);
  if (nibbles == nullptr || head == nullptr) return false;
  auto* escapes = reinterpret_cast<std::uint32_t*>(out.payload + out.used);
  const std::uint32_t room = (out.room - out.used) / 4;
  std::uint32_t num_escapes = 0;
  const std::uint32_t num_words =
      static_cast<std::uint32_t>(align16(codec::fixed_nibble_bytes(e.n)) / 4);
  for (std::uint32_t base = 0; base < num_words; base += kWarpSize) {
    const std::uint32_t group = base + lane;
    std::uint32_t word = 0, flags = 0;
    for (unsigned i = 0; i < 8; ++i) {
      const std::uint32_t at = group * 8 + i;
      if (group >= num_words || at >= e.n) break;
      const std::uint32_t byte = e.byte(at, e.width - 1), idx = lut[byte & 127];
      word |= idx << (4 * i) | (byte >> 7) << (i < 4 ? 8 * i + 7 : 8 * (i - 4) + 3);
      flags |= static_cast<std::uint32_t>(idx == 7) << i;
    }
    if (group < num_words) reinterpret_cast<std::uint32_t*>(nibbles)[group] = word;
    std::uint32_t before = warp_inclusive_sum(__popc(flags));
    const std::uint32_t total = __shfl_sync(kAllLanes, before, 31);
    std::uint32_t next = num_escapes + before - __popc(flags);
    for (; flags != 0; flags &= flags - 1, ++next) {
      const std::uint32_t at =
          group * 8 + static_cast<std::uint32_t>(__ffs(static_cast<int>(flags)) - 1);
      if (next < room) escapes[next] = at | e.byte(at, e.width - 1) << 24;
    }
    num_escapes += total;
    __syncwarp();
  }
  if (num_escapes > room || out.take(align16(std::uint64_t{num_escapes} * 4)) == nullptr)
    return false;
  if (lane < align16(num_escapes * 4) / 4 - num_escapes) escapes[num_escapes + lane] = 0;
  if (lane < 4)
    reinterpret_cast<std::uint32_t*>(head)[lane] = lane == 0   ? num_escapes
                                                   : lane == 1 ? palette.x
                                                   : lane == 2 ? palette.y
                                                               : 0;
  return out.used < out.room;
}

}  // namespace snug::cuda
