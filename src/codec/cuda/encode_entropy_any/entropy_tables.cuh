// codec/cuda/encode_entropy_any/entropy_tables.cuh - codec/entropy/model.h for one warp: the same
// integer decisions, a symbol a lane.
#pragma once
#include "codec/cuda/frame/device_frame.cuh"
#include "codec/entropy/model.h"

namespace snug::cuda {

struct CostTable {
  u16 of_freq[257];
};
constexpr CostTable make_cost_table() {
  CostTable table{};
  const auto costs = codec::entropy::make_costs();
  for (int f = 0; f <= 256; ++f) table.of_freq[f] = costs[static_cast<std::size_t>(f)];
  return table;
}
static __device__ const CostTable kDeviceCost = make_cost_table();

// Sum and maximum over the 16 lanes of a half-warp.
__device__ __forceinline__ u32 half_sum(u32 v) {
  for (int d = 8; d > 0; d /= 2) v += __shfl_xor_sync(kAllLanes, v, d);
  return v;
}
__device__ __forceinline__ u32 half_max(u32 v) {
  for (int d = 8; d > 0; d /= 2) v = max(v, __shfl_xor_sync(kAllLanes, v, d));
  return v;
}

// entropy::normalize of two tables, one in each half-warp: takes the lane's count and returns its
// frequency. A half without counts gets zeros.
inline __device__ __noinline__ u32 normalize_half(u32 count, u32 total) {
  constexpr i32 kTotal = codec::entropy::kFreqTotal;
  const u32 symbol = lane_id() & 15;
  u32 freq = 0;
  if (count != 0) freq = max((count * kTotal + total / 2) / total, 1u);
  i32 sum = static_cast<i32>(half_sum(freq));
  while (__any_sync(kAllLanes, total != 0 && sum != kTotal)) {
    const u32 most = half_max(freq << 4 | (15 - symbol));
    if (total != 0 && sum != kTotal) {
      const i32 change = sum > kTotal ? -1 : kTotal - sum;
      if (15 - symbol == (most & 15)) freq = static_cast<u32>(static_cast<i32>(freq) + change);
      sum += change;
    }
  }
  return freq;
}

// The same for one table in the lower half-warp; counts of the upper one are zero.
__device__ __forceinline__ u32 normalize_one(u32 count) {
  constexpr i32 kTotal = codec::entropy::kFreqTotal;
  const u32 total = __reduce_add_sync(kAllLanes, count);
  u32 freq = 0;
  if (count != 0) freq = max((count * kTotal + total / 2) / total, 1u);
  auto sum = static_cast<i32>(__reduce_add_sync(kAllLanes, freq));
  while (sum != kTotal) {
    // The most frequent symbol, of equals the first.
    const u32 most = __reduce_max_sync(kAllLanes, freq << 5 | (31 - lane_id()));
    const i32 change = sum > kTotal ? -1 : kTotal - sum;
    if (31 - lane_id() == (most & 31)) freq = static_cast<u32>(static_cast<i32>(freq) + change);
    sum += change;
  }
  return freq;
}

__device__ __forceinline__ u32 cost_of(u32 count, u32 freq) {
  return count * kDeviceCost.of_freq[freq];
}

// Whether coding a plane pays, from counts of its low (lanes 0-15) and high nibbles (16-31).
inline __device__ __noinline__ bool worth_coding(u32 count) {
  const u32 total = half_sum(count);
  const u32 freq = normalize_half(count, total);
  const u32 cost = __reduce_add_sync(kAllLanes, cost_of(count, freq));
  return cost < __reduce_add_sync(kAllLanes, count) * (4 * 256 - 4 * 256 / 32);
}

// A quick test that coding a plane cannot pay: its collision entropy, a lower bound of the cost, is
// too high. True for nearly all noise.
__device__ __forceinline__ bool is_surely_noise(u32 count) {
  const bool low = lane_id() < 16;
  const u64 total = __reduce_add_sync(kAllLanes, low ? count : 0);
  const u64 a = __reduce_add_sync(kAllLanes, low ? count * count : 0);
  const u64 b = __reduce_add_sync(kAllLanes, low ? 0 : count * count);
  // worth_coding() requires less than 7.75 bits for two symbols: 2^7.75 < 216.
  return a * b * 216 <= total * total * total * total;
}

// entropy::Palette; value and freq belong to the lane's symbol (lanes 0-15).
struct DevicePalette {
  u32 size;
  u32 value;
  u32 freq;
  u32 cost;
  u32 total;
  bool is_noise;  // nothing but cost and total is set
};

// Needs kPaletteListWords of shared memory at `list` beside the histogram.
inline constexpr unsigned kPaletteListWords = 256 + 16;
inline __device__ __noinline__ DevicePalette make_palette(const u32* histogram, u32* list) {
  const unsigned lane = lane_id();
  u32 keys[8];  // count and, for ties, the smaller byte first
  u32 total = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const u32 count = histogram[i * kWarpSize + lane];
    total += count;
    keys[i] = count << 8 | (255 - (i * kWarpSize + lane));
  }
  total = __reduce_add_sync(kAllLanes, total);
  u32 num_keys = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const bool common = u64{keys[i] >> 8} * 1024 >= total && keys[i] >> 8 != 0;
    const unsigned mask = __ballot_sync(kAllLanes, common);
    if (common) list[num_keys + __popc(mask & ((1u << lane) - 1))] = keys[i];
    num_keys += __popc(mask);
  }
  __syncwarp();
  DevicePalette palette{};
  palette.total = total;
  u32 key = 0;
  if (num_keys <= kWarpSize) {
    // Sorts by rank: the number of larger keys.
    u32* sorted = list + 256;
    const u32 mine = lane < num_keys ? list[lane] : 0;
    u32 rank = lane < num_keys ? 0 : kWarpSize;
#pragma unroll 8
    for (u32 k = 0; k < num_keys; ++k) rank += list[k] > mine;
    if (lane < 16) sorted[lane] = 0;
    __syncwarp();
    if (rank < codec::entropy::kMaxPalette) sorted[rank] = mine;
    __syncwarp();
    if (lane < codec::entropy::kMaxPalette) key = sorted[lane];
  } else {
    // Many, as in noise: no code of single bytes costs less than their collision entropy;
    // 2^7.75 < 216.
    u32 squares = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) squares += (keys[i] >> 8) * (keys[i] >> 8);
    squares = __reduce_add_sync(kAllLanes, squares);
    if (u64{squares} * 216 <= u64{total} * total) {
      palette.cost = total * 8 * 256;
      palette.is_noise = true;
      return palette;
    }
    // The largest remaining key, repeatedly.
