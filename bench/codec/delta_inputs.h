// Two versions of weights to measure deltas on: trained ones, and made ones.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "snug/store.h"

using Bytes = std::vector<std::byte>;

struct Versions {
  std::string name;
  Bytes base, next;
};

// Tensors before.* against those of another moment, as a file of training steps names them.
inline Versions load_versions(const snug::Reader& reader, const std::string& after) {
  Versions v{"rl " + after, {}, {}};
  for (const auto& tensor : reader.tensors()) {
    Bytes* to = tensor.name.starts_with("before.")     ? &v.base
                : tensor.name.starts_with(after + ".") ? &v.next
                                                       : nullptr;
    if (to == nullptr) continue;
    to->resize(to->size() + tensor.raw_bytes);
    if (!reader.read(tensor, std::span(*to).last(tensor.raw_bytes)).ok()) std::exit(1);
  }
  return v;
}

// Gaussian weights whose FP32 masters move by one step; rounded to nearest.
inline Versions gaussian_versions(double step, std::size_t num_elems) {
  Versions v{"gaussian step " + std::to_string(step * 1e6).substr(0, 4) + "e-6",
             Bytes(2 * num_elems), Bytes(2 * num_elems)};
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 0.03f);
  const auto put = [](Bytes& to, std::size_t i, float f) {
    std::uint32_t u;
    std::memcpy(&u, &f, 4);
    const auto half = static_cast<std::uint16_t>((u + 0x7FFF + (u >> 16 & 1)) >> 16);
    std::memcpy(to.data() + 2 * i, &half, 2);
  };
  for (std::size_t i = 0; i < num_elems; ++i) {
    const float master = normal(random);
    put(v.base, i, master);
    put(v.next, i, master + static_cast<float>(random() & 1 ? step : -step));
  }
  return v;
}
