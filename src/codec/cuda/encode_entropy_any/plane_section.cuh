// codec/cuda/encode_entropy_any/plane_section.cuh - shared and scratch memory of a warp that codes
// planes, and how a coded plane becomes a section of the payload.
#pragma once
#include "codec/cuda/encode_entropy_any/entropy_tables.cuh"
#include "codec/cuda/encode_entropy_any/symbol_coder.cuh"
#include "codec/sections.h"

namespace snug::cuda {

// Scratch memory of one block: a list of sections, the sections from the end down, and escapes from
// the end down.
inline constexpr std::uint32_t kSectionListBytes = 256;
__host__ __device__ constexpr std::uint64_t sections_room(unsigned width, int log2_block) {
  return (std::uint64_t{width} << log2_block) + 4096;
}
// Only exponents of wider types have escapes.
__host__ __device__ constexpr std::uint64_t escapes_scratch(unsigned width, int log2_block) {
  return width == 1 ? 0 : std::uint64_t{1} << log2_block;
}
__host__ __device__ constexpr std::uint64_t block_scratch(unsigned width, int log2_block) {
  return kSectionListBytes + sections_room(width, log2_block) + escapes_scratch(width, log2_block);
}

// A coded plane in scratch memory: contiguous header, states, table and words from an even address
// on. Its escapes are elsewhere.
struct Section {
  const std::uint8_t* start;
  std::uint32_t num_bytes;
  std::uint32_t num_escapes;

  __device__ std::uint32_t payload_bytes() const {
    return static_cast<std::uint32_t>(align16(num_bytes + num_escapes));
  }
};

// The ring that feeds values to the coder.
inline constexpr std::uint32_t kRingBytes = 2048;

// At a multiple of kPlaneSmemAlign: one logical operation computes an address in the histogram.
inline constexpr std::uint32_t kPlaneSmemAlign = 1024;
struct alignas(16) PlaneSmem {
  union {
    uint2 lut[16 + 256];
    struct {
      std::uint32_t histogram[256];
      std::uint32_t list[kPaletteListWords];
    };
  };
  union {
    alignas(16) std::uint8_t words[kWordBuffer];
    ByteModel model;
  };
  union {
    alignas(16) std::uint8_t ring[kRingBytes];
    std::uint32_t nibbles[7][2][16];
  };
  std::uint8_t table[codec::entropy::kMaxByteTableBytes + 14];
};

// What a warp has made of a block so far. It counts room as the CPU's encoder does, and gives up
// where that does.
struct PlaneOut {
  PlaneSmem* smem;
  Section* sections;           // the list, in scratch memory
  std::uint8_t* sections_end;  // where the next section ends
  std::uint8_t* escapes_end;
  std::uint32_t raw_bytes;  // of raw planes, which come first
  std::uint32_t used;
  std::uint32_t room;
  std::uint32_t num_sections;

