#include "codec/plane_choice.h"

#include <cstring>

#include "codec/sample.h"

namespace snug::codec {
namespace {

using frame::PlaneMode;

// Lower planes are mostly noise: only one sampled run in four is looked at.
constexpr std::size_t kNoiseRunStride = 4;

// Four histograms used in turn: the commonest exponents repeat, and an increment must not wait for
// the one before it.
using Parts = std::uint32_t[4][256];

void add_up(const Parts& part, std::uint32_t (&histogram)[256]) noexcept {
  for (int v = 0; v < 256; ++v) histogram[v] = part[0][v] + part[1][v] + part[2][v] + part[3][v];
}

}  // namespace

void count_bytes(const std::uint8_t* plane, std::size_t n,
                 std::uint32_t (&histogram)[256]) noexcept {
  Parts part = {};
  for (std::size_t i = 0; i < n; ++i) ++part[i % 4][plane[i]];
  add_up(part, histogram);
}

void sample_bytes(const std::uint8_t* plane, std::size_t n,
                  std::uint32_t (&histogram)[256]) noexcept {
  Parts part = {};
  for_each_sample(n, [&](std::size_t start, std::size_t count, std::size_t) {
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8) {
      std::uint64_t bytes;
      std::memcpy(&bytes, plane + start + i, 8);
      for (unsigned j = 0; j < 8; ++j) ++part[j % 4][bytes >> (8 * j) & 0xFF];
    }
    for (; i < count; ++i) ++part[i % 4][plane[start + i]];
  });
  add_up(part, histogram);
}

bool worth_coding(const std::uint8_t* plane, std::size_t n) noexcept {
  std::uint32_t bytes[256] = {}, nibbles[2][16] = {};
  for_each_sample(n, [&](std::size_t start, std::size_t count, std::size_t run) {
    if (run % kNoiseRunStride != 0) return;
    for (std::size_t i = 0; i < count; ++i) ++bytes[plane[start + i]];
  });
  for (unsigned v = 0; v < 256; ++v) {
    nibbles[0][v & 15] += bytes[v];
    nibbles[1][v >> 4] += bytes[v];
  }
  std::uint64_t total = 0, cost = 0;
  for (const auto& counts : nibbles) {
    entropy::Table table;
    entropy::normalize(counts, 16, table);
    cost += entropy::table_cost(counts, table);
    for (const auto count : counts) total += count;
  }
  return cost < total * (4 * 256 - 4 * 256 / 32);
}

PlaneMode choose_top_mode(const std::uint32_t (&sample)[256], DType dtype,
                          const entropy::Palette& palette) noexcept {
  std::uint64_t total = 0;
  for (const auto count : sample) total += count;
  const bool may_use_palette = has_exponent_plane(dtype);
  if (may_use_palette && palette.cost < total * 5 * 256) return PlaneMode::kPalette;
  entropy::Model model;
  std::uint64_t bytes_cost;
  entropy::make_byte_model(sample, model, bytes_cost);
  // Less than 1/32 is not worth the time.
  const std::uint64_t limit = total * (8 * 256 - 8 * 256 / 32);
  if (bytes_cost < limit && (!may_use_palette || bytes_cost < palette.cost))
    return PlaneMode::kBytes;
  return may_use_palette && palette.cost < limit ? PlaneMode::kPalette : PlaneMode::kRaw;
}

void choose_fixed_palette(const std::uint8_t* high, std::size_t n,
                          std::uint8_t (&palette)[8]) noexcept {
  std::uint32_t sample[256];
  sample_bytes(high, n, sample);
  for (int v = 0; v < 128; ++v) sample[v] += sample[v + 128];
  bool taken[128] = {};
  for (int i = 0; i < 7; ++i) {
    int best = -1;
    for (int v = 0; v < 128; ++v)
      if (!taken[v] && (best < 0 || sample[v] > sample[best])) best = v;
    taken[best] = true;
    palette[i] = static_cast<std::uint8_t>(best);
  }
  palette[7] = 0;
}

}  // namespace snug::codec
