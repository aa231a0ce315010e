// codec/cuda/encode_entropy_any/plane_section.cuh - shared and scratch memory of a warp that codes
// planes, and how a coded plane becomes a section of the payload.
#pragma once
#include "codec/cuda/encode_entropy_any/entropy_tables.cuh"
#include "codec/cuda/encode_entropy_any/symbol_coder.cuh"
#include "codec/sections.h"

namespace snug::cuda {

// Scratch memory of one block: a list of sections, the sections from the end down, and escapes from
// the end down.
inline constexpr u32 kSectionListBytes = 256;
__host__ __device__ constexpr u64 sections_room(unsigned width, int log2_block) {
  return (u64{width} << log2_block) + 4096;
}
// Only exponents of wider types have escapes.
__host__ __device__ constexpr u64 escapes_scratch(unsigned width, int log2_block) {
  return width == 1 ? 0 : u64{1} << log2_block;
}
__host__ __device__ constexpr u64 block_scratch(unsigned width, int log2_block) {
  return kSectionListBytes + sections_room(width, log2_block) + escapes_scratch(width, log2_block);
}

// A coded plane in scratch memory: contiguous header, states, table and words from an even address
// on. Its escapes are elsewhere.
struct Section {
  const u8* start;
  u32 num_bytes;
  u32 num_escapes;

  __device__ u32 payload_bytes() const {
    return static_cast<u32>(align16(num_bytes + num_escapes));
  }
};

// The ring that feeds values to the coder.
inline constexpr u32 kRingBytes = 2048;

// At a multiple of kPlaneSmemAlign: one logical operation computes an address in the histogram.
inline constexpr u32 kPlaneSmemAlign = 1024;
struct alignas(16) PlaneSmem {
  union {
    uint2 lut[16 + 256];
    struct {
      u32 histogram[256];
      u32 list[kPaletteListWords];
    };
  };
  union {
    alignas(16) u8 words[kWordBuffer];
    ByteModel model;
  };
  union {
    alignas(16) u8 ring[kRingBytes];
    u32 nibbles[7][2][16];
  };
  u8 table[codec::entropy::kMaxByteTableBytes + 14];
};

// What a warp has made of a block so far. It counts room as the CPU's encoder does, and gives up
// where that does.
struct PlaneOut {
  PlaneSmem* smem;
  Section* sections;  // the list, in scratch memory
  u8* sections_end;   // where the next section ends
  u8* escapes_end;
  u32 raw_bytes;  // of raw planes, which come first
  u32 used;
  u32 room;
  u32 num_sections;

