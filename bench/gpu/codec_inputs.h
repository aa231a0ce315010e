// gpu/codec_inputs.h - what the codec benchmark compresses: generated data, and the
// tensors of files.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "snug/tensor.h"

namespace snug::bench {

using Bytes = std::vector<std::uint8_t>;

inline std::uint16_t to_bf16(float f) {
  std::uint32_t u;
  std::memcpy(&u, &f, 4);
  return static_cast<std::uint16_t>((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

// 16 MiB of one kind of data; buffers are filled with copies of it.
inline constexpr std::size_t kTile = std::size_t{16} << 20;

inline Bytes gaussian(DType dtype) {
  Bytes tile(kTile);
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 0.02f);
  for (std::size_t i = 0; i + 4 <= kTile;) {
    const float f = normal(random);
    if (dtype == DType::kF32) {
      std::memcpy(&tile[i], &f, 4);
      i += 4;
    } else if (dtype == DType::kF16) {
      // Round to nearest by scaling: normal numbers of this range need no more.
      std::uint32_t u;
      const float scaled = f * 0x1p-112f;
      std::memcpy(&u, &scaled, 4);
      const auto h = static_cast<std::uint16_t>(((u & 0x7FFFFFFF) + 0x0FFF + (u >> 13 & 1)) >> 13 |
                                                u >> 31 << 15);
      std::memcpy(&tile[i], &h, 2);
      i += 2;
    } else if (dtype == DType::kF8E4M3) {
      std::uint32_t u;
      const float scaled = f * 50.0f * 0x1p-120f;
      std::memcpy(&u, &scaled, 4);
      tile[i++] = static_cast<std::uint8_t>(((u & 0x7FFFFFFF) + 0x7FFFF + (u >> 20 & 1)) >> 20 |
                                            u >> 31 << 7);
    } else {
      const std::uint16_t b = to_bf16(f);
      std::memcpy(&tile[i], &b, 2);
      i += 2;
    }
  }
  return tile;
}

inline Bytes random_bits() {
  Bytes tile(kTile);
  std::mt19937_64 random(2);
  for (std::size_t i = 0; i < kTile; i += 8) {
    const std::uint64_t v = random();
    std::memcpy(&tile[i], &v, 8);
  }
  return tile;
}

// Channels with lognormal scales: the wide exponents of large models' keys.
inline Bytes wide_kv() {
  Bytes tile(kTile);
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> scale(1024);
  for (float& s : scale) s = std::exp2(1.6f * normal(random));
  for (std::size_t i = 0; i < kTile / 2; ++i) {
    const std::uint16_t b = to_bf16(scale[i % 1024] * normal(random));
    std::memcpy(&tile[2 * i], &b, 2);
  }
  return tile;
}

// The tensors of a safetensors file, repeated to 16 MiB; empty if there is none.
inline Bytes file_data(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> all((std::istreambuf_iterator<char>(file)), {});
  std::uint64_t header = 0;
  if (all.size() < 16) return {};
  std::memcpy(&header, all.data(), 8);
  if (header > all.size() - 16) return {};
  Bytes tile(kTile);
  const std::size_t start = 8 + header, length = (all.size() - start) & ~std::size_t{1};
  for (std::size_t i = 0; i < kTile; ++i)
    tile[i] = static_cast<std::uint8_t>(all[start + i % length]);
  return tile;
}

}  // namespace snug::bench
