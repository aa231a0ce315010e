// Measured on an NVIDIA H200 by gpu_gemm_bench --sweep with normal weights; shapes
// without an entry follow the rule in plan.cpp.
#include <array>
#include <iterator>

#include "gemm/tuning.h"

namespace snug::gemm {
namespace {

struct Measured {
  Plan plan;
  float gain;
};

constexpr Measured few(int split_k, int warps, float gain) {
  return {{Kernel::kFewRows, split_k, warps, 0, 0}, gain};
}
constexpr Measured batch(int split_k, int strips,
                         float gain) {  // in the smallest tile that holds m
  return {{Kernel::kBatch, split_k, 0, strips, 0}, gain};
}

constexpr std::uint64_t kRowsOfX[] = {1, 4, 8, 16, 32, 64, 128, 2048};
struct Shape {
  std::uint64_t size[2];  // n, k
  Measured best[std::size(kRowsOfX)];
};

constexpr Shape kShapes[] = {
    {{4096, 4096},
     {few(1, 16, 1.545f), few(1, 16, 1.412f), few(1, 16, 1.427f), batch(1, 8, 1.187f),
      batch(1, 8, 1.159f), batch(1, 8, 0.932f), batch(1, 8, 0.788f), batch(1, 8, 0.952f)}},
    {{6144, 4096},
     {few(1, 16, 1.455f), few(1, 16, 1.352f), few(1, 16, 1.349f), few(2, 16, 1.154f),
      batch(1, 12, 1.094f), batch(1, 12, 0.992f), batch(2, 8, 0.825f), batch(1, 8, 0.959f)}},
    {{14336, 4096},
     {few(1, 16, 1.382f), few(1, 16, 1.322f), few(1, 16, 1.300f), batch(2, 16, 1.164f),
      batch(2, 16, 1.174f), batch(2, 16, 1.117f), batch(1, 8, 0.913f), batch(1, 8, 0.928f)}},
    {{28672, 4096},
     {few(1, 16, 1.283f), few(1, 16, 1.259f), few(1, 16, 1.271f), few(1, 8, 1.200f),
      batch(1, 12, 1.209f), batch(1, 12, 1.153f), batch(1, 8, 1.008f), batch(1, 8, 0.919f)}},
    {{4096, 14336},
     {few(1, 16, 1.423f), few(4, 16, 1.308f), few(4, 16, 1.295f), batch(1, 12, 1.189f),
      batch(1, 12, 1.180f), batch(1, 8, 1.215f), batch(1, 8, 1.087f), batch(1, 8, 0.969f)}},
    {{8192, 8192},
     {few(1, 16, 1.374f), few(1, 16, 1.294f), few(2, 16, 1.230f), batch(1, 16, 1.182f),
      batch(1, 16, 1.165f), batch(1, 8, 1.152f), batch(1, 8, 1.000f), batch(1, 8, 1.031f)}},
    {{10240, 8192},
     {few(1, 16, 1.419f), few(1, 16, 1.358f), few(2, 16, 1.357f), batch(2, 12, 1.307f),
      batch(2, 12, 1.263f), batch(2, 12, 1.137f), batch(1, 8, 0.951f), batch(1, 8, 0.943f)}},
    {{28672, 8192},
     {few(1, 16, 1.333f), few(1, 8, 1.271f), few(2, 8, 1.244f), batch(1, 12, 1.267f),
      batch(1, 12, 1.269f), batch(1, 12, 1.235f), batch(1, 12, 1.047f), batch(1, 8, 1.047f)}},
    {{57344, 8192},
     {few(1, 8, 1.337f), few(1, 8, 1.329f), few(1, 8, 1.292f), batch(1, 12, 1.310f),
      batch(1, 12, 1.325f), batch(1, 12, 1.262f), batch(1, 12, 1.078f), batch(1, 8, 1.087f)}},
    {{8192, 28672},
     {few(1, 16, 1.351f), few(4, 8, 1.301f), few(4, 8, 1.250f), batch(1, 16, 1.260f),
      batch(1, 12, 1.256f), batch(1, 12, 1.305f), batch(1, 12, 1.053f), batch(1, 8, 1.114f)}},
    {{128256, 4096},
     {few(1, 16, 1.340f), few(1, 8, 1.343f), few(1, 8, 1.330f), few(1, 8, 1.360f),
      batch(1, 8, 1.321f), batch(1, 12, 1.227f), batch(1, 12, 1.071f), batch(1, 8, 1.043f)}},
};

constexpr auto kEntries = [] {
  std::array<TuningEntry, std::size(kShapes) * std::size(kRowsOfX)> entries{};
  std::size_t i = 0;
  for (const Shape& shape : kShapes)
    for (std::size_t at = 0; at < std::size(kRowsOfX); ++at, ++i) {
      const std::uint64_t m = kRowsOfX[at];
      Plan plan = shape.best[at].plan;
      if (plan.kernel == Kernel::kBatch) plan.tile_m = m < 256 ? static_cast<int>(m) : 256;
      entries[i] = {"NVIDIA H200", shape.size[0], shape.size[1], m, plan, shape.best[at].gain};
    }
  return entries;
}();

}  // namespace

std::span<const TuningEntry> shipped_tuning() noexcept { return kEntries; }

}  // namespace snug::gemm