  __device__ bool add(const Section& section) {
    if (section.payload_bytes() > room - used) return false;
    used += section.payload_bytes();
    if (lane_id() == 0) sections[num_sections] = section;
    ++num_sections;
    sections_end = const_cast<std::uint8_t*>(section.start -
                                             reinterpret_cast<std::uintptr_t>(section.start) % 16);
    return true;
  }
};

// entropy::write_byte_model, a row a lane; returns the bytes used.
inline __device__ __noinline__ std::uint32_t write_byte_table(PlaneSmem* smem) {
  const unsigned lane = lane_id();
  const bool has_row = lane == 0 || (lane < 17 && smem->model.freq[0][lane - 1] != 0);
  const std::uint16_t* freq = smem->model.freq[min(lane, 16u)];
  unsigned mask = 0;
  bool uniform = lane != 0;
#pragma unroll 4
  for (int i = 0; i < 16; ++i) {
    if (freq[i] != 0) mask |= 1u << i;
    uniform = uniform && freq[i] == codec::entropy::kFreqTotal / 16;
  }
  if (uniform) mask = 0;
  const std::uint32_t num_bytes = has_row ? 2 + static_cast<std::uint32_t>(__popc(mask)) : 0;
  std::uint32_t end = warp_inclusive_sum(num_bytes);
  if (has_row) {
    std::uint8_t* at = smem->table + (end - num_bytes);
    *at++ = static_cast<std::uint8_t>(mask);
    *at++ = static_cast<std::uint8_t>(mask >> 8);
#pragma unroll 1
    for (int i = 0; i < 16; ++i)
      if (mask >> i & 1) *at++ = static_cast<std::uint8_t>(freq[i] - 1);
  }
  __syncwarp();
  return __shfl_sync(kAllLanes, end, 31);
}

// Puts header, states and table below the words, which end at out.sections_end.
inline __device__ __noinline__ bool finish_section(std::uint32_t table_bytes,
                                                   std::uint32_t palette_size, CodedStream coded,
                                                   PlaneOut& out) {
  const unsigned lane = lane_id();
  const auto head_bytes = static_cast<std::uint32_t>(codec::kTableOffset + align16(table_bytes));
  std::uint8_t* start = out.sections_end - 2 * coded.num_words - head_bytes;
  auto* halves = reinterpret_cast<std::uint16_t*>(start);
  if (!out.add({start, head_bytes + 2 * coded.num_words, coded.num_escapes})) return false;
  if (lane < 8) {
    const std::uint32_t word = lane < 2   ? coded.num_words
                               : lane < 4 ? coded.num_escapes
                               : lane < 6 ? table_bytes | palette_size << 16
                                          : 0;
    halves[lane] = static_cast<std::uint16_t>(lane % 2 == 0 ? word : word >> 16);
  }
  halves[codec::kStatesOffset / 2 + 2 * lane] = static_cast<std::uint16_t>(coded.state);
  halves[codec::kStatesOffset / 2 + 2 * lane + 1] = static_cast<std::uint16_t>(coded.state >> 16);
  for (std::uint32_t i = lane; i < align16(table_bytes); i += kWarpSize)
    start[codec::kTableOffset + i] = i < table_bytes ? out.smem->table[i] : 0;
  __syncwarp();
  return true;
}

// Copies a section behind `done` bytes of the payload; returns checksum terms.
inline __device__ __noinline__ std::uint64_t copy_section(Section section,
                                                          const std::uint8_t* escapes,
                                                          std::uint8_t* payload,
                                                          std::uint32_t done) {
  const unsigned lane = lane_id();
  std::uint8_t* out = payload + done;
  // Sections are 2-byte aligned: vectors are shifted by 0, 2, 4 or 6 bytes.
  const auto skew = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(section.start) % 8);
  const auto* aligned = reinterpret_cast<const uint2*>(section.start - skew);
  const std::uint32_t last = (skew + section.num_bytes - 1) / 8, whole = section.num_bytes / 16;
  const std::uint32_t shift = skew % 4 * 8;
  std::uint32_t factor = checksum_factor(done / 4 + 4 * lane);
  std::uint64_t sum = 0;
  // All loads of a batch are issued before the first store.
  constexpr std::uint32_t kBatch = 4;
#pragma unroll 1
  for (std::uint32_t base = lane; base < whole; base += kBatch * kWarpSize) {
    uint2 v[kBatch][3];
#pragma unroll
    for (std::uint32_t u = 0; u < kBatch; ++u) {
      const std::uint32_t from = 2 * min(base + u * kWarpSize, whole - 1);
      v[u][0] = aligned[from];
      v[u][1] = aligned[from + 1];
      v[u][2] = aligned[min(from + 2, last)];
    }
#pragma unroll
    for (std::uint32_t u = 0; u < kBatch; ++u) {
      const bool high = skew >= 4;
      const std::uint32_t w[5] = {high ? v[u][0].y : v[u][0].x, high ? v[u][1].x : v[u][0].y,
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
  for (std::uint32_t at = 16 * whole + 4 * lane; at < section.payload_bytes();
       at += 4 * kWarpSize) {
    std::uint32_t word = 0;
#pragma unroll
    for (std::uint32_t k = 0; k < 4; ++k) {
      const std::uint32_t i = at + k, escape = i - section.num_bytes;
      if (i < section.num_bytes)
        word |= std::uint32_t{section.start[i]} << (8 * k);
      else if (escape < section.num_escapes)
        word |= std::uint32_t{escapes[escape]} << (8 * k);
    }
    __stcs(reinterpret_cast<std::uint32_t*>(out + at), word);
    sum += checksum_term(word, (done + at) / 4);
  }
  return sum;
}

}  // namespace snug::cuda
