// cuda/byte_tables.cuh - the tables of a byte stream (docs/format.md, "Tables") as a
// decoding warp wants them, and one decoding step.
#pragma once
#include <cstddef>

#include "codec/entropy/model.h"
#include "codec/entropy/rans.h"
#include "cuda/word_ring.cuh"

namespace snug::cuda {

// Shared memory of one warp. Small, so that many warps hide each other's waits:
// second symbols take two lookups instead of one in a table four times as large. The
// first symbol's SlotTable is apart: rank | freq - 1 << 8 | symbol << 24.
struct ByteSmem {
  std::uint8_t bytes[16][256];  // of a slot, for each first symbol
  std::uint16_t second[256];    // freq - 1 | start << 8 of a byte's second symbol
  alignas(8) std::uint8_t ring[WordRing<uint2>::kRoom];
};

// Fills the 256 slots of a row with `base` + symbol, 8 slots a lane: each live symbol puts
// its distance from the one before at its first slot, running sums do the rest.
__device__ __forceinline__ void fill_slots(std::uint8_t* row, unsigned live_mask,
                                           std::uint32_t start, std::uint32_t base) {
  const unsigned lane = lane_id();
  auto* mine = reinterpret_cast<uint2*>(row) + lane;
  *mine = {0, 0};
  __syncwarp();
  if (lane < 16 && (live_mask >> lane & 1)) {
    const unsigned below = live_mask & ((1u << lane) - 1);
    row[start] = static_cast<std::uint8_t>(
        below == 0 ? lane : lane - (31 - static_cast<unsigned>(__clz(static_cast<int>(below)))));
  }
  __syncwarp();
  uint2 v = *mine;
  v.x *= 0x01010101u;
  v.y = v.y * 0x01010101u + (v.x >> 24) * 0x01010101u;
  const std::uint32_t total = v.y >> 24;
  std::uint32_t before = total;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const std::uint32_t below = __shfl_up_sync(kAll, before, d);
    if (lane >= static_cast<unsigned>(d)) before += below;
  }
  before = (before - total + base) * 0x01010101u;
  *mine = {v.x + before, v.y + before};
  __syncwarp();
}

// entropy::read_byte_model, symbol by lane; false if the bytes make no valid table.
inline __device__ __noinline__ bool read_byte_tables(const std::uint8_t* src,
                                                     std::uint32_t num_bytes, std::uint32_t first,
                                                     ByteSmem* smem) {
  const unsigned lane = lane_id();
  if (num_bytes > codec::entropy::kMaxByteTableBytes) return false;
  std::uint8_t* table = smem->ring;  // words come later
  for (std::uint32_t i = lane; i < num_bytes; i += kWarp) table[i] = __ldg(src + i);
  __syncwarp();
  std::uint32_t used = 0, first_freq = 0;
#pragma unroll 1
  for (unsigned row = 0; row < 17; ++row) {
    // Rows that no first symbol leads to are neither stored nor used.
    if (row > 0 && __shfl_sync(kAll, first_freq, static_cast<int>(row - 1)) == 0) continue;
    if (num_bytes - used < 2) return false;
    const unsigned mask = table[used] | table[used + 1] << 8;
    used += 2;
    const auto num_live = static_cast<std::uint32_t>(__popc(mask));
    if ((mask == 0 && row == 0) || num_bytes - used < num_live) return false;
    std::uint32_t freq = 0;
    if (lane < 16) {
      if (mask == 0)
        freq = codec::entropy::kFreqTotal / 16;
      else if (mask >> lane & 1)
        freq = table[used + static_cast<std::uint32_t>(__popc(mask & ((1u << lane) - 1)))] + 1u;
    }
    used += num_live;
    std::uint32_t end = freq;
#pragma unroll
    for (int d = 1; d < 16; d *= 2) {
      const std::uint32_t below = __shfl_up_sync(kAll, end, d);
      if (lane >= static_cast<unsigned>(d)) end += below;
    }
    if (__shfl_sync(kAll, end, 15) != codec::entropy::kFreqTotal) return false;
    const std::uint32_t start = end - freq;
    const unsigned live_mask = mask == 0 ? 0xFFFFu : mask;
    std::uint8_t* slots = smem->bytes[row == 0 ? 0 : row - 1];
    fill_slots(slots, live_mask, start, row == 0 ? 0 : 16 * (row - 1));
    if (row > 0) {
      if (lane < 16)
        smem->second[16 * (row - 1) + lane] =
            static_cast<std::uint16_t>(((freq - 1) & 255) | start << 8);
      continue;
    }
    first_freq = freq;
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) {
      const std::uint32_t slot = i * kWarp + lane, symbol = slots[slot];
      const std::uint32_t f = __shfl_sync(kAll, freq, static_cast<int>(symbol));
      const std::uint32_t s = __shfl_sync(kAll, start, static_cast<int>(symbol));
      store_shared(first + 4 * slot, (slot - s) | (f - 1) << 8 | symbol << 24);
    }
    __syncwarp();
  }
  __syncwarp();
  return used == num_bytes;
}

// One step of one lane: a byte. `slots` and `tables` are the addresses of a SlotTable
// and a ByteSmem.
__device__ __forceinline__ std::uint32_t decode_byte(std::uint32_t& x, std::uint32_t slots,
                                                     std::uint32_t tables, std::uint32_t& next,
                                                     unsigned lanes_below) {
  constexpr auto kBytes = static_cast<std::uint32_t>(offsetof(ByteSmem, bytes)),
                 kSecond = static_cast<std::uint32_t>(offsetof(ByteSmem, second));
  const std::uint32_t a = load_shared_u32((x << 2 & 0x3FC) | slots);
  std::uint32_t high = x >> 8;
  x = __dp4a(a, 0x100u, 0u) * high + (high + (a & 255));
  const std::uint32_t slot = x & 255;
  const std::uint32_t byte = load_shared_u8(tables + kBytes + (a >> 16) + slot);
  const std::uint32_t b = load_shared_u16(tables + kSecond + 2 * byte);
  high = x >> 8;
  x = (b & 255) * high + (high + slot) - (b >> 8);
  take_word(x, next, lanes_below);
  return byte;
}

}  // namespace snug::cuda
