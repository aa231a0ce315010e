// codec/sample.h - which values encoders look at to choose tables.
//
// Part of what makes all encoders agree: runs of 16 values, spread so that no
// channel or row period hides from them. Small blocks are looked at whole.
#pragma once
#include <cstddef>

namespace snug::codec {

inline constexpr std::size_t kRun = 16;

// One run in `stride` is sampled: at least 4096 values of larger blocks.
inline constexpr std::size_t sample_stride(std::size_t num_elems) noexcept {
  std::size_t stride = 1;
  while (stride < 16 && num_elems > stride * 4096) stride *= 2;
  return stride;
}

// Calls visit(start, count, run_idx) for each sampled run, in order.
template <class Visit>
void for_each_sample(std::size_t num_elems, Visit visit) noexcept {
  const std::size_t stride = sample_stride(num_elems);
  for (std::size_t i = 0; i * stride * kRun < num_elems; ++i) {
    const std::size_t start = (i * stride + i % stride) * kRun;
    if (start >= num_elems) break;
    const std::size_t left = num_elems - start;
    visit(start, left < kRun ? left : kRun, i);
  }
}

}  // namespace snug::codec
