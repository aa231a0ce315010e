// Kernel tables by Google Highway: one source, one table a target.
#include "codec/cpu.h"
#include "codec/kernels.h"

// AVX-512 has its own kernels (kernels_avx512.cpp); CPUs that have only the older half of it run
// the AVX2 table. SVE vectors have no fixed length, and NEON runs wherever SVE does.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/kernels_hwy.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets the target these compile for:
#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_NEON
#include "codec/entropy/bf16_decode_hwy-inl.h"
#include "codec/entropy/rans_decode_hwy-inl.h"
#include "codec/entropy/rans_encode_hwy-inl.h"
#include "codec/kernels_hwy-inl.h"
#include "codec/palette_hwy-inl.h"

namespace snug::codec::HWY_NAMESPACE {

const Kernels kKernels = {
#if HWY_TARGET == HWY_AVX2
    .name = "avx2",
#elif HWY_TARGET == HWY_SSE4
    .name = "sse4",
#else
    .name = "neon",
#endif
    .checksum_terms = checksum_terms,
    .finish_writes = hwy::FlushStream,
    .copy_out = copy_out,
    .split2 = split2,
    .merge2 = merge2,
    .map_palette = map_palette,
    .unmap_palette = unmap_palette,
    .rans_encode = rans_encode,
    .rans_decode = rans_decode,
    .fixed_pack = fixed_pack,
    .fixed_unpack = fixed_unpack,
    .decode_bf16_pair = decode_bf16_pair,
};

}  // namespace snug::codec::HWY_NAMESPACE
#endif

#if HWY_ONCE
namespace snug::codec {

void append_hwy_kernels(TargetList<const Kernels*>& tables) noexcept {
  [[maybe_unused]] const CpuFeatures& cpu = cpu_features();
#if HWY_TARGETS & HWY_AVX2
  if (cpu.avx2) tables.push_back(&N_AVX2::kKernels);
#endif
#if HWY_TARGETS & HWY_SSE4
  if (cpu.sse4) tables.push_back(&N_SSE4::kKernels);
#endif
#if HWY_TARGETS & HWY_NEON
  if (cpu.neon) tables.push_back(&N_NEON::kKernels);
#endif
}

}  // namespace snug::codec
#endif
