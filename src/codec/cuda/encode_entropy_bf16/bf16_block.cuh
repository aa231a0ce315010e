// codec/cuda/encode_entropy_bf16/bf16_block.cuh - one warp codes one BF16 block with the entropy
// codec, and writes it when its place is known.
#pragma once
#include "codec/cuda/encode_entropy_any/encode_block.cuh"
#include "codec/cuda/encode_entropy_bf16/encode_palette.cuh"

namespace snug::cuda {

// A coded block in shared memory; room for its words and escapes follows.
struct alignas(16) CodedBlock {
  SectionHead head;
  EncodeJob job;

  __device__ __forceinline__ u8* room() { return reinterpret_cast<u8*>(this + 1); }
  // The same room for encode_entropy_any's code.
  __device__ __forceinline__ PlaneSmem* plane_smem() {
    constexpr std::uintptr_t kAlign = kPlaneSmemAlign;
    return reinterpret_cast<PlaneSmem*>((reinterpret_cast<std::uintptr_t>(room()) + kAlign - 1) /
                                        kAlign * kAlign);
  }
};

constexpr u32 coded_block_bytes(int log2_block) {
  constexpr u32 kAny = sizeof(PlaneSmem) + kPlaneSmemAlign - 16;
  constexpr u32 kLeast = kAny > kSampleBytes ? kAny : kSampleBytes;
  const u32 coded = coded_room(1u << log2_block);
  return static_cast<u32>(sizeof(CodedBlock)) + (coded > kLeast ? coded : kLeast);
}

// What became of a block: exponents coded in its room, something that write_block_any writes, or
// nothing yet: encode_block_any has to encode it.
enum class Coding { kPalette, kOther, kGeneral };

struct LowPlane {
  u32 num_bytes;  // 0: too large
  unsigned mode;
};

// Codes the low bytes of a block into scratch memory. Few blocks need it: out of line, it takes no
// registers from the others.
template <class Access>
__device__ __noinline__ LowPlane code_low_plane(const Work& work, Access src, u64 pos, u32 n,
                                                PlaneSmem* smem, u8* scratch) {
  const BlockValues<Access, 2> values{src, pos, n, true};
  PlaneOut out{smem,
               reinterpret_cast<Section*>(scratch),
               scratch + kSectionListBytes + sections_room(2, static_cast<int>(work.log2_block)),
               nullptr,
               0,
               0,
               static_cast<u32>(align16(2 * n)),
               0};
  unsigned mode = 2;
  if (!put_byte_plane(values, 0, false, out, mode)) return {};
  __syncwarp();
  return {out.used, mode};
}

template <class Access>
__device__ __forceinline__ Coding try_palette(const Work& work, const Access& src, u64 pos, u32 n,
                                              EncodeSmem& smem, CodedBlock& block, u8* scratch,
                                              Encoded& e) {
  sample_bf16(src, pos, n, &smem, block.room());
  prefetch_end(src, pos, n);
  const DevicePalette palette = make_palette(smem.histogram, smem.list);
  if (palette.size == 1) {
    if (n % 8 != 0) return Coding::kGeneral;
    if (is_constant_bf16(src, pos, n)) {
      set_constant(e);
      return Coding::kOther;
    }
  }
  const u32 nibbles = (&smem.nibbles[0][0])[lane_id()];
  const bool codes_low = !is_surely_noise(nibbles) && worth_coding(nibbles);
  if (palette.cost >= palette.total * 5 * 256) {
    // Noise becomes raw here; everything between takes the general path.
    const u32 limit = palette.total * (8 * 256 - 8 * 256 / 32);
    if (codes_low || palette.cost < limit ||
        (!palette.is_noise &&
         make_byte_model(smem.histogram, *reinterpret_cast<ByteModel*>(block.room())) < limit))
      return Coding::kGeneral;
    set_raw(e, 2 * n);
    return Coding::kOther;
  }
  e.raw_bytes = e.entry.num_bytes = static_cast<u32>(align16(n));
  e.entry.plane_modes = 0;
  if (codes_low) {
    const LowPlane low = code_low_plane(work, src, pos, n, block.plane_smem(), scratch);
    if (low.num_bytes == 0) {
      set_raw(e, 2 * n);
      return Coding::kOther;
    }
    e.raw_bytes = 0;
    e.num_sections = 1;
    e.entry.num_bytes = low.num_bytes;
    e.entry.plane_modes = low.mode;
  }
  if (!fill_palette_lut<make_pair_symbol>(palette.freq, palette.value, palette.size, smem.lut))
    return Coding::kGeneral;
  const u32 commonest = __shfl_sync(kAllLanes, palette.value, 0);
  const CodedStream coded = n % 512 == 0
                                ? encode_palette_bf16<true>(src, pos, n, 1u << work.log2_block,
                                                            commonest, &smem, block.room())
                                : encode_palette_bf16<false>(src, pos, n, 1u << work.log2_block,
                                                             commonest, &smem, block.room());
  if (coded.num_words == kNoRoom) {
    wait_copies<0>();  // of values that are no longer needed
    __syncwarp();
    return Coding::kGeneral;
  }
  e.entry.num_bytes += palette_section_bytes(coded.num_words, coded.num_escapes);
  if (e.entry.num_bytes >= align16(2 * n)) {
    set_raw(e, 2 * n);
    return Coding::kOther;
  }
  block.head.fill(palette, coded);
  e.entry.codec = static_cast<u32>(Codec::kEntropy);
  e.entry.plane_modes |= mode_bits(PlaneMode::kPalette, 1);
  return Coding::kPalette;
}

// True: the exponents are coded in the block's room; else `e` says what it became.
template <class Access>
__device__ __forceinline__ bool code_bf16_block(const Work& work, const Access& src, u64 pos,
                                                EncodeSmem& smem, CodedBlock& block, u8* scratch,
                                                Encoded& e) {
  const u32 n = block.job.n;
  const Coding coding = try_palette(work, src, pos, n, smem, block, scratch, e);
  if (coding == Coding::kPalette) return true;
  if (coding == Coding::kGeneral)
    e = encode_block_any<2>(work, src, pos, n, block.plane_smem(), scratch);
  prefetch_raw<2>(src, pos, n, e);
  return false;
}

// Where a block goes that `units` of 16 bytes precede.
struct Place {
  u8* payload;
  bool fits;

  __device__ __forceinline__ Place(const EncodeJob& job, DeviceEntry& entry, u64 units) {
    entry.offset = units * 16;
    fits = job.fits && entry.offset + entry.num_bytes <= job.w.item.frame_bytes;
    payload = static_cast<u8*>(job.w.item.frame) + entry.offset;
  }
};

// Writes a block that is coded in its room; its low bytes are raw, or coded in scratch memory.
// Returns this lane's checksum terms.
template <class Access>
__device__ __forceinline__ u64 write_coded(const Work& work, const Access& src, u64 pos,
                                           CodedBlock& block, const Encoded& e, const u8* scratch,
                                           const Place& place) {
  if (!place.fits) return 0;
  const u32 done = e.entry.num_bytes - block.head.section_bytes();
  const u64 sum = e.raw_bytes != 0 ? write_low_plane(src, pos, block.job.n, place.payload)
                                   : copy_section(*reinterpret_cast<const Section*>(scratch),
                                                  nullptr, place.payload, 0);
  return sum + write_palette_section(place.payload, done, 1u << work.log2_block, &block.head,
                                     block.room());
}

}  // namespace snug::cuda
