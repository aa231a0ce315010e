// cuda/plane_section.cuh - what a warp that codes planes keeps in shared and scratch
// memory, and how a coded plane becomes a section of the payload.
#pragma once
#include "codec/sections.h"
#include "cuda/entropy_tables.cuh"
#include "cuda/symbol_coder.cuh"

namespace snug::cuda {

// Scratch of one warp: coded planes, then the words of one of them, which are
// written from the end, and its escapes, likewise.
__host__ __device__ constexpr std::uint64_t sections_room(unsigned width, int log2_block) {
  return (std::uint64_t{width} << log2_block) + 1024;
}
__host__ __device__ constexpr std::uint64_t words_scratch(unsigned width, int log2_block) {
  return (std::uint64_t{width} << log2_block) + 2048;
}
// Only exponents, of wider types, have escapes.
__host__ __device__ constexpr std::uint64_t escapes_scratch(unsigned width, int log2_block) {
  return width == 1 ? 0 : std::uint64_t{1} << log2_block;
}

struct alignas(1024) PlaneSmem {
  std::uint8_t words[kWordBuffer];  // a multiple of 1024: the histogram is aligned
  union {
    uint2 lut[16 + 256];
    struct {
      std::uint32_t histogram[256];
      std::uint32_t list[kPaletteListWords];
    };
  };
  std::uint32_t nibbles[7][2][16];
  ByteModel model;
  std::uint8_t table[codec::entropy::kMaxByteTableBytes + 14];
};

// The block, and what one warp has made of it so far. Sections take their room as
// the CPU's encoder takes it: who runs out of it gives up.
struct PlaneOut {
  std::uint8_t* sections;  // scratch
  std::uint8_t* words_end;
  std::uint8_t* escapes_end;
  std::uint32_t raw_bytes;  // of raw planes, which come first
  std::uint32_t used;
  std::uint32_t room;

  __device__ std::uint8_t* take(std::uint64_t num_bytes) {
    if (num_bytes > room - used) return nullptr;
    std::uint8_t* at = sections + (used - raw_bytes);
    used += static_cast<std::uint32_t>(num_bytes);
    return at;
  }
};

// entropy::write_byte_model, symbol by lane; returns the bytes used.
inline __device__ __noinline__ std::uint32_t write_byte_table(PlaneSmem* smem) {
  const unsigned lane = lane_id();
  std::uint32_t used = 0;
#pragma unroll 1
  for (unsigned row = 0; row < 17; ++row) {
    if (row > 0 && smem->model.freq[0][row - 1] == 0) continue;
    const std::uint32_t freq = lane < 16 ? smem->model.freq[row][lane] : 0;
    unsigned mask = __ballot_sync(kAll, freq != 0);
    if (row > 0 && __all_sync(kAll, lane >= 16 || freq == codec::entropy::kFreqTotal / 16))
      mask = 0;
    if (lane < 2) smem->table[used + lane] = static_cast<std::uint8_t>(mask >> (8 * lane));
    used += 2;
    if (mask >> lane & 1)
      smem->table[used + __popc(mask & ((1u << lane) - 1))] = static_cast<std::uint8_t>(freq - 1);
    used += __popc(mask);
  }
  __syncwarp();
  return used;
}

// Header, states, table, words and escapes of a section, one after the other.
inline __device__ __noinline__ bool write_section(const PlaneSmem* smem, std::uint32_t table_bytes,
                                                  std::uint32_t palette_size, CodedStream coded,
                                                  PlaneOut& out) {
  const unsigned lane = lane_id();
  const std::uint32_t words_at =
      static_cast<std::uint32_t>(codec::kTableOffset + align16(table_bytes));
  const std::uint32_t escapes_at = words_at + 2 * coded.num_words;
  const auto total = static_cast<std::uint32_t>(align16(escapes_at + coded.num_escapes));
  std::uint8_t* at = out.take(total);
  if (at == nullptr) return false;
  auto* head = reinterpret_cast<std::uint32_t*>(at);
  if (lane == 0)
    *reinterpret_cast<uint4*>(at) = {coded.num_words, coded.num_escapes,
                                     table_bytes | palette_size << 16, 0};
  head[4 + lane] = coded.state;
  for (std::uint32_t i = lane; i < align16(table_bytes); i += kWarp)
    at[codec::kTableOffset + i] = i < table_bytes ? smem->table[i] : 0;
  // Words are at even addresses: whole registers, or registers shifted by half.
  const std::uint8_t* words = out.words_end - 2 * coded.num_words;
  const std::uint32_t odd =
      static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(words) & 2) * 8;
  const auto* aligned = reinterpret_cast<const std::uint32_t*>(words - odd / 8);
  const std::uint32_t num_pairs = coded.num_words / 2;
  // All loads of a batch are under way before the first store.
  constexpr std::uint32_t kBatch = 8;
#pragma unroll 1
  for (std::uint32_t base = lane; base < num_pairs; base += kBatch * kWarp) {
    std::uint32_t pairs[kBatch];
#pragma unroll
    for (std::uint32_t u = 0; u < kBatch; ++u) {
      const std::uint32_t i = min(base + u * kWarp, num_pairs - 1);
      pairs[u] = odd == 0 ? aligned[i] : __funnelshift_r(aligned[i], aligned[i + 1], 16);
    }
#pragma unroll
    for (std::uint32_t u = 0; u < kBatch; ++u)
      if (base + u * kWarp < num_pairs) head[words_at / 4 + base + u * kWarp] = pairs[u];
  }
  if (lane == 0 && coded.num_words % 2 != 0)
    reinterpret_cast<std::uint16_t*>(at + words_at)[coded.num_words - 1] =
        reinterpret_cast<const std::uint16_t*>(words)[coded.num_words - 1];
  for (std::uint32_t i = lane; i < coded.num_escapes; i += kWarp)
    at[escapes_at + i] = out.escapes_end[static_cast<std::int64_t>(i) - coded.num_escapes];
  for (std::uint32_t i = escapes_at + coded.num_escapes + lane; i < total; i += kWarp) at[i] = 0;
  __syncwarp();
  return true;
}

}  // namespace snug::cuda
