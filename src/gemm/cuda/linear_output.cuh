// gemm/cuda/linear_output.cuh - from sums in registers to y.
#pragma once
#include <cuda_bf16.h>

#include "gemm/cuda/tile_decode.cuh"

namespace snug::gemm {

__device__ __forceinline__ float4 add(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

__device__ __forceinline__ std::uint32_t pack_bf16(float a, float b) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
  return reinterpret_cast<const std::uint32_t&>(v);
}

// `v` is 16 outputs (rows of W) of 8 tokens (rows of x) as mma leaves them: lane 4r+c
// holds outputs r and r+8 of tokens 2c and 2c+1. Outputs are contiguous in y, so they are
// transposed first and written two at a time.
__device__ __forceinline__ void store_transposed(const LinearParams& p, float4 v,
                                                 std::uint32_t first_output,
                                                 std::uint32_t first_token, std::uint32_t lane) {
  const std::uint32_t upper = transpose_8x8(pack_bf16(v.x, v.y)),
                      lower = transpose_8x8(pack_bf16(v.z, v.w));
  const std::uint32_t token = first_token + lane / 4, output = first_output + lane % 4 * 2;
  if (token >= p.m) return;
  std::uint16_t* const at = p.y + token * p.ldy + output;
  if (p.y_pairs && output + 9 < p.n) {
    *reinterpret_cast<std::uint32_t*>(at) = upper;
    *reinterpret_cast<std::uint32_t*>(at + 8) = lower;
    return;
  }
  if (output < p.n) at[0] = static_cast<std::uint16_t>(upper);
  if (output + 1 < p.n) at[1] = static_cast<std::uint16_t>(upper >> 16);
  if (output + 8 < p.n) at[8] = static_cast<std::uint16_t>(lower);
  if (output + 9 < p.n) at[9] = static_cast<std::uint16_t>(lower >> 16);
}

// The bias of two outputs; none is -0, which changes no sum, not even -0.
__device__ __forceinline__ float2 load_bias(const LinearParams& p, std::uint32_t strip,
                                            std::uint32_t lane) {
  const std::uint32_t row = strip * kStripRows + lane / 4;
  float2 bias{-0.0f, -0.0f};
  if (p.bias != nullptr && row < p.n) bias.x = __bfloat162float(p.bias[row]);
  if (p.bias != nullptr && row + 8 < p.n) bias.y = __bfloat162float(p.bias[row + 8]);
  return bias;
}

__device__ __forceinline__ float4 add_bias(float4 sum, float2 bias) {
  return {sum.x + bias.x, sum.y + bias.x, sum.z + bias.y, sum.w + bias.y};
}

// The sums of one strip for eight rows of x, held as mma leaves them.
__device__ __forceinline__ void write_strip(const LinearParams& p, float4 sum, std::uint32_t strip,
                                            std::uint32_t first_token, std::uint32_t lane) {
  if (first_token >= p.m || strip >= p.strips) return;
  sum = add_bias(sum, load_bias(p, strip, lane));
  store_transposed(p, sum, strip * kStripRows, first_token, lane);
}

// Whether write_strip_wide may be used: whole strips of y, in pieces of 16 bytes.
__device__ __forceinline__ bool can_write_wide(const LinearParams& p, std::uint32_t strip) {
  return p.y_wide && (strip + 1) * kStripRows <= p.n;
}

// The same for 16 kPairs rows of x. Each lane gathers eight outputs of one row, so that
// stores fill whole sectors. Each step is done for all pairs before the next, which hides
// its latency.
template <int kPairs>
__device__ __forceinline__ void write_strip_wide(const LinearParams& p,
                                                 const float4 (&sums)[2 * kPairs],
                                                 std::uint32_t strip, std::uint32_t first_token,
                                                 std::uint32_t lane) {
  const float2 bias = load_bias(p, strip, lane);
  std::uint32_t v[kPairs][4];
#pragma unroll
  for (int i = 0; i < 2 * kPairs; ++i) {
    const float4 sum = add_bias(sums[i], bias);
    v[i / 2][i % 2 * 2] = transpose_8x8(pack_bf16(sum.x, sum.y));
    v[i / 2][i % 2 * 2 + 1] = transpose_8x8(pack_bf16(sum.z, sum.w));
  }
#pragma unroll
  for (int i = 0; i < kPairs; ++i) transpose_in_quad(v[i], lane);
  const std::uint32_t token = first_token + lane / 4 + lane % 4 / 2 * 8;
  std::uint16_t* const y = p.y + token * p.ldy + strip * kStripRows + lane % 2 * 8;
#pragma unroll
  for (int i = 0; i < kPairs; ++i)
    if (token + i * 16 < p.m)
      store_global(y + i * 16 * p.ldy, {v[i][0], v[i][1], v[i][2], v[i][3]});
}

}  // namespace snug::gemm