#pragma unroll 1
    for (unsigned k = 0; k < codec::entropy::kMaxPalette; ++k) {
      u32 most = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) most = max(most, keys[i]);
      most = __reduce_max_sync(kAllLanes, most);
      if (lane == k) key = most;
#pragma unroll
      for (int i = 0; i < 8; ++i) keys[i] = keys[i] == most ? 0 : keys[i];
    }
  }
  palette.size = min(num_keys, static_cast<u32>(codec::entropy::kMaxPalette));
  palette.value = key != 0 ? 255 - (key & 255) : 0;
  const u32 escapes = total - __reduce_add_sync(kAllLanes, key >> 8);
  u32 count = key >> 8;
  if (lane == palette.size) count = max(escapes, 1u);
  palette.freq = normalize_one(count);
  if (lane == palette.size) count = escapes;
  palette.cost = __reduce_add_sync(kAllLanes, lane < 16 ? cost_of(count, palette.freq) : 0) +
                 escapes * 8 * 256;
  __syncwarp();
  return palette;
}

// A byte model: row 0 is the table of first symbols, row 1 + s that of second ones after s.
struct alignas(16) ByteModel {
  u16 freq[17][16];
  u16 start[17][16];
  u16 keys[17][16];  // scratch: frequency << 4 | 15 - symbol
};

