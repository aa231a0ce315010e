// cuda/symbol_coder.cuh - what the encoding kernels share: symbols prepared for
// coding, one step of the coder, and where its words go.
#pragma once
#include "codec/entropy/rans.h"
#include "cuda/device_frame.cuh"
#include "cuda/entropy_tables.cuh"

namespace snug::cuda {

inline constexpr unsigned kWordRing = 1024;

struct CodedStream {
  std::uint32_t num_words;
  std::uint32_t num_escapes;
  std::uint32_t state;
};

// Coding a symbol turns x into x + start + q * (256 - freq), q = x / freq by
// multiplication. .x = multiplier; .y = shift | is_escape << 7 | 256 - freq << 8 |
// start << 16. x is below freq * 2^24; `is_exact_freq` says whether q is right then.
struct Reciprocals {
  std::uint32_t multiplier[257];
  bool exact[257];
};
constexpr Reciprocals make_reciprocals() {
  Reciprocals r{};
  r.multiplier[0] = 0;
  r.exact[0] = true;
  r.multiplier[1] = 0xFFFFFFFFu;  // x * (2^32 - 1) / 2^32 is x - 1: make_symbol makes up for it
  r.exact[1] = true;
  for (std::uint64_t f = 2; f <= 256; ++f) {
    unsigned shift = 0;
    while ((std::uint64_t{2} << shift) < f) ++shift;  // ceil(log2) - 1
    const std::uint64_t one = std::uint64_t{1} << (32 + shift);
    const std::uint64_t multiplier = (one + f - 1) / f;
    r.multiplier[f] = static_cast<std::uint32_t>(multiplier);
    // The largest x is the worst; products of 57 bits and more by halves.
    const std::uint64_t x = (f << 24) - 1, low = (x & 0xFFFF) * multiplier,
                        high = (x >> 16) * multiplier;
    const std::uint64_t product_high = (high + (low >> 16)) >> 16;
    r.exact[f] = product_high >> shift == x / f;
  }
  return r;
}
static __device__ const Reciprocals kReciprocals = make_reciprocals();

__device__ __forceinline__ uint2 make_symbol(std::uint32_t freq, std::uint32_t start,
                                             bool is_escape) {
  const std::uint32_t shift =
      freq <= 1 ? 0 : 31 - static_cast<std::uint32_t>(__clz(static_cast<int>(freq - 1)));
  if (freq <= 1) start += 255;
  return {kReciprocals.multiplier[freq],
          shift | (is_escape ? 128u : 0u) | (256 - freq) << 8 | start << 16};
}

// The lane's running sum over the lower 16 lanes, its own value not counted.
__device__ __forceinline__ std::uint32_t start_of(std::uint32_t freq) {
  std::uint32_t end = lane_id() < 16 ? freq : 0;
#pragma unroll
  for (int d = 1; d < 16; d *= 2) {
    const std::uint32_t below = __shfl_up_sync(kAll, end, d);
    if (lane_id() >= static_cast<unsigned>(d)) end += below;
  }
  return end - freq;
}

// A symbol for each of 256 plane bytes; value and freq are those of the lane's
// palette index. Returns whether all frequencies are exact.
inline __device__ __noinline__ bool fill_palette_lut(std::uint32_t freq, std::uint32_t value,
                                                     std::uint32_t size, uint2* lut) {
  const unsigned lane = lane_id();
  freq = lane < 16 ? freq : 0;
  const uint2 own = make_symbol(freq, start_of(freq), lane == size);
  const uint2 escape = {__shfl_sync(kAll, own.x, static_cast<int>(size)),
                        __shfl_sync(kAll, own.y, static_cast<int>(size))};
  __syncwarp();
#pragma unroll
  for (unsigned i = 0; i < 256; i += kWarp) lut[i + lane] = escape;
  __syncwarp();
  if (lane < size) lut[value] = own;
  __syncwarp();
  return __all_sync(kAll, kReciprocals.exact[freq]);
}

// 16 first symbols, then the second one of each byte.
inline __device__ __noinline__ bool fill_byte_lut(const ByteModel& model, uint2* lut) {
  bool exact = true;
  __syncwarp();
#pragma unroll 1
  for (unsigned i = lane_id(); i < 17 * 16; i += kWarp) {
    const std::uint32_t freq = model.freq[i / 16][i % 16];
    lut[i] = make_symbol(freq, model.start[i / 16][i % 16], false);
    exact &= kReciprocals.exact[freq];
  }
  __syncwarp();
  return __all_sync(kAll, exact);
}

// Words fill a ring in shared memory downwards and leave it in chunks of 512 bytes.
struct WordSink {
  static constexpr std::uint32_t kStart = 1u << 30;
  std::uint32_t ring, end = kStart, flushed = kStart;
  std::uint8_t* words_end;

