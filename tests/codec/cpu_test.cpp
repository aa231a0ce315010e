// The CPU check against the compiler's own.
#include "codec/cpu.h"

#include <gtest/gtest.h>

namespace snug::codec {
namespace {

#if defined(__x86_64__) && defined(__GNUC__)
TEST(Cpu, agrees_with_the_compiler) {
  const CpuFeatures& cpu = cpu_features();
  EXPECT_EQ(cpu.sse4, __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt") &&
                          __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul"));
  EXPECT_EQ(cpu.avx2, cpu.sse4 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                          __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2"));
  EXPECT_EQ(cpu.avx512,
            cpu.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"));
  EXPECT_EQ(cpu.vbmi2, cpu.avx512 && __builtin_cpu_supports("avx512vbmi") &&
                           __builtin_cpu_supports("avx512vbmi2") &&
                           __builtin_cpu_supports("avx512ifma"));
}
#endif

TEST(Cpu, a_group_includes_the_smaller_ones) {
  const CpuFeatures& cpu = cpu_features();
  EXPECT_LE(cpu.vbmi2, cpu.avx512);
  EXPECT_LE(cpu.avx512, cpu.avx2);
  EXPECT_LE(cpu.avx2, cpu.sse4);
}

}  // namespace
}  // namespace snug::codec
