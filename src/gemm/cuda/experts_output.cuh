// gemm/cuda/experts_output.cuh - from the sums of two strips to h or to weighted products.
#pragma once
#include "gemm/cuda/experts_params.h"
#include "gemm/cuda/linear_output.cuh"

namespace snug::gemm {

__device__ __forceinline__ float round_bf16(float v) {
  return __bfloat162float(__float2bfloat16_rn(v));
}

// SwiGLU of gate and up, which are rounded first, as where they are products of their own.
__device__ __forceinline__ float swiglu(float gate, float up) {
  const float g = round_bf16(gate), u = round_bf16(up);
  return __fdividef(g, 1.0f + __expf(-g)) * u;
}

__device__ __forceinline__ float4 swiglu(const float (&gate)[4], const float (&up)[4]) {
  return {swiglu(gate[0], up[0]), swiglu(gate[1], up[1]), swiglu(gate[2], up[2]),
          swiglu(gate[3], up[3])};
}

// Sixteen columns of h, in the order of operand B, for the pair that lane / 4 stands for.
__device__ __forceinline__ void store_h(std::uint8_t* row, float4 h, std::uint32_t strip, bool real,
                                        std::uint32_t lane) {
  const std::uint32_t upper = transpose_8x8(pack_bf16(h.x, h.y)),
                      lower = transpose_8x8(pack_bf16(h.z, h.w));
  if (real)
    *reinterpret_cast<uint2*>(row + strip / 2 * 64 + lane % 4 * 16 + strip % 2 * 8) = {upper,
                                                                                       lower};
}

// The same with the columns in order, for twice eight rows; the row is that of the pair that the
// lane stores.
__device__ __forceinline__ void store_h_in_order(std::uint8_t* row, float4 h0, float4 h1,
                                                 std::uint32_t strip, bool real,
                                                 std::uint32_t lane) {
  std::uint32_t v[4] = {transpose_8x8(pack_bf16(h0.x, h0.y)), transpose_8x8(pack_bf16(h0.z, h0.w)),
                        transpose_8x8(pack_bf16(h1.x, h1.y)), transpose_8x8(pack_bf16(h1.z, h1.w))};
  transpose_in_quad(v, lane);
  if (real) store_global(row + strip * 32 + lane % 2 * 16, {v[0], v[1], v[2], v[3]});
}

// 32 columns of a weighted product for the same pair, whose weight the lane has.
__device__ __forceinline__ void store_weighted(std::uint8_t* row, const float (&a)[4],
                                               const float (&b)[4], float weight,
                                               std::uint32_t strips, bool real,
                                               std::uint32_t lane) {
  // As mma leaves them, a lane's sums belong to rows 2c and 2c + 1.
  const float w0 = __shfl_sync(kAllLanes, weight, lane % 4 * 8),
              w1 = __shfl_sync(kAllLanes, weight, lane % 4 * 8 + 4);
  std::uint32_t v[4] = {transpose_8x8(pack_bf16(a[0] * w0, a[1] * w1)),
                        transpose_8x8(pack_bf16(a[2] * w0, a[3] * w1)),
                        transpose_8x8(pack_bf16(b[0] * w0, b[1] * w1)),
                        transpose_8x8(pack_bf16(b[2] * w0, b[3] * w1))};
  transpose_in_quad(v, lane);
  if (real) store_global(row + strips * 64 + lane % 4 * 16, {v[0], v[1], v[2], v[3]});
}

}  // namespace snug::gemm
