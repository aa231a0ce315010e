// Measured on an NVIDIA H200 by gpu_gemm_bench --sweep with normal weights; shapes
// without an entry follow the rule in choose.cu.
#include "gemm/tuning.h"

namespace snug::gemm {
namespace {

#define SNUG_H200(n, k, m, kernel, splits, warps, columns, gain) \
  { "NVIDIA H200", n, k, m, {Kernel::kernel, splits, warps, columns}, gain }

constexpr TuningEntry kH200[] = {
    SNUG_H200(4096, 4096, 1, kDecode, 1, 16, 0, 1.327f),      SNUG_H200(4096, 4096, 4, kDecode, 1, 16, 0, 1.259f),
    SNUG_H200(4096, 4096, 8, kDecode, 1, 16, 0, 1.297f),      SNUG_H200(4096, 4096, 16, kDecode, 2, 16, 0, 1.094f),
    SNUG_H200(4096, 4096, 32, kBatch, 0, 8, 32, 0.901f),      SNUG_H200(4096, 4096, 64, kBatch, 0, 8, 64, 0.772f),
    SNUG_H200(4096, 4096, 128, kBatch, 0, 8, 128, 0.787f),    SNUG_H200(4096, 4096, 2048, kBatch, 0, 8, 256, 0.886f),
    SNUG_H200(6144, 4096, 1, kDecode, 1, 16, 0, 1.350f),      SNUG_H200(6144, 4096, 4, kDecode, 1, 16, 0, 1.268f),
    SNUG_H200(6144, 4096, 8, kDecode, 1, 16, 0, 1.254f),      SNUG_H200(6144, 4096, 16, kDecode, 2, 16, 0, 1.091f),
    SNUG_H200(6144, 4096, 32, kBatch, 0, 16, 32, 0.898f),     SNUG_H200(6144, 4096, 64, kBatch, 0, 8, 64, 0.827f),
    SNUG_H200(6144, 4096, 128, kBatch, 0, 8, 128, 0.764f),    SNUG_H200(6144, 4096, 2048, kBatch, 0, 8, 256, 0.884f),
    SNUG_H200(14336, 4096, 1, kDecode, 1, 16, 0, 1.292f),     SNUG_H200(14336, 4096, 4, kDecode, 1, 16, 0, 1.201f),
    SNUG_H200(14336, 4096, 8, kDecode, 1, 16, 0, 1.273f),     SNUG_H200(14336, 4096, 16, kDecode, 1, 8, 0, 1.138f),
    SNUG_H200(14336, 4096, 32, kBatch, 0, 16, 32, 1.081f),    SNUG_H200(14336, 4096, 64, kBatch, 0, 16, 64, 0.998f),
    SNUG_H200(14336, 4096, 128, kBatch, 0, 8, 128, 0.847f),   SNUG_H200(14336, 4096, 2048, kBatch, 0, 8, 256, 0.845f),
    SNUG_H200(28672, 4096, 1, kDecode, 1, 16, 0, 1.269f),     SNUG_H200(28672, 4096, 4, kDecode, 1, 16, 0, 1.258f),
    SNUG_H200(28672, 4096, 8, kDecode, 1, 16, 0, 1.273f),     SNUG_H200(28672, 4096, 16, kDecode, 1, 8, 0, 1.208f),
    SNUG_H200(28672, 4096, 32, kBatch, 0, 16, 32, 1.190f),    SNUG_H200(28672, 4096, 64, kBatch, 0, 16, 64, 1.072f),
    SNUG_H200(28672, 4096, 128, kBatch, 0, 8, 128, 0.897f),   SNUG_H200(28672, 4096, 2048, kBatch, 0, 8, 256, 0.844f),
    SNUG_H200(4096, 14336, 1, kDecode, 1, 16, 0, 1.363f),     SNUG_H200(4096, 14336, 4, kDecode, 2, 16, 0, 1.295f),
    SNUG_H200(4096, 14336, 8, kDecode, 4, 16, 0, 1.285f),     SNUG_H200(4096, 14336, 16, kDecode, 4, 8, 0, 1.135f),
    SNUG_H200(4096, 14336, 32, kBatch, 0, 16, 32, 1.093f),    SNUG_H200(4096, 14336, 64, kBatch, 0, 16, 64, 1.045f),
    SNUG_H200(4096, 14336, 128, kBatch, 0, 8, 128, 0.988f),   SNUG_H200(4096, 14336, 2048, kBatch, 0, 8, 256, 0.907f),
    SNUG_H200(8192, 8192, 1, kDecode, 1, 16, 0, 1.271f),      SNUG_H200(8192, 8192, 4, kDecode, 1, 16, 0, 1.256f),
    SNUG_H200(8192, 8192, 8, kDecode, 2, 16, 0, 1.196f),      SNUG_H200(8192, 8192, 16, kDecode, 2, 8, 0, 1.142f),
    SNUG_H200(8192, 8192, 32, kBatch, 0, 16, 32, 1.093f),     SNUG_H200(8192, 8192, 64, kBatch, 0, 16, 64, 1.031f),
    SNUG_H200(8192, 8192, 128, kBatch, 0, 8, 128, 0.915f),    SNUG_H200(8192, 8192, 2048, kBatch, 0, 8, 256, 0.888f),
    SNUG_H200(10240, 8192, 1, kDecode, 1, 16, 0, 1.281f),     SNUG_H200(10240, 8192, 4, kDecode, 1, 16, 0, 1.369f),
    SNUG_H200(10240, 8192, 8, kDecode, 2, 16, 0, 1.329f),     SNUG_H200(10240, 8192, 16, kDecode, 2, 8, 0, 1.259f),
    SNUG_H200(10240, 8192, 32, kBatch, 0, 16, 32, 1.158f),    SNUG_H200(10240, 8192, 64, kBatch, 0, 16, 64, 1.024f),
    SNUG_H200(10240, 8192, 128, kBatch, 0, 8, 128, 0.883f),   SNUG_H200(10240, 8192, 2048, kBatch, 0, 8, 256, 0.871f),
    SNUG_H200(28672, 8192, 1, kDecode, 1, 16, 0, 1.331f),     SNUG_H200(28672, 8192, 4, kDecode, 1, 16, 0, 1.327f),
    SNUG_H200(28672, 8192, 8, kDecode, 1, 8, 0, 1.269f),      SNUG_H200(28672, 8192, 16, kBatch, 0, 16, 16, 1.252f),
    SNUG_H200(28672, 8192, 32, kBatch, 0, 16, 32, 1.258f),    SNUG_H200(28672, 8192, 64, kBatch, 0, 16, 64, 1.149f),
    SNUG_H200(28672, 8192, 128, kBatch, 0, 16, 128, 0.928f),  SNUG_H200(28672, 8192, 2048, kBatch, 0, 8, 256, 0.974f),
    SNUG_H200(57344, 8192, 1, kDecode, 1, 16, 0, 1.373f),     SNUG_H200(57344, 8192, 4, kDecode, 1, 16, 0, 1.371f),
    SNUG_H200(57344, 8192, 8, kDecode, 1, 8, 0, 1.299f),      SNUG_H200(57344, 8192, 16, kBatch, 0, 16, 16, 1.306f),
    SNUG_H200(57344, 8192, 32, kBatch, 0, 16, 32, 1.297f),    SNUG_H200(57344, 8192, 64, kBatch, 0, 16, 64, 1.160f),
    SNUG_H200(57344, 8192, 128, kBatch, 0, 16, 128, 0.938f),  SNUG_H200(57344, 8192, 2048, kBatch, 0, 8, 256, 1.006f),
    SNUG_H200(8192, 28672, 1, kDecode, 1, 16, 0, 1.351f),     SNUG_H200(8192, 28672, 4, kDecode, 3, 16, 0, 1.307f),
    SNUG_H200(8192, 28672, 8, kDecode, 4, 8, 0, 1.237f),      SNUG_H200(8192, 28672, 16, kBatch, 0, 16, 16, 1.227f),
    SNUG_H200(8192, 28672, 32, kBatch, 0, 16, 32, 1.229f),    SNUG_H200(8192, 28672, 64, kBatch, 0, 16, 64, 1.209f),
    SNUG_H200(8192, 28672, 128, kBatch, 0, 16, 128, 0.951f),  SNUG_H200(8192, 28672, 2048, kBatch, 0, 8, 256, 1.035f),
    SNUG_H200(128256, 4096, 1, kDecode, 1, 16, 0, 1.339f),    SNUG_H200(128256, 4096, 4, kDecode, 1, 8, 0, 1.355f),
    SNUG_H200(128256, 4096, 8, kDecode, 1, 8, 0, 1.334f),     SNUG_H200(128256, 4096, 16, kDecode, 1, 8, 0, 1.350f),
    SNUG_H200(128256, 4096, 32, kBatch, 0, 16, 32, 1.272f),   SNUG_H200(128256, 4096, 64, kBatch, 0, 16, 64, 1.129f),
    SNUG_H200(128256, 4096, 128, kBatch, 0, 16, 128, 0.919f), SNUG_H200(128256, 4096, 2048, kBatch, 0, 8, 256, 0.848f),
};

#undef SNUG_H200

}  // namespace

std::span<const TuningEntry> shipped_tuning() noexcept { return kH200; }

}  // namespace snug::gemm
