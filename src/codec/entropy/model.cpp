#include "codec/entropy/model.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace snug::codec::entropy {
namespace {

constexpr std::uint64_t kUniformCost = 4 * 256;  // of one symbol under a uniform table

void set_uniform(Table& table) noexcept {
  for (auto& f : table.freq) f = kFreqTotal / 16;
}

bool is_uniform(const Table& table) noexcept {
  return std::count(table.freq, table.freq + 16, kFreqTotal / 16) == 16;
}

// Stored as a 16-bit mask of the symbols in use, then freq - 1 of each.
std::size_t write_table(const Table& table, std::uint8_t* dst) noexcept {
  unsigned mask = 0;
  std::size_t used = 2;
  for (unsigned s = 0; s < 16; ++s) {
    if (table.freq[s] == 0) continue;
    mask |= 1u << s;
    dst[used++] = static_cast<std::uint8_t>(table.freq[s] - 1);
  }
  dst[0] = static_cast<std::uint8_t>(mask);
  dst[1] = static_cast<std::uint8_t>(mask >> 8);
  return used;
}

// Returns the bytes used, 0 if the table is not valid.
std::size_t read_table(const std::uint8_t* src, std::size_t num_bytes, bool may_be_uniform,
                       Table& table) noexcept {
  if (num_bytes < 2) return 0;
  const unsigned mask = src[0] | src[1] << 8;
  if (mask == 0) {
    set_uniform(table);
    return may_be_uniform ? 2 : 0;
  }
  std::size_t used = 2;
  unsigned sum = 0;
  for (unsigned s = 0; s < 16; ++s) {
    table.freq[s] = 0;
    if ((mask >> s & 1) == 0) continue;
    if (used == num_bytes) return 0;
    table.freq[s] = static_cast<std::uint16_t>(src[used++] + 1);
    sum += table.freq[s];
  }
  return sum == kFreqTotal ? used : 0;
}

}  // namespace

std::uint64_t table_cost(const std::uint32_t* counts, const Table& table) noexcept {
  std::uint64_t cost = 0;
  for (int s = 0; s < 16; ++s) cost += std::uint64_t{counts[s]} * kCost[table.freq[s]];
  return cost;
}

void normalize(const std::uint32_t* counts, int n, Table& table) noexcept {
  std::uint64_t total = 0;
  for (int s = 0; s < n; ++s) total += counts[s];
  int sum = 0;
  table = {};
  for (int s = 0; s < n; ++s) {
    if (counts[s] == 0) continue;
    const auto f = (std::uint64_t{counts[s]} * kFreqTotal + total / 2) / total;
    table.freq[s] = static_cast<std::uint16_t>(f == 0 ? 1 : f);
    sum += table.freq[s];
  }
  // Rounding left a few too many or too few: this costs least on the most frequent symbol.
  while (sum != static_cast<int>(kFreqTotal)) {
    int most = 0;
    for (int s = 1; s < n; ++s)
      if (table.freq[s] > table.freq[most]) most = s;
    const int change = sum > static_cast<int>(kFreqTotal) ? -1 : static_cast<int>(kFreqTotal) - sum;
    table.freq[most] = static_cast<std::uint16_t>(table.freq[most] + change);
    sum += change;
  }
}

