// gemm/grid.h - the published grid: projections of public models, with the halves, quarters and
// eighths of tensor parallelism, joined qkv and gate/up, LM heads; and rows between those that
// kernels like.
#pragma once
#include <cstdint>

namespace snug::bench {

struct Shape {
  std::uint64_t n, k;
};

inline constexpr Shape kGridShapes[] = {
    {5120, 5120},   {7168, 5120},  {27648, 5120}, {5120, 13824}, {37888, 3584}, {3584, 18944},
    {4608, 3584},   {2560, 2048},  {12288, 2048}, {6144, 4096},  {4096, 4096},  {28672, 4096},
    {4096, 14336},  {8192, 8192},  {4096, 8192},  {2048, 8192},  {1024, 8192},  {14336, 8192},
    {7168, 8192},   {8192, 7168},  {8192, 3584},  {3072, 4096},  {2048, 2048},  {16384, 2048},
    {128256, 4096}, {151936, 3584}};

inline constexpr int kGridRows[] = {1,   2,   3,   4,    6,    8,    12,   16,   24,  32,
                                    48,  64,  80,  96,   100,  128,  160,  192,  256, 300,
                                    384, 512, 768, 1024, 1100, 2048, 2176, 4096, 8192};

}  // namespace snug::bench
