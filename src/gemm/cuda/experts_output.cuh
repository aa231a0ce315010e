// gemm/cuda/experts_output.cuh - from the sums of two strips to h or to weighted products.
#pragma once
#include "gemm/cuda/experts_params.h"
#include "gemm/cuda/linear_output.cuh"

namespace snug::gemm {

__device__ __forceinline__ float round_bf16(float v) {
  return __bfloat162float(__float2bfloat16_rn(v));
}

__device__ __forceinline__ float weight_of(const ExpertsProduct& p, std::uint32_t pair) {
  return p.weights == nullptr ? 1.0f : __ldg(p.weights + pair);
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

// Eight columns of y: the weighted products of a row in the order of its experts. is_real(j): the
// j-th has an expert.
template <class IsReal>
__device__ __forceinline__ void sum_parts(const SumParams& p, std::uint64_t row, std::uint32_t unit,
                                          const IsReal& is_real) {
  float sums[8] = {};
#pragma unroll 8
  for (std::uint32_t j = 0; j < p.top_k; ++j) {
    if (!is_real(j)) continue;
    const uint4 v = __ldcg(p.parts + (row * p.top_k + j) * p.part_units + unit);
    const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      sums[2 * w] += __uint_as_float(words[w] << 16);
      sums[2 * w + 1] += __uint_as_float(words[w] & 0xFFFF0000u);
    }
  }
  const uint4 out{pack_bf16(sums[0], sums[1]), pack_bf16(sums[2], sums[3]),
                  pack_bf16(sums[4], sums[5]), pack_bf16(sums[6], sums[7])};
  std::uint16_t* const y = p.y + row * p.ldy + unit * 8;
  if (p.y_wide && unit * 8 + 8 <= p.k) return store_global(y, out);
  const std::uint32_t words[4] = {out.x, out.y, out.z, out.w};
#pragma unroll
  for (std::uint32_t c = 0; c < 8; ++c)
    if (unit * 8 + c < p.k) y[c] = static_cast<std::uint16_t>(words[c / 2] >> c % 2 * 16);
}

}  // namespace snug::gemm