// entropy::make_byte_model, a row a lane; returns its cost. Loops are unrolled little: code that
// runs once a block should leave the instruction cache to the coding loops.
inline __device__ __noinline__ u32 make_byte_model(const u32* histogram, ByteModel& model) {
  constexpr i32 kTotal = codec::entropy::kFreqTotal;
  const unsigned lane = lane_id(), row = min(lane, 16u);
  // The first symbol of the lane's row; lane 0 has the row of first symbols, lanes above 16 none.
  // Rows start at different symbols to avoid bank conflicts.
  const unsigned first = (lane - 1) & 15;
  const bool has_seconds = lane - 1 < 16;
  u32 row_total = 0;
#pragma unroll 4
  for (unsigned i = 0; i < 16; ++i) row_total += histogram[16 * first + ((i + first) & 15)];
  if (!has_seconds) row_total = 0;
  const u32 all = __reduce_add_sync(kAllLanes, row_total);
  const u32 total = lane == 0 ? all : row_total;
  const auto symbol_at = [&](unsigned i) { return (i + first) & 15; };
  const auto count_at = [&](unsigned i) {
    const u32 of_first = __shfl_sync(kAllLanes, row_total, static_cast<int>(1 + ((i + 15) & 15)));
    if (lane == 0) return of_first;
    return has_seconds ? histogram[16 * first + symbol_at(i)] : 0;
  };
  // entropy::normalize.
  const u32 divisor = max(total, 1u), inverse = 0xFFFFFFFFu / divisor;
  i32 sum = 0;
#pragma unroll 4
  for (unsigned i = 0; i < 16; ++i) {
    const u32 count = count_at(i), dividend = count * kTotal + total / 2;
    // At most 2^25 / divisor: the product is at most one too small.
    u32 freq = __umulhi(dividend, inverse);
    if (dividend - freq * divisor >= divisor) ++freq;
    freq = count == 0 ? 0 : max(freq, 1u);
    sum += static_cast<i32>(freq);
    if (lane < 17)
      model.keys[row][symbol_at(i)] = static_cast<u16>(freq << 4 | (15 - symbol_at(i)));
  }
  __syncwarp();
  if (total == 0) sum = kTotal;
#pragma unroll 1
  while (__any_sync(kAllLanes, sum != kTotal)) {
    u32 most = 0;  // the most frequent symbol, of equals the first
#pragma unroll 8
    for (unsigned i = 0; i < 16; ++i) most = max(most, u32{model.keys[row][symbol_at(i)]});
    __syncwarp();  // lanes without a row read the last one
    if (sum != kTotal) {
      const i32 change = sum > kTotal ? -1 : kTotal - sum;
      model.keys[row][15 - (most & 15)] = static_cast<u16>(most + (static_cast<u32>(change) << 4));
      sum += change;
    }
    __syncwarp();
  }
  u32 cost = 0, live = 0;
#pragma unroll 4
  for (unsigned i = 0; i < 16; ++i) {
    const u32 freq = model.keys[row][symbol_at(i)] >> 4, count = count_at(i);
    if (total != 0) cost += cost_of(count, freq);
    live += freq != 0;
  }
  const u32 uniform = total * 4 * 256;
  const bool pays = lane == 0 || (total != 0 && cost + live * 8 * 256 < uniform);
  if (!pays) cost = uniform;
  u32 start = 0;
#pragma unroll 4
  for (unsigned s = 0; s < 16; ++s) {
    const u32 freq = pays ? u32{model.keys[row][s]} >> 4 : codec::entropy::kFreqTotal / 16;
    if (lane < 17) {
      model.freq[row][s] = static_cast<u16>(freq);
      model.start[row][s] = static_cast<u16>(start);
    }
    start += freq;
  }
  __syncwarp();
  return __reduce_add_sync(kAllLanes, lane < 17 ? cost : 0);
}

}  // namespace snug::cuda
