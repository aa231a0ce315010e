// gemm/cuda/warp_mma.cuh - tensor-core instructions of a warp, sm_80 on.
#pragma once
#include <cstdint>

#include "gpu/ptx_barrier.cuh"
#include "gpu/warp.cuh"

namespace snug::gemm {

using namespace cuda;  // the primitives of src/gpu

// d += a b: sixteen rows of weights times eight rows of x, sixteen columns deep.
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4],
                                            std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8x8 matrices of 16-bit values; each lane gives the address of one row.
__device__ __forceinline__ uint4 load_matrix_x4(std::uint32_t address) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address));
  return v;
}

// Transposes an 8x8 matrix of 16-bit values held by the warp.
__device__ __forceinline__ std::uint32_t transpose_8x8(std::uint32_t v) {
  std::uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(v));
  return d;
}

// Lane c of four gives the others what is theirs of v[0..3]: v[i] becomes what lane i held in v[c].
__device__ __forceinline__ void transpose_in_quad(std::uint32_t (&v)[4], std::uint32_t lane) {
  const bool odd = lane & 1, high = lane & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t got = __shfl_xor_sync(kAllLanes, odd ? v[i] : v[i + 1], 1);
    (odd ? v[i] : v[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t got = __shfl_xor_sync(kAllLanes, high ? v[i] : v[i + 2], 2);
    (high ? v[i] : v[i + 2]) = got;
  }
}

}  // namespace snug::gemm
