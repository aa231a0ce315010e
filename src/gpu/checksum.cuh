// gpu/checksum.cuh - the terms of the checksums of frame/checksum.h.
#pragma once
#include "frame/checksum.h"
#include "gpu/integers.h"

namespace snug::cuda {

// The factor of the word with index i, and the step from an even index to the next one.
__device__ __forceinline__ u32 checksum_factor(u32 i) {
  return (i * frame::kChecksumStep + frame::kChecksumStart) | 1u;
}
inline constexpr u32 kNextFactor = frame::kChecksumStep + 1;

// Terms of two or four words, the first of which has an even index and this factor.
__device__ __forceinline__ u64 checksum_terms(uint2 v, u32 factor) {
  return u64{v.x} * factor + u64{v.y} * (factor + kNextFactor);
}
__device__ __forceinline__ u64 checksum_terms(uint4 v, u32 factor) {
  return checksum_terms(uint2{v.x, v.y}, factor) +
         checksum_terms(uint2{v.z, v.w}, factor + 2 * frame::kChecksumStep);
}

// Term of the word with index i, and terms of the 8 or 16 bytes with index vec_idx.
__device__ __forceinline__ u64 checksum_term(u32 word, u32 i) {
  return u64{word} * checksum_factor(i);
}
__device__ __forceinline__ u64 checksum_term(uint2 v, u32 vec_idx) {
  return checksum_terms(v, checksum_factor(2 * vec_idx));
}
__device__ __forceinline__ u64 checksum_term(uint4 v, u32 vec_idx) {
  return checksum_terms(v, checksum_factor(4 * vec_idx));
}

}  // namespace snug::cuda
