// codec/cuda/encode_entropy_any/encode_large_fixed.cuh - the fixed codec for blocks too large for
// encode_fixed.cu: one warp, value by value, into scratch memory.
#pragma once
#include "codec/cuda/encode_entropy_any/encode_planes.cuh"
#include "codec/cuda/encode_fixed/fixed_palette.cuh"

namespace snug::cuda {

template <class Access>
struct Elements {
  Access src;
  u64 pos;
  u32 n;
  unsigned width;

  __device__ u32 byte(u32 i, unsigned plane) const {
    return src.load_byte(pos + u64{i} * width + plane);
  }
};

// The payload of a fixed block in scratch memory.
struct FixedOut {
  u8* payload;
  u32 used;
  u32 room;

  __device__ u8* take(u64 num_bytes) {
    if (num_bytes > room - used) return nullptr;
    u8* at = payload + used;
    used += static_cast<u32>(num_bytes);
    return at;
  }
};

// block_encode.cpp's encode_fixed.
template <class Access, int kWidth>
__device__ __noinline__ bool encode_fixed_any(const BlockValues<Access, kWidth>& values,
                                              DType dtype, PlaneSmem* smem, FixedOut& out,
                                              u32& plane_modes) {
  const unsigned lane = lane_id();
  if (!has_fixed_codec(dtype)) return false;
  take_sample(values, smem);
  const uint2 palette = make_fixed_palette<2>(smem->histogram);
  __syncwarp();
  auto* lut = reinterpret_cast<u8*>(smem->lut);
  for (unsigned i = lane; i < 128; i += kWarpSize) lut[i] = 7;
  __syncwarp();
  if (lane == 0)
    for (int i = 7; i-- > 0;)
      lut[(i < 4 ? palette.x : palette.y) >> (i % 4 * 8) & 255] = static_cast<u8>(i);
  __syncwarp();
  const Elements<Access> e{values.src, values.pos, values.n, kWidth};
  plane_modes = 0;
  if (dtype == DType::kF32)
    for (unsigned p = 0; p < 3; ++p) {
      const u32 first = e.byte(0, p);
      bool same = true;
      for (u32 i = lane; i < e.n; i += kWarpSize) same &= e.byte(i, p) == first;
      if (__all_sync(kAllLanes, same)) plane_modes |= mode_bits(PlaneMode::kConstant, p);
    }
  for (unsigned pass = 0; pass < 2; ++pass)
    for (unsigned p = 0; p + 1 < e.width; ++p) {
      if ((plane_modes >> (2 * p) & 3) != pass) continue;
      const u32 used = pass == 0 ? e.n : 1;
      u8* at = out.take(align16(used));
      if (at == nullptr) return false;
      for (u32 i = lane; i < align16(used); i += kWarpSize)
        at[i] = i < used ? static_cast<u8>(e.byte(i, p)) : 0;
    }
  u8* nibbles = out.take(align16(codec::fixed_nibble_bytes(e.n)));
  u8* head = out.take(codec::FixedHeader::kBytes);
  if (nibbles == nullptr || head == nullptr) return false;
  auto* escapes = reinterpret_cast<u32*>(out.payload + out.used);
  const u32 room = (out.room - out.used) / 4;
  u32 num_escapes = 0;
  const u32 num_words = static_cast<u32>(align16(codec::fixed_nibble_bytes(e.n)) / 4);
  for (u32 base = 0; base < num_words; base += kWarpSize) {
    const u32 group = base + lane;
    u32 word = 0, flags = 0;
    for (unsigned i = 0; i < 8; ++i) {
      const u32 at = group * 8 + i;
      if (group >= num_words || at >= e.n) break;
      const u32 byte = e.byte(at, e.width - 1), idx = lut[byte & 127];
      word |= idx << (4 * i) | (byte >> 7) << (i < 4 ? 8 * i + 7 : 8 * (i - 4) + 3);
      flags |= static_cast<u32>(idx == 7) << i;
    }
    if (group < num_words) reinterpret_cast<u32*>(nibbles)[group] = word;
    u32 before = warp_inclusive_sum(__popc(flags));
    const u32 total = __shfl_sync(kAllLanes, before, 31);
    u32 next = num_escapes + before - __popc(flags);
    for (; flags != 0; flags &= flags - 1, ++next) {
      const u32 at = group * 8 + static_cast<u32>(__ffs(static_cast<int>(flags)) - 1);
      if (next < room) escapes[next] = at | e.byte(at, e.width - 1) << 24;
    }
    num_escapes += total;
    __syncwarp();
  }
  if (num_escapes > room || out.take(align16(u64{num_escapes} * 4)) == nullptr) return false;
  if (lane < align16(num_escapes * 4) / 4 - num_escapes) escapes[num_escapes + lane] = 0;
  if (lane < 4)
    reinterpret_cast<u32*>(head)[lane] = lane == 0   ? num_escapes
                                         : lane == 1 ? palette.x
                                         : lane == 2 ? palette.y
                                                     : 0;
  return out.used < out.room;
}

}  // namespace snug::cuda