Palette make_palette(const std::uint32_t (&histogram)[256]) noexcept {
  std::uint64_t total = 0;
  for (const auto count : histogram) total += count;
  Palette palette;
  std::uint32_t counts[16] = {};
  std::uint64_t inside = 0;
  std::uint8_t live[256];
  int num_live = 0;
  for (int v = 0; v < 256; ++v)
    if (histogram[v] != 0) live[num_live++] = static_cast<std::uint8_t>(v);
  while (palette.size < kMaxPalette && palette.size < num_live) {
    // Swap the commonest of the rest to the front; ties go to the smaller byte.
    int best = palette.size;
    for (int i = palette.size + 1; i < num_live; ++i)
      if (histogram[live[i]] > histogram[live[best]] ||
          (histogram[live[i]] == histogram[live[best]] && live[i] < live[best]))
        best = i;
    const std::uint32_t count = histogram[live[best]];
    if (palette.size > 0 && std::uint64_t{count} * 1024 < total) break;
    std::swap(live[palette.size], live[best]);
    palette.values[palette.size] = live[palette.size];
    counts[palette.size++] = count;
    inside += count;
  }
  // The statistics may come from a sample, so an escape is always possible.
  const auto escapes = static_cast<std::uint32_t>(total - inside);
  counts[palette.size] = escapes == 0 ? 1 : escapes;
  normalize(counts, palette.size + 1, palette.table);
  counts[palette.size] = escapes;
  palette.cost = table_cost(counts, palette.table) + std::uint64_t{escapes} * 8 * 256;
  return palette;
}

void make_byte_model(const std::uint32_t (&histogram)[256], Model& model,
                     std::uint64_t& cost) noexcept {
  model.conditional = true;
  std::uint32_t first_counts[16];
  for (int first = 0; first < 16; ++first) {
    first_counts[first] = 0;
    for (int second = 0; second < 16; ++second)
      first_counts[first] += histogram[first * 16 + second];
  }
  normalize(first_counts, 16, model.first);
  cost = table_cost(first_counts, model.first);
  for (int first = 0; first < 16; ++first) {
    Table& table = model.second[first];
    const std::uint32_t* counts = histogram + first * 16;
    set_uniform(table);
    if (first_counts[first] == 0) continue;
    const std::uint64_t uniform = first_counts[first] * kUniformCost;
    Table own;
    normalize(counts, 16, own);
    const std::uint64_t own_cost = table_cost(counts, own);
    const auto num_live = static_cast<std::uint64_t>(16 - std::count(own.freq, own.freq + 16, 0));
    if (own_cost + num_live * 8 * 256 < uniform) {
      table = own;
      cost += own_cost;
    } else {
      cost += uniform;
    }
  }
}

void write_palette(const Palette& palette, std::uint8_t* dst) noexcept {
  std::memcpy(dst, palette.values, 16);
  for (int s = 0; s < 16; ++s) dst[16 + s] = static_cast<std::uint8_t>(palette.table.freq[s]);
}

bool read_palette(const std::uint8_t* src, Palette& palette) noexcept {
  if (palette.size < 1 || palette.size > kMaxPalette) return false;
  std::memcpy(palette.values, src, 16);
  unsigned sum = 0;
  for (int s = 0; s < 16; ++s) {
    palette.table.freq[s] = src[16 + s];
    sum += src[16 + s];
    if (s >= palette.size && src[s] != 0) return false;
    if (s > palette.size && src[16 + s] != 0) return false;
  }
  return sum == kFreqTotal;
}

std::size_t write_byte_model(const Model& model, std::uint8_t* dst) noexcept {
  std::size_t used = write_table(model.first, dst);
  for (int s = 0; s < 16; ++s) {
    if (model.first.freq[s] == 0) continue;
    if (is_uniform(model.second[s])) {
      dst[used++] = 0;
      dst[used++] = 0;
    } else {
      used += write_table(model.second[s], dst + used);
    }
  }
  return used;
}

bool read_byte_model(const std::uint8_t* src, std::size_t num_bytes, Model& model) noexcept {
  model.conditional = true;
  std::size_t used = read_table(src, num_bytes, false, model.first);
  if (used == 0) return false;
  for (int s = 0; s < 16; ++s) {
    if (model.first.freq[s] == 0) {
      set_uniform(model.second[s]);
      continue;
    }
    const std::size_t more = read_table(src + used, num_bytes - used, true, model.second[s]);
    if (more == 0) return false;
    used += more;
  }
  return used == num_bytes;
}

}  // namespace snug::codec::entropy
