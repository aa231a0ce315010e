// codec/cuda/decode_entropy_bytes/byte_rows.cuh - opens the section of a byte plane
// (docs/format.md, "Entropy blocks"); decodes by row tables, one lookup a symbol, if rows are few.
#pragma once
#include "codec/cuda/decode_entropy_exponent/palette_section.cuh"
#include "codec/entropy/model.h"
#include "codec/sections.h"

namespace snug::cuda {

// An entry of a row of second symbols is rank | freq - 1 << 8 | symbol << 16, one of first
// symbols rank | freq - 1 << 8 | symbol << 20 | row << 24: the row's address / 1024.
inline constexpr unsigned kRowBytes = 1024;

// Tables of one warp: first symbols, and rows of second ones. With more rows, byte_tables.cuh uses
// the same room.
inline constexpr unsigned kMaxRows = 4;
struct alignas(kRowBytes) RowTables {
  u32 first[256];
  u32 rows[kMaxRows][256];
};

// Room for the head of a section, then for its words.
inline constexpr u32 kByteHeadBytes = 16 * kWarpSize;
static_assert(codec::kTableOffset + align16(codec::entropy::kMaxByteTableBytes) <= kByteHeadBytes);

struct ByteSection {
  u32 num_words;
  u32 table_bytes;
  u32 words_at;
  u32 end;  // of the section
};

// The lane's state, from the head of a section. In a register it would spill while tables are read.
__device__ __forceinline__ u32 stored_state(u32 head_room) {
  return load_shared_u32(head_room + codec::kStatesOffset + 4 * lane_id());
}

// Opens the section at `at` with one load a lane: leaves its head in shared memory and adds the
// checksum terms of everything before the words. False if it is not valid.
__device__ __forceinline__ bool open_byte_section(const u8* payload, u32 at, u32 num_bytes, u32 n,
                                                  u32 head_room, u64& sum, ByteSection& section) {
  const unsigned lane = lane_id();
  if (num_bytes < at || num_bytes - at < codec::kTableOffset) return false;
  const uint4 vec =
      __ldg(reinterpret_cast<const uint4*>(payload + at) + min(lane, (num_bytes - at) / 16 - 1));
  __syncwarp();
  store_shared(head_room + 16 * lane, vec);
  __syncwarp();
  const uint4 head = load_shared_b128(head_room);
  section.num_words = head.x;
  section.table_bytes = head.z & 0xFFFF;
  section.words_at = at + static_cast<u32>(codec::kTableOffset + align16(section.table_bytes));
  if (head.w != 0 || head.z >> 16 != 0 || head.y != 0 || head.x > codec::padded_symbols(n) ||
      section.table_bytes > codec::entropy::kMaxByteTableBytes)
    return false;
  section.end = static_cast<u32>(align16(section.words_at + 2 * head.x));
  if (lane < (section.words_at - at) / 16) sum += checksum_term(vec, at / 16 + lane);
  return section.end <= num_bytes;
}

// The stored tables, one a lane; lane 0 has the table of first symbols.
struct StoredTables {
  u32 num_rows;  // of second symbols
  u32 mask;
  u32 freqs;  // address
};

__device__ __forceinline__ bool list_tables(u32 table, u32 num_bytes, StoredTables& list) {
  u32 used = 0;
  list = {};
#pragma unroll 1
  for (u32 i = 0; i <= list.num_rows; ++i) {
    if (num_bytes - used < 2) return false;
    const u32 mask = load_shared_u8(table + used) | load_shared_u8(table + used + 1) << 8;
    const auto live = static_cast<u32>(__popc(mask));
    used += 2;
    if ((mask == 0 && i == 0) || num_bytes - used < live) return false;
    if (i == 0) list.num_rows = live;
    if (lane_id() == i) {
      list.mask = mask;
      list.freqs = table + used;
    }
    used += live;
  }
  return used == num_bytes;
}

// The uniform row, which warps may share.
__device__ __forceinline__ void fill_uniform_row(u32 row) {
#pragma unroll
  for (unsigned i = 0; i < 8; ++i) {
    const u32 slot = kWarpSize * i + lane_id();
    store_shared(row + 4 * slot, (slot & 15) | 15u << 8 | slot >> 4 << 16);
  }
}

enum class RowsFit : u8 { kInvalid, kTooMany, kFit };

// Builds the tables of the section whose head is at head_room: first symbols at `first`, at most
// max_rows rows from `rows` on, all at multiples of 1024. `uniform` is the uniform row, or 0 to
// build one. Uses 64 bytes behind the head.
inline __device__ __noinline__ RowsFit read_byte_rows(u32 head_room, u32 table_bytes, u32 first,
                                                      u32 rows, u32 max_rows, u32 uniform) {
  const unsigned lane = lane_id(), below = (1u << lane) - 1;
  StoredTables stored;
  if (!list_tables(head_room + codec::kTableOffset, table_bytes, stored)) return RowsFit::kInvalid;
  const bool is_row = lane >= 1 && lane <= stored.num_rows;
  const unsigned own = __ballot_sync(kAllLanes, is_row && stored.mask != 0),
                 shared = __ballot_sync(kAllLanes, is_row && stored.mask == 0);
  const auto num_own = static_cast<u32>(__popc(own));
  const bool fills_uniform = uniform == 0 && shared != 0;
  if (num_own + (fills_uniform ? 1 : 0) > max_rows) return RowsFit::kTooMany;
  if (fills_uniform) {
    uniform = rows + kRowBytes * num_own;
    fill_uniform_row(uniform);
  }
  const u32 place = stored.mask == 0 ? uniform : rows + kRowBytes * __popc(own & below);
  const u32 first_mask = __shfl_sync(kAllLanes, stored.mask, 0);
  const u32 place_of_symbol =
      __shfl_sync(kAllLanes, place, static_cast<int>((1 + __popc(first_mask & below)) & 31));
#pragma unroll 1
  for (unsigned left = own | 1; left != 0; left &= left - 1) {
    const int i = __ffs(static_cast<int>(left)) - 1;
    const u32 mask = __shfl_sync(kAllLanes, stored.mask, i),
              freqs = __shfl_sync(kAllLanes, stored.freqs, i),
              row = i == 0 ? first : __shfl_sync(kAllLanes, place, i);
    const bool live = lane < 16 && (mask >> lane & 1) != 0;
    const u32 freq = live ? load_shared_u8(freqs + __popc(mask & below)) + 1 : 0;
    const u32 end = warp_inclusive_sum<16>(freq);
    if (__shfl_sync(kAllLanes, end, 15) != codec::entropy::kFreqTotal) return RowsFit::kInvalid;
    const u32 symbol = i == 0 ? lane << 20 | place_of_symbol / kRowBytes << 24 : lane << 16;
    fill_slot_entries<8>(row, head_room + kByteHeadBytes, (freq - 1) << 8 | symbol, end - freq,
                         live);
  }
  __syncwarp();
  return RowsFit::kFit;
}

// Removes a symbol from the state. Dot products extract the fields of the entry: the multiply pipe
// has time, the logic pipe less. In assembly, because the compiler would use a logical operation.
__device__ __forceinline__ void take_symbol(u32& x, u32 entry) {
  u32 rank;
  asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(rank) : "r"(entry), "r"(1), "r"(0));
  x = __dp4a(entry, 0x100u, 1u) * (x >> 8) + rank;
}

// One step of one lane: a byte, which is byte 2 of the result.
__device__ __forceinline__ u32 decode_row_byte(u32& x, u32 first, u32& next, unsigned lanes_below) {
  const u32 a = load_slot(x, first);
  take_symbol(x, a);
  u32 at;  // the slot's offset in the row | the row's address
  asm("lop3.b32 %0, %1, %2, 0x3FF, 0xE4;" : "=r"(at) : "r"(x << 2), "r"(a >> 14));
  const u32 b = load_shared_u32(at);
  take_symbol(x, b);
  take_word(x, next, lanes_below);
  return a | b;
}

}  // namespace snug::cuda
