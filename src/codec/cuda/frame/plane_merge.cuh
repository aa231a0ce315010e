// codec/cuda/frame/plane_merge.cuh - four elements from their planes, and planes from elements.
#pragma once
#include "codec/cuda/frame/tensor_access.cuh"

namespace snug::cuda {

// The columns of a 4x4 matrix of bytes given by rows.
__device__ __forceinline__ uint4 transpose_bytes(std::uint32_t r0, std::uint32_t r1,
                                                 std::uint32_t r2, std::uint32_t r3) {
  const std::uint32_t a = __byte_perm(r0, r1, 0x5140), b = __byte_perm(r2, r3, 0x5140);
  const std::uint32_t c = __byte_perm(r0, r1, 0x7362), d = __byte_perm(r2, r3, 0x7362);
  return {__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x5410),
          __byte_perm(c, d, 0x7632)};
}

// Four elements of kWidth bytes in memory order from one word a plane.
template <int kWidth>
__device__ __forceinline__ void merge_planes(const std::uint32_t (&planes)[kWidth],
                                             std::uint32_t (&out)[kWidth]) {
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
__device__ __forceinline__ void rotate_back(std::uint32_t (&words)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; i += kWidth == 8 ? 2 : 1) {
    const std::uint32_t w = words[i];
    if constexpr (kWidth == 1) words[i] = (w >> 1 & 0x7F7F7F7Fu) | (w << 7 & 0x80808080u);
    if constexpr (kWidth == 2) words[i] = (w >> 1 & 0x7FFF7FFFu) | (w << 15 & 0x80008000u);
    if constexpr (kWidth == 4) words[i] = __funnelshift_r(w, w, 1);
    if constexpr (kWidth == 8) {
      const std::uint32_t high = words[i + 1];
      words[i] = __funnelshift_r(w, high, 1);
      words[i + 1] = __funnelshift_r(high, w, 1);
    }
  }
}

// Rotates left by one bit.
template <int kWidth>
__device__ __forceinline__ void rotate_ahead(std::uint32_t (&words)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; i += kWidth == 8 ? 2 : 1) {
    const std::uint32_t w = words[i];
    if constexpr (kWidth == 1) words[i] = (w << 1 & 0xFEFEFEFEu) | (w >> 7 & 0x01010101u);
    if constexpr (kWidth == 2) words[i] = (w << 1 & 0xFFFEFFFEu) | (w >> 15 & 0x00010001u);
    if constexpr (kWidth == 4) words[i] = __funnelshift_l(w, w, 1);
    if constexpr (kWidth == 8) {
      const std::uint32_t high = words[i + 1];
      words[i] = __funnelshift_l(high, w, 1);
      words[i + 1] = __funnelshift_l(w, high, 1);
    }
  }
}

// Byte `plane` of four elements.
template <int kWidth>
__device__ __forceinline__ std::uint32_t plane_of(const std::uint32_t (&words)[kWidth],
                                                  unsigned plane) {
  if constexpr (kWidth == 1) {
    return words[0];
  } else if constexpr (kWidth == 2) {
    return __byte_perm(words[0], words[1], plane == 0 ? 0x6420 : 0x7531);
  } else {
    constexpr int kStep = kWidth / 4;
    const unsigned pick = (plane & 3) | ((plane & 3) + 4) << 4;
    const bool high = plane >= 4;
    const std::uint32_t a = high ? words[kStep - 1] : words[0],
                        b = high ? words[2 * kStep - 1] : words[kStep];
    const std::uint32_t c = high ? words[3 * kStep - 1] : words[2 * kStep],
                        d = high ? words[4 * kStep - 1] : words[3 * kStep];
    return __byte_perm(__byte_perm(a, b, pick), __byte_perm(c, d, pick), 0x5410);
  }
}

// Four elements of the tensor; `pos` is a multiple of their size.
template <int kWidth, class Access>
__device__ __forceinline__ void load_four(const Access& src, std::uint64_t pos,
                                          std::uint32_t (&words)[kWidth]) {
  if constexpr (kWidth == 1) {
    words[0] = src.template peek<std::uint32_t>(pos);
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
  std::uint32_t w[kWords];
};

// The first num_bytes of consecutive words; the rest is zero.
template <int kWords, class Access>
__device__ __noinline__ Words<kWords> load_some(Access src, std::uint64_t pos,
                                                std::int32_t num_bytes) {
  Words<kWords> words{};
#pragma unroll
  for (int i = 0; i < kWords; ++i)
    for (int k = 0; k < 4 && 4 * i + k < num_bytes; ++k)
      words.w[i] |= std::uint32_t{src.load_byte(pos + static_cast<unsigned>(4 * i + k))} << (8 * k);
  return words;
}

template <int kWords, class Access>
__device__ __noinline__ void store_some(Access dst, std::uint64_t pos, Words<kWords> words,
                                        std::int32_t num_bytes) {
#pragma unroll
  for (int i = 0; i < kWords; ++i)
    for (int k = 0; k < 4 && 4 * i + k < num_bytes; ++k)
      dst.store_byte(pos + static_cast<unsigned>(4 * i + k),
                     static_cast<std::uint8_t>(words.w[i] >> (8 * k)));
}

template <int kWords>
__device__ __forceinline__ Words<kWords> by_value(const std::uint32_t (&words)[kWords]) {
  Words<kWords> copy;
#pragma unroll
  for (int i = 0; i < kWords; ++i) copy.w[i] = words[i];
  return copy;
}

template <int kWords, class Access>
__device__ __forceinline__ void store_words(const Access& dst, std::uint64_t pos,
                                            const std::uint32_t (&words)[kWords]) {
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
