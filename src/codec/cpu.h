// codec/cpu.h - what the CPU can run: the one place that asks it. Not __builtin_cpu_supports, whose
// tables are part of GCC's runtime and missing elsewhere.
#pragma once

namespace snug::codec {

// Groups of instructions, as kernels are compiled for them. A group is false also where the
// operating system does not save its registers.
struct CpuFeatures {
  bool sse4 = false;    // SSE4.2, POPCNT, AES, PCLMUL
  bool avx2 = false;    // and AVX2, FMA, F16C, BMI1, BMI2, LZCNT
  bool avx512 = false;  // and AVX-512 F, BW, DQ, VL (Skylake-X)
  bool vbmi2 = false;   // and AVX-512 VBMI, VBMI2, IFMA (Ice Lake, Zen 4)
  bool neon = false;    // with AES
};

const CpuFeatures& cpu_features() noexcept;

}  // namespace snug::codec
