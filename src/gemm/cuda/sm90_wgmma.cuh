// gemm/cuda/sm90_wgmma.cuh - wgmma with operand A in registers: 64 rows of weights times
// kTileM rows of x, sixteen columns deep.
#pragma once
#include "gemm/cuda/warp_mma.cuh"

namespace snug::gemm {

// Orders register writes before the warpgroup's next wgmma.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Until at most kPending groups are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Operand B: rows of 128 bytes (64 columns), swizzled as the copy engine leaves them.
// The lower half of its descriptor; the upper one is the same for all (0x40000040: 1024
// bytes from eight rows to the next, swizzled by 128). One more is 16 bytes.
__device__ __forceinline__ std::uint32_t wgmma_descriptor(std::uint32_t address) {
  return (address & 0x3FFFFu) >> 4 | 1u << 16;
}

// The instruction names every register of the sums; operands are counted through. Eight of
// them at a time, as text and as operands:
#define SNUG_REGS_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SNUG_REGS_8 "%8, %9, %10, %11, %12, %13, %14, %15"
#define SNUG_REGS_16 "%16, %17, %18, %19, %20, %21, %22, %23"
#define SNUG_REGS_24 "%24, %25, %26, %27, %28, %29, %30, %31"
#define SNUG_REGS_32 "%32, %33, %34, %35, %36, %37, %38, %39"
#define SNUG_REGS_40 "%40, %41, %42, %43, %44, %45, %46, %47"
#define SNUG_REGS_48 "%48, %49, %50, %51, %52, %53, %54, %55"
#define SNUG_REGS_56 "%56, %57, %58, %59, %60, %61, %62, %63"
#define SNUG_REGS_64 "%64, %65, %66, %67, %68, %69, %70, %71"
#define SNUG_REGS_72 "%72, %73, %74, %75, %76, %77, %78, %79"
#define SNUG_REGS_80 "%80, %81, %82, %83, %84, %85, %86, %87"
#define SNUG_REGS_88 "%88, %89, %90, %91, %92, %93, %94, %95"
#define SNUG_REGS_96 "%96, %97, %98, %99, %100, %101, %102, %103"
#define SNUG_REGS_104 "%104, %105, %106, %107, %108, %109, %110, %111"
#define SNUG_REGS_112 "%112, %113, %114, %115, %116, %117, %118, %119"
#define SNUG_REGS_120 "%120, %121, %122, %123, %124, %125, %126, %127"
#define SNUG_SUMS_8(i)                                                                        \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define SNUG_SUMS_16(i) SNUG_SUMS_8(i), SNUG_SUMS_8(i + 8)
#define SNUG_SUMS_32(i) SNUG_SUMS_16(i), SNUG_SUMS_16(i + 16)
#define SNUG_SUMS_64(i) SNUG_SUMS_32(i), SNUG_SUMS_32(i + 32)
#define SNUG_SUMS_128(i) SNUG_SUMS_64(i), SNUG_SUMS_64(i + 64)
#define SNUG_REGS_0_16 SNUG_REGS_0 ", " SNUG_REGS_8
#define SNUG_REGS_0_32 SNUG_REGS_0_16 ", " SNUG_REGS_16 ", " SNUG_REGS_24
#define SNUG_REGS_0_64 \
  SNUG_REGS_0_32 ", " SNUG_REGS_32 ", " SNUG_REGS_40 ", " SNUG_REGS_48 ", " SNUG_REGS_56
#define SNUG_REGS_0_128                                                                  \
  SNUG_REGS_0_64 ", " SNUG_REGS_64 ", " SNUG_REGS_72 ", " SNUG_REGS_80 ", " SNUG_REGS_88 \
                 ", " SNUG_REGS_96 ", " SNUG_REGS_104 ", " SNUG_REGS_112 ", " SNUG_REGS_120

template <int kTileM>
struct Wgmma;

#define SNUG_WGMMA(cols, sums, regs, operands, a_regs, x_reg)                                      \
  template <>                                                                                      \
  struct Wgmma<cols> {                                                                             \
    static __device__ __forceinline__ void multiply(float (&d)[sums], const std::uint32_t (&a)[4], \
                                                    std::uint32_t x) {                             \
      asm volatile("{\n.reg .b64 d;\nmov.b64 d, {" x_reg                                           \
                   ", 0x40000040};\nwgmma.mma_async.sync.aligned.m64n" #cols                       \
                   "k16.f32.bf16.bf16 {" regs "}, {" a_regs "}, d, 1, 1, 1, 0;\n}"                 \
                   : operands                                                                      \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(x));                          \
    }                                                                                              \
  }
SNUG_WGMMA(16, 8, SNUG_REGS_0, SNUG_SUMS_8(0), "%8, %9, %10, %11", "%12");
SNUG_WGMMA(32, 16, SNUG_REGS_0_16, SNUG_SUMS_16(0), "%16, %17, %18, %19", "%20");
SNUG_WGMMA(64, 32, SNUG_REGS_0_32, SNUG_SUMS_32(0), "%32, %33, %34, %35", "%36");
SNUG_WGMMA(128, 64, SNUG_REGS_0_64, SNUG_SUMS_64(0), "%64, %65, %66, %67", "%68");
SNUG_WGMMA(256, 128, SNUG_REGS_0_128, SNUG_SUMS_128(0), "%128, %129, %130, %131", "%132");

#undef SNUG_REGS_0
#undef SNUG_REGS_8
#undef SNUG_REGS_16
#undef SNUG_REGS_24
#undef SNUG_REGS_32
#undef SNUG_REGS_40
#undef SNUG_REGS_48
#undef SNUG_REGS_56
#undef SNUG_REGS_64
#undef SNUG_REGS_72
#undef SNUG_REGS_80
#undef SNUG_REGS_88
#undef SNUG_REGS_96
#undef SNUG_REGS_104
#undef SNUG_REGS_112
#undef SNUG_REGS_120
#undef SNUG_SUMS_8
#undef SNUG_SUMS_16
#undef SNUG_SUMS_32
#undef SNUG_SUMS_64
#undef SNUG_SUMS_128
#undef SNUG_REGS_0_16
#undef SNUG_REGS_0_32
#undef SNUG_REGS_0_64
#undef SNUG_REGS_0_128
#undef SNUG_WGMMA

}  // namespace snug::gemm
