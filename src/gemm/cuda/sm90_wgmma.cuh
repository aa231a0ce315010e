// gemm/cuda/sm90_wgmma.cuh - wgmma with operand A in registers: 64 rows of weights times
// kTileM rows of x, sixteen columns deep.
#pragma once
#include "gemm/cuda/warp_mma.cuh"

// Kernels with these instructions are empty elsewhere, and the host goes by the GPU it finds.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900 && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "sm_90 has no wgmma: build for 90a, for example with CMAKE_CUDA_ARCHITECTURES=90a-real"
#endif

namespace snug::gemm {

// Orders writes to registers before the warpgroup's next wgmma.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending groups are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The lower half of the descriptor of operand B, whose rows of 128 bytes (64 columns) are
// swizzled as TMA stores them. The upper half is always 0x40000040: eight rows are 1024 bytes,
// 128-byte swizzle. Adding 1 to the lower half moves by 16 bytes.
__device__ __forceinline__ std::uint32_t wgmma_descriptor(std::uint32_t address) {
  return (address & 0x3FFFFu) >> 4 | 1u << 16;
}

// The instruction lists every register of the sums: by number in its text, here by tens, and
// as operands.
#define SNUG_TEN(t)                              \
  "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t \
  "4, "                                          \
  "%" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9, "
#define SNUG_REGS_10 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
#define SNUG_REGS_60 SNUG_REGS_10 SNUG_TEN(1) SNUG_TEN(2) SNUG_TEN(3) SNUG_TEN(4) SNUG_TEN(5)
#define SNUG_SUMS_8(i)                                                                        \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define SNUG_SUMS_16(i) SNUG_SUMS_8(i), SNUG_SUMS_8(i + 8)
#define SNUG_SUMS_32(i) SNUG_SUMS_16(i), SNUG_SUMS_16(i + 16)
#define SNUG_SUMS_64(i) SNUG_SUMS_32(i), SNUG_SUMS_32(i + 32)
#define SNUG_SUMS_48(i) SNUG_SUMS_32(i), SNUG_SUMS_16(i + 32)
#define SNUG_SUMS_96 SNUG_SUMS_64(0), SNUG_SUMS_32(64)

template <int kTileM>
struct Wgmma;

#define SNUG_WGMMA(cols, sums, regs, a_regs, x_reg, ...)                                           \
  template <>                                                                                      \
  struct Wgmma<cols> {                                                                             \
    static __device__ __forceinline__ void multiply(float (&d)[sums], const std::uint32_t (&a)[4], \
                                                    std::uint32_t x) {                             \
      asm volatile("{\n.reg .b64 d;\nmov.b64 d, {" x_reg                                           \
                   ", 0x40000040};\nwgmma.mma_async.sync.aligned.m64n" #cols                       \
                   "k16.f32.bf16.bf16 {" regs "}, {" a_regs "}, d, 1, 1, 1, 0;\n}"                 \
                   : __VA_ARGS__                                                                   \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(x));                          \
    }                                                                                              \
  }
SNUG_WGMMA(16, 8, "%0, %1, %2, %3, %4, %5, %6, %7", "%8, %9, %10, %11", "%12", SNUG_SUMS_8(0));
SNUG_WGMMA(32, 16, SNUG_REGS_10 "%10, %11, %12, %13, %14, %15", "%16, %17, %18, %19", "%20",
           SNUG_SUMS_16(0));
SNUG_WGMMA(48, 24, SNUG_REGS_10 SNUG_TEN(1) "%20, %21, %22, %23", "%24, %25, %26, %27", "%28",
           SNUG_SUMS_16(0), SNUG_SUMS_8(16));
SNUG_WGMMA(64, 32, SNUG_REGS_10 SNUG_TEN(1) SNUG_TEN(2) "%30, %31", "%32, %33, %34, %35", "%36",
           SNUG_SUMS_32(0));
SNUG_WGMMA(80, 40,
           SNUG_REGS_10 SNUG_TEN(1) SNUG_TEN(2) "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39",
           "%40, %41, %42, %43", "%44", SNUG_SUMS_32(0), SNUG_SUMS_8(32));
SNUG_WGMMA(96, 48,
           SNUG_REGS_10 SNUG_TEN(1) SNUG_TEN(2)
               SNUG_TEN(3) "%40, %41, %42, %43, %44, %45, %46, %47",
           "%48, %49, %50, %51", "%52", SNUG_SUMS_48(0));
SNUG_WGMMA(112, 56,
           SNUG_REGS_10 SNUG_TEN(1) SNUG_TEN(2) SNUG_TEN(3)
               SNUG_TEN(4) "%50, %51, %52, %53, %54, %55",
           "%56, %57, %58, %59", "%60", SNUG_SUMS_48(0), SNUG_SUMS_8(48));
SNUG_WGMMA(128, 64, SNUG_REGS_60 "%60, %61, %62, %63", "%64, %65, %66, %67", "%68",
           SNUG_SUMS_64(0));
SNUG_WGMMA(144, 72, SNUG_REGS_60 SNUG_TEN(6) "%70, %71", "%72, %73, %74, %75", "%76",
           SNUG_SUMS_64(0), SNUG_SUMS_8(64));
SNUG_WGMMA(160, 80, SNUG_REGS_60 SNUG_TEN(6) "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79",
           "%80, %81, %82, %83", "%84", SNUG_SUMS_64(0), SNUG_SUMS_16(64));
SNUG_WGMMA(176, 88, SNUG_REGS_60 SNUG_TEN(6) SNUG_TEN(7) "%80, %81, %82, %83, %84, %85, %86, %87",
           "%88, %89, %90, %91", "%92", SNUG_SUMS_64(0), SNUG_SUMS_16(64), SNUG_SUMS_8(80));
SNUG_WGMMA(192, 96, SNUG_REGS_60 SNUG_TEN(6) SNUG_TEN(7) SNUG_TEN(8) "%90, %91, %92, %93, %94, %95",
           "%96, %97, %98, %99", "%100", SNUG_SUMS_96);
SNUG_WGMMA(208, 104,
           SNUG_REGS_60 SNUG_TEN(6) SNUG_TEN(7) SNUG_TEN(8) SNUG_TEN(9) "%100, %101, %102, %103",
           "%104, %105, %106, %107", "%108", SNUG_SUMS_96, SNUG_SUMS_8(96));
SNUG_WGMMA(224, 112,
           SNUG_REGS_60 SNUG_TEN(6) SNUG_TEN(7) SNUG_TEN(8) SNUG_TEN(9) SNUG_TEN(10) "%110, %111",
           "%112, %113, %114, %115", "%116", SNUG_SUMS_96, SNUG_SUMS_16(96));
SNUG_WGMMA(240, 120,
           SNUG_REGS_60 SNUG_TEN(6) SNUG_TEN(7) SNUG_TEN(8) SNUG_TEN(9)
               SNUG_TEN(10) "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119",
           "%120, %121, %122, %123", "%124", SNUG_SUMS_96, SNUG_SUMS_16(96), SNUG_SUMS_8(112));
SNUG_WGMMA(256, 128,
           SNUG_REGS_60 SNUG_TEN(6) SNUG_TEN(7) SNUG_TEN(8) SNUG_TEN(9) SNUG_TEN(10)
               SNUG_TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127",
           "%128, %129, %130, %131", "%132", SNUG_SUMS_96, SNUG_SUMS_32(96));

#undef SNUG_TEN
#undef SNUG_REGS_10
#undef SNUG_REGS_60
#undef SNUG_SUMS_8
#undef SNUG_SUMS_16
#undef SNUG_SUMS_32
#undef SNUG_SUMS_64
#undef SNUG_SUMS_48
#undef SNUG_SUMS_96
#undef SNUG_WGMMA

}  // namespace snug::gemm