  __device__ WordSink(std::uint32_t ring_at, std::uint8_t* end_at)
      : ring(ring_at), words_end(end_at) {}
  __device__ __forceinline__ void write_out() {
    flushed -= 512;
    __syncwarp();
    const std::uint32_t at = (flushed & (kWordRing - 1)) + 16 * lane_id();
    *reinterpret_cast<uint4*>(words_end - (kStart - flushed) + 16 * lane_id()) =
        load_shared16(ring + at);
    __syncwarp();
  }
  // After each group, which takes at most 256 bytes.
  __device__ __forceinline__ void flush_chunk() {
    if (flushed - end >= 512) write_out();
  }
  __device__ __forceinline__ std::uint32_t num_bytes() const { return kStart - end; }
  // Returns the number of words.
  __device__ __forceinline__ std::uint32_t finish() {
    while (static_cast<std::int32_t>(flushed - end) > 0) write_out();
    return (kStart - end) / 2;
  }
};

__device__ __forceinline__ unsigned lanes_from_here() {
  unsigned mask;  // this lane and those above: they put their words first
  asm volatile("mov.u32 %0, %%lanemask_ge;" : "=r"(mask));
  return mask;
}

template <bool kExact>
__device__ __forceinline__ void code_symbol(std::uint32_t& x, uint2 symbol, std::uint32_t c) {
  std::uint32_t q = __funnelshift_r(__umulhi(x, symbol.x), 0, symbol.y);
  if constexpr (!kExact)
    if (static_cast<std::int32_t>(x - q * (256 - c)) < 0) --q;
  x = q * c + (x + (symbol.y >> 16));
}

// One step of one lane: codes a pair, second symbol first.
template <bool kExact>
__device__ __forceinline__ void encode_pair(std::uint32_t& x, uint2 first, uint2 second,
                                            WordSink& sink, unsigned lanes_from) {
  const std::uint32_t c1 = __byte_perm(first.y, 0, 0x4441), c2 = __byte_perm(second.y, 0, 0x4441);
  const std::uint32_t limit = (256 - c1) * (256 - c2);
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      ".reg .b32 high, full, at;\n\t"
      "shr.u32 high, %0, 16;\n\t"
      "setp.ge.u32 p, high, %2;\n\t"
      "vote.sync.ballot.b32 full, p, 0xFFFFFFFF;\n\t"
      "and.b32 at, full, %3;\n\t"
      "popc.b32 at, at;\n\t"
      "mad.lo.s32 at, at, -2, %1;\n\t"
      "lop3.b32 at, at, %5, %4, 0xEA;\n\t"  // (at & (kWordRing - 1)) | ring
      "@p st.shared.u16 [at], %0;\n\t"
      "selp.b32 %0, high, %0, p;\n\t"
      "popc.b32 full, full;\n\t"
      "mad.lo.s32 %1, full, -2, %1;\n\t"
      "}"
      : "+r"(x), "+r"(sink.end)
      : "r"(limit), "r"(lanes_from), "r"(sink.ring), "n"(kWordRing - 1)
      : "memory");
  code_symbol<kExact>(x, second, c2);
  code_symbol<kExact>(x, first, c1);
}

// Appends the escaped bytes of a group, in natural order, below `used` bytes from
// the end; returns how many. Bit i of `flags` says that the lane's byte i is one.
inline __device__ __noinline__ std::uint32_t push_escapes(uint2 bytes, unsigned flags,
                                                          std::uint8_t* escapes_end,
                                                          std::uint32_t used) {
  const unsigned lane = lane_id();
  const std::uint32_t count = __popc(flags);
  std::uint32_t before = count;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const std::uint32_t below = __shfl_up_sync(kAll, before, d);
    if (lane >= static_cast<unsigned>(d)) before += below;
  }
  const std::uint32_t total = __shfl_sync(kAll, before, 31);
  std::uint8_t* at = escapes_end - used - total + (before - count);
  for (; flags != 0; flags &= flags - 1) {
    const int i = __ffs(static_cast<int>(flags)) - 1;
    *at++ = static_cast<std::uint8_t>((i < 4 ? bytes.x : bytes.y) >> (i % 4 * 8));
  }
  __syncwarp();
  return total;
}

}  // namespace snug::cuda
