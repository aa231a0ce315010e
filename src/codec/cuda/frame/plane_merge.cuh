// codec/cuda/frame/plane_merge.cuh - four elements from their planes, and planes from elements.
#pragma once
#include "codec/cuda/frame/tensor_access.cuh"

namespace snug::cuda {

// The columns of a 4x4 matrix of bytes given by rows.
__device__ __forceinline__ uint4 transpose_bytes(u32 r0, u32 r1, u32 r2, u32 r3) {
  const u32 a = __byte_perm(r0, r1, 0x5140), b = __byte_perm(r2, r3, 0x5140);
  const u32 c = __byte_perm(r0, r1, 0x7362), d = __byte_perm(r2, r3, 0x7362);
  return {__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x5410),
          __byte_perm(c, d, 0x7632)};
}

// Four elements of kWidth bytes in memory order from one word a plane.
template <int kWidth>
__device__ __forceinline__ void merge_planes(const u32 (&planes)[kWidth], u32 (&out)[kWidth]) {
  if constexpr (kWidth == 1) {
    out[0] = planes[0];
  } else if constexpr (kWidth == 2) {
    out[0] = __byte_perm(planes[0], planes[1], 0x5140);
    out[1] = __byte_perm(planes[0], planes[1], 0x7362);
  } else {
    constexpr int kStep = kWidth / 4;
#pragma unroll
    for (int half = 0; half < kStep; ++half) {
      const uint4 v = transpose_bytes(planes[4 * half], planes[4 * half + 1], planes[4 * half + 2],
                                      planes[4 * half + 3]);
      out[half] = v.x;
      out[half + kStep] = v.y;
      out[half + 2 * kStep] = v.z;
      out[half + 3 * kStep] = v.w;
    }
  }
}

// Rotates each element of kWidth bytes right by one bit: the sign becomes the top bit again.
template <int kWidth>
__device__ __forceinline__ void rotate_back(u32 (&words)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; i += kWidth == 8 ? 2 : 1) {
    const u32 w = words[i];
    if constexpr (kWidth == 1) words[i] = (w >> 1 & 0x7F7F7F7Fu) | (w << 7 & 0x80808080u);
    if constexpr (kWidth == 2) words[i] = (w >> 1 & 0x7FFF7FFFu) | (w << 15 & 0x80008000u);
    if constexpr (kWidth == 4) words[i] = __funnelshift_r(w, w, 1);
    if constexpr (kWidth == 8) {
      const u32 high = words[i + 1];
      words[i] = __funnelshift_r(w, high, 1);
      words[i + 1] = __funnelshift_r(high, w, 1);
    }
  }
}

// Rotates left by one bit.
template <int kWidth>
__device__ __forceinline__ void rotate_ahead(u32 (&words)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; i += kWidth == 8 ? 2 : 1) {
    const u32 w = words[i];
    if constexpr (kWidth == 1) words[i] = (w << 1 & 0xFEFEFEFEu) | (w >> 7 & 0x01010101u);
    if constexpr (kWidth == 2) words[i] = (w << 1 & 0xFFFEFFFEu) | (w >> 15 & 0x00010001u);
    if constexpr (kWidth == 4) words[i] = __funnelshift_l(w, w, 1);
    if constexpr (kWidth == 8) {
      const u32 high = words[i + 1];
      words[i] = __funnelshift_l(high, w, 1);
      words[i + 1] = __funnelshift_l(w, high, 1);
    }
  }
}

// Byte `plane` of four elements.
template <int kWidth>
__device__ __forceinline__ u32 plane_of(const u32 (&words)[kWidth], unsigned plane) {
  if constexpr (kWidth == 1) {
    return words[0];
  } else if constexpr (kWidth == 2) {
    return __byte_perm(words[0], words[1], plane == 0 ? 0x6420 : 0x7531);
  } else {
    constexpr int kStep = kWidth / 4;
    const unsigned pick = (plane & 3) | ((plane & 3) + 4) << 4;
    const bool high = plane >= 4;
    const u32 a = high ? words[kStep - 1] : words[0],
              b = high ? words[2 * kStep - 1] : words[kStep];
    const u32 c = high ? words[3 * kStep - 1] : words[2 * kStep],
              d = high ? words[4 * kStep - 1] : words[3 * kStep];
    return __byte_perm(__byte_perm(a, b, pick), __byte_perm(c, d, pick), 0x5410);
  }
}

// Four elements of the tensor; `pos` is a multiple of their size.
template <int kWidth, class Access>
__device__ __forceinline__ void load_four(const Access& src, u64 pos, u32 (&words)[kWidth]) {
  if constexpr (kWidth == 1) {
    words[0] = src.template peek<u32>(pos);
  } else if constexpr (kWidth == 2) {
    const uint2 v = src.template peek<uint2>(pos);
    words[0] = v.x;
    words[1] = v.y;
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; i += 4) {
      const uint4 v = src.peek16(pos + 4 * i);
      words[i] = v.x;
      words[i + 1] = v.y;
      words[i + 2] = v.z;
      words[i + 3] = v.w;
    }
  }
}

// Words passed by value: an array passed by reference lives in local memory.
template <int kWords>
struct Words {
  u32 w[kWords];
};

// The first num_bytes of consecutive words; the rest is zero.
template <int kWords, class Access>
__device__ __noinline__ Words<kWords> load_some(Access src, u64 pos, i32 num_bytes) {
  Words<kWords> words{};
#pragma unroll
  for (int i = 0; i < kWords; ++i)
    for (int k = 0; k < 4 && 4 * i + k < num_bytes; ++k)
      words.w[i] |= u32{src.load_byte(pos + static_cast<unsigned>(4 * i + k))} << (8 * k);
  return words;
}

template <int kWords, class Access>
__device__ __noinline__ void store_some(Access dst, u64 pos, Words<kWords> words, i32 num_bytes) {
#pragma unroll
  for (int i = 0; i < kWords; ++i)
    for (int k = 0; k < 4 && 4 * i + k < num_bytes; ++k)
      dst.store_byte(pos + static_cast<unsigned>(4 * i + k),
                     static_cast<u8>(words.w[i] >> (8 * k)));
}

template <int kWords>
__device__ __forceinline__ Words<kWords> by_value(const u32 (&words)[kWords]) {
  Words<kWords> copy;
#pragma unroll
  for (int i = 0; i < kWords; ++i) copy.w[i] = words[i];
  return copy;
}

template <int kWords, class Access>
__device__ __forceinline__ void store_words(const Access& dst, u64 pos,
                                            const u32 (&words)[kWords]) {
  if constexpr (kWords == 1) {
    dst.store(pos, words[0]);
  } else if constexpr (kWords == 2) {
    dst.store(pos, uint2{words[0], words[1]});
  } else {
#pragma unroll
    for (int i = 0; i < kWords; i += 4)
      dst.store16(pos + 4 * i, {words[i], words[i + 1], words[i + 2], words[i + 3]});
  }
}

}  // namespace snug::cuda
