#include "codec/cpu.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace snug::codec {
namespace {

#if defined(__x86_64__)
// Bits of CPUID's answers and of XCR0, by the names of the processor manuals.
constexpr std::uint32_t bits(auto... idx) { return (0u | ... | (1u << idx)); }
constexpr std::uint32_t kSse4 = bits(1, 9, 19, 20, 23, 25);  // leaf 1, ECX: PCLMUL, SSSE3 to AES
constexpr std::uint32_t kAvx = bits(12, 27, 28, 29);         // leaf 1, ECX: FMA, OSXSAVE, AVX, F16C
constexpr std::uint32_t kAvx2 = bits(3, 5, 8);               // leaf 7, EBX: BMI1, AVX2, BMI2
constexpr std::uint32_t kAvx512 = bits(16, 17, 30, 31);      // leaf 7, EBX: F, DQ, BW, VL
constexpr std::uint32_t kIfma = bits(21);                    // leaf 7, EBX
constexpr std::uint32_t kVbmi = bits(1, 6);                  // leaf 7, ECX: VBMI, VBMI2
constexpr std::uint32_t kLzcnt = bits(5);                    // leaf 0x80000001, ECX
constexpr std::uint32_t kYmmState = bits(1, 2);              // XCR0: SSE, AVX
constexpr std::uint32_t kZmmState = bits(1, 2, 5, 6, 7);     // XCR0: and AVX-512

std::uint32_t saved_registers() noexcept {
  std::uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

CpuFeatures detect() noexcept {
  const auto has = [](std::uint32_t found, std::uint32_t all) { return (found & all) == all; };
  std::uint32_t a, b, leaf1 = 0, extended = 0, ebx = 0, ecx = 0, d;
  if (!__get_cpuid(1, &a, &b, &leaf1, &d)) return {};
  CpuFeatures cpu;
  cpu.sse4 = has(leaf1, kSse4);
  if (!cpu.sse4 || !has(leaf1, kAvx) || !__get_cpuid_count(7, 0, &a, &ebx, &ecx, &d)) return cpu;
  __get_cpuid(0x80000001, &a, &b, &extended, &d);
  const std::uint32_t saved = saved_registers();
  cpu.avx2 = has(ebx, kAvx2) && has(extended, kLzcnt) && has(saved, kYmmState);
  cpu.avx512 = cpu.avx2 && has(ebx, kAvx512) && has(saved, kZmmState);
  cpu.vbmi2 = cpu.avx512 && has(ebx, kIfma) && has(ecx, kVbmi);
  return cpu;
}
#elif defined(__aarch64__)
CpuFeatures detect() noexcept {
#if defined(__linux__)
  return {.neon = (getauxval(AT_HWCAP) & HWCAP_AES) != 0};
#else
  return {.neon = true};
#endif
}
#else
CpuFeatures detect() noexcept { return {}; }
#endif

}  // namespace

const CpuFeatures& cpu_features() noexcept {
  static const CpuFeatures features = detect();
  return features;
}

}  // namespace snug::codec