  __device__ bool add(const Section& section) {
    if (section.payload_bytes() > room - used) return false;
    used += section.payload_bytes();
    if (lane_id() == 0) sections[num_sections] = section;
    ++num_sections;
    sections_end =
        const_cast<u8*>(section.start - reinterpret_cast<std::uintptr_t>(section.start) % 16);
    return true;
  }
};

// entropy::write_byte_model, a row a lane; returns the bytes used.
inline __device__ __noinline__ u32 write_byte_table(PlaneSmem* smem) {
  const unsigned lane = lane_id();
  const bool has_row = lane == 0 || (lane < 17 && smem->model.freq[0][lane - 1] != 0);
  const u16* freq = smem->model.freq[min(lane, 16u)];
  unsigned mask = 0;
  bool uniform = lane != 0;
#pragma unroll 4
  for (int i = 0; i < 16; ++i) {
    if (freq[i] != 0) mask |= 1u << i;
    uniform = uniform && freq[i] == codec::entropy::kFreqTotal / 16;
  }
  if (uniform) mask = 0;
  const u32 num_bytes = has_row ? 2 + static_cast<u32>(__popc(mask)) : 0;
  u32 end = warp_inclusive_sum(num_bytes);
  if (has_row) {
    u8* at = smem->table + (end - num_bytes);
    *at++ = static_cast<u8>(mask);
    *at++ = static_cast<u8>(mask >> 8);
#pragma unroll 1
    for (int i = 0; i < 16; ++i)
      if (mask >> i & 1) *at++ = static_cast<u8>(freq[i] - 1);
  }
  __syncwarp();
  return __shfl_sync(kAllLanes, end, 31);
}

// Puts header, states and table below the words, which end at out.sections_end.
inline __device__ __noinline__ bool finish_section(u32 table_bytes, u32 palette_size,
                                                   CodedStream coded, PlaneOut& out) {
  const unsigned lane = lane_id();
  const auto head_bytes = static_cast<u32>(codec::kTableOffset + align16(table_bytes));
  u8* start = out.sections_end - 2 * coded.num_words - head_bytes;
  auto* halves = reinterpret_cast<u16*>(start);
  if (!out.add({start, head_bytes + 2 * coded.num_words, coded.num_escapes})) return false;
  if (lane < 8) {
    const u32 word = lane < 2   ? coded.num_words
                     : lane < 4 ? coded.num_escapes
                     : lane < 6 ? table_bytes | palette_size << 16
                                : 0;
    halves[lane] = static_cast<u16>(lane % 2 == 0 ? word : word >> 16);
  }
  halves[codec::kStatesOffset / 2 + 2 * lane] = static_cast<u16>(coded.state);
  halves[codec::kStatesOffset / 2 + 2 * lane + 1] = static_cast<u16>(coded.state >> 16);
  for (u32 i = lane; i < align16(table_bytes); i += kWarpSize)
    start[codec::kTableOffset + i] = i < table_bytes ? out.smem->table[i] : 0;
  __syncwarp();
  return true;
}

// Copies a section behind `done` bytes of the payload; returns checksum terms.
inline __device__ __noinline__ u64 copy_section(Section section, const u8* escapes, u8* payload,
                                                u32 done) {
  const unsigned lane = lane_id();
  u8* out = payload + done;
  // Sections are 2-byte aligned: vectors are shifted by 0, 2, 4 or 6 bytes.
  const auto skew = static_cast<u32>(reinterpret_cast<std::uintptr_t>(section.start) % 8);
  const auto* aligned = reinterpret_cast<const uint2*>(section.start - skew);
  const u32 last = (skew + section.num_bytes - 1) / 8, whole = section.num_bytes / 16;
  const u32 shift = skew % 4 * 8;
  u32 factor = checksum_factor(done / 4 + 4 * lane);
  u64 sum = 0;
  // All loads of a batch are issued before the first store.
  constexpr u32 kBatch = 4;
#pragma unroll 1
  for (u32 base = lane; base < whole; base += kBatch * kWarpSize) {
    uint2 v[kBatch][3];
#pragma unroll
    for (u32 u = 0; u < kBatch; ++u) {
      const u32 from = 2 * min(base + u * kWarpSize, whole - 1);
      v[u][0] = aligned[from];
      v[u][1] = aligned[from + 1];
      v[u][2] = aligned[min(from + 2, last)];
    }
#pragma unroll
    for (u32 u = 0; u < kBatch; ++u) {
      const bool high = skew >= 4;
      const u32 w[5] = {high ? v[u][0].y : v[u][0].x, high ? v[u][1].x : v[u][0].y,
                        high ? v[u][1].y : v[u][1].x, high ? v[u][2].x : v[u][1].y,
                        high ? v[u][2].y : v[u][2].x};
      const uint4 all = {__funnelshift_r(w[0], w[1], shift), __funnelshift_r(w[1], w[2], shift),
                         __funnelshift_r(w[2], w[3], shift), __funnelshift_r(w[3], w[4], shift)};
      if (base + u * kWarpSize < whole) {
        __stcs(reinterpret_cast<uint4*>(out) + base + u * kWarpSize, all);
        sum += checksum_terms(all, factor);
      }
      factor += 4 * kWarpSize * frame::kChecksumStep;
    }
  }
  // The rest of the section, escapes and zeros.
#pragma unroll 1
  for (u32 at = 16 * whole + 4 * lane; at < section.payload_bytes(); at += 4 * kWarpSize) {
    u32 word = 0;
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
      const u32 i = at + k, escape = i - section.num_bytes;
      if (i < section.num_bytes)
        word |= u32{section.start[i]} << (8 * k);
      else if (escape < section.num_escapes)
        word |= u32{escapes[escape]} << (8 * k);
    }
    __stcs(reinterpret_cast<u32*>(out + at), word);
    sum += checksum_term(word, (done + at) / 4);
  }
  return sum;
}

}  // namespace snug::cuda
