// codec/cuda/decode_entropy_bytes/byte_tables.cuh - compact tables of a byte stream
// (docs/format.md, "Tables") with any number of rows, and one decoding step.
#pragma once
#include "codec/cuda/decode_entropy_exponent/word_ring.cuh"
#include "codec/entropy/model.h"
#include "codec/sections.h"

namespace snug::cuda {

// Shared memory of one warp that decodes streams: the first symbol's SlotTable
// (rank | freq - 1 << 8 | symbol << 24), a byte for each slot of each first symbol's row, and the
// words with a table behind them. Small, so that many warps hide latency: second symbols take two
// lookups, instead of one in a table four times as large.
struct StreamRoom {
  static constexpr u32 kBytes = 16 * 256;
  static constexpr u32 kSecondAt = WordRing<uint2>::kRoom;
  static constexpr u32 kSmall = 1536;  // or three chunks of words, see PaletteStream
  static_assert(kSmall >= kSecondAt + 256 * sizeof(u16));
  static_assert(kSmall >= WordRing<uint4>::kRoom);
  u32 slots;  // addresses
  u32 bytes;
  u32 ring;  // kSmall bytes, aligned for vectors

  // freq - 1 | start << 8 of a byte's second symbol
  __device__ __forceinline__ u32 second() const { return ring + kSecondAt; }
};

// Fills the 256 slots of a row with `base` + symbol, 8 slots a lane: each live symbol stores its
// distance from the previous one at its first slot, and a scan sums them up.
__device__ __forceinline__ void fill_slots(u32 row, unsigned live_mask, u32 start, u32 base) {
  const unsigned lane = lane_id();
  const u32 mine = row + 8 * lane;
  store_shared(mine, uint2{0, 0});
  __syncwarp();
  if (lane < 16 && (live_mask >> lane & 1)) {
    const unsigned below = live_mask & ((1u << lane) - 1);
    store_shared_u8(
        row + start,
        below == 0 ? lane : lane - (31 - static_cast<unsigned>(__clz(static_cast<int>(below)))));
  }
  __syncwarp();
  uint2 v = load_shared_b64(mine);
  v.x *= 0x01010101u;
  v.y = v.y * 0x01010101u + (v.x >> 24) * 0x01010101u;
  const u32 total = v.y >> 24;
  const u32 before = (warp_inclusive_sum(total) - total + base) * 0x01010101u;
  store_shared(mine, uint2{v.x + before, v.y + before});
  __syncwarp();
}

// entropy::read_byte_model, a symbol a lane, of a section that open_byte_section has opened in the
// ring; false if the bytes are no valid table.
inline __device__ __noinline__ bool read_byte_tables(u32 num_bytes, StreamRoom room) {
  const unsigned lane = lane_id();
  const u32 table = room.ring + codec::kTableOffset;  // words overwrite it later
  u32 used = 0, first_freq = 0;
#pragma unroll 1
  for (unsigned row = 0; row < 17; ++row) {
    // Rows without a first symbol are neither stored nor used.
    if (row > 0 && __shfl_sync(kAllLanes, first_freq, static_cast<int>(row - 1)) == 0) continue;
    if (num_bytes - used < 2) return false;
    const unsigned mask = load_shared_u8(table + used) | load_shared_u8(table + used + 1) << 8;
    used += 2;
    const auto num_live = static_cast<u32>(__popc(mask));
    if ((mask == 0 && row == 0) || num_bytes - used < num_live) return false;
    u32 freq = 0;
    if (lane < 16) {
      if (mask == 0)
        freq = codec::entropy::kFreqTotal / 16;
      else if (mask >> lane & 1)
        freq = load_shared_u8(table + used + __popc(mask & ((1u << lane) - 1))) + 1;
    }
    used += num_live;
    const u32 end = warp_inclusive_sum<16>(freq);
    if (__shfl_sync(kAllLanes, end, 15) != codec::entropy::kFreqTotal) return false;
    const u32 start = end - freq;
    const unsigned live_mask = mask == 0 ? 0xFFFFu : mask;
    const u32 slots = room.bytes + 256 * (row == 0 ? 0 : row - 1);
    fill_slots(slots, live_mask, start, row == 0 ? 0 : 16 * (row - 1));
    if (row > 0) {
      if (lane < 16)
        store_shared_u16(room.second() + 2 * (16 * (row - 1) + lane),
                         ((freq - 1) & 255) | start << 8);
      continue;
    }
    first_freq = freq;
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) {
      const u32 slot = i * kWarpSize + lane, symbol = load_shared_u8(slots + slot);
      const u32 f = __shfl_sync(kAllLanes, freq, static_cast<int>(symbol));
      const u32 s = __shfl_sync(kAllLanes, start, static_cast<int>(symbol));
      store_shared(room.slots + 4 * slot, (slot - s) | (f - 1) << 8 | symbol << 24);
    }
    __syncwarp();
  }
  __syncwarp();
  return used == num_bytes;
}

// One step of one lane: a byte.
__device__ __forceinline__ u32 decode_byte(u32& x, const StreamRoom& room, u32& next,
                                           unsigned lanes_below) {
  const u32 a = load_shared_u32((x << 2 & 0x3FC) | room.slots);
  u32 high = x >> 8;
  x = __dp4a(a, 0x100u, 1u) * high + (a & 255);
  const u32 slot = x & 255;
  const u32 byte = load_shared_u8(room.bytes + (a >> 16) + slot);
  const u32 b = load_shared_u16(room.second() + 2 * byte);
  high = x >> 8;
  x = (b & 255) * high + (high + slot) - (b >> 8);
  take_word(x, next, lanes_below);
  return byte;
}

}  // namespace snug::cuda
