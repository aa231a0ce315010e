// codec/cuda/encode_entropy_any/symbol_coder.cuh - the rANS coder of the encode kernels: symbols
// prepared for coding, steps of the coder, and where its words go.
#pragma once
#include "codec/cuda/encode_entropy_any/entropy_tables.cuh"
#include "codec/cuda/frame/device_frame.cuh"
#include "codec/entropy/rans.h"

namespace snug::cuda {

struct CodedStream {
  u32 num_words;
  u32 num_escapes;
  u32 state;
};

// Coding a symbol turns x into x + start + q * (256 - freq) with q = x / freq by multiplication:
// x * multiplier >> 32 + shift. x is below freq * 2^24; the multiplier is rounded up, or, where
// `exact` is false, rounded down and used with x + 1.
struct Reciprocals {
  u32 multiplier[257];
  bool exact[257];
};
constexpr Reciprocals make_reciprocals() {
  Reciprocals r{};
  r.multiplier[0] = 0;
  r.exact[0] = true;
  r.multiplier[1] = 0xFFFFFFFFu;  // x * (2^32 - 1) / 2^32 is x - 1: make_symbol makes up for it
  r.exact[1] = true;
  for (u64 f = 2; f <= 256; ++f) {
    unsigned shift = 0;
    while ((u64{2} << shift) < f) ++shift;  // ceil(log2) - 1
    const u64 one = u64{1} << (32 + shift);
    const u64 multiplier = (one + f - 1) / f;
    // Checks the worst case, the largest x; products exceed 64 bits, so by halves.
    const u64 x = (f << 24) - 1, low = (x & 0xFFFF) * multiplier, high = (x >> 16) * multiplier;
    const u64 product_high = (high + (low >> 16)) >> 16;
    r.exact[f] = product_high >> shift == x / f;
    r.multiplier[f] = static_cast<u32>(r.exact[f] ? multiplier : one / f);
  }
  return r;
}
static __device__ const Reciprocals kReciprocals = make_reciprocals();

// .x = multiplier; .y = shift | is_escape << 7 | freq - 1 << 8 | start << 16 | !exact << 31.
__device__ __forceinline__ uint2 make_symbol(u32 freq, u32 start, bool is_escape) {
  const u32 shift = freq <= 1 ? 0 : 31 - static_cast<u32>(__clz(static_cast<int>(freq - 1)));
  if (freq <= 1) start += 255;
  return {kReciprocals.multiplier[freq], shift | (is_escape ? 128u : 0u) | ((freq - 1) & 255) << 8 |
                                             start << 16 |
                                             (kReciprocals.exact[freq] ? 0u : 1u << 31)};
}

// Exclusive sum over the lower 16 lanes.
__device__ __forceinline__ u32 start_of(u32 freq) {
  u32 end = warp_inclusive_sum<16>(lane_id() < 16 ? freq : 0);
  return end - freq;
}

// A symbol for each of 256 plane bytes; value and freq belong to the lane's palette index. Returns
// whether all frequencies are exact.
template <uint2 (*kMakeSymbol)(u32, u32, bool)>
__device__ __noinline__ bool fill_palette_lut(u32 freq, u32 value, u32 size, uint2* lut) {
  const unsigned lane = lane_id();
  freq = lane < 16 ? freq : 0;
  const uint2 own = kMakeSymbol(freq, start_of(freq), lane == size);
  const uint2 escape = {__shfl_sync(kAllLanes, own.x, static_cast<int>(size)),
                        __shfl_sync(kAllLanes, own.y, static_cast<int>(size))};
  __syncwarp();
#pragma unroll
  for (unsigned i = 0; i < 256; i += kWarpSize) lut[i + lane] = escape;
  __syncwarp();
  if (lane < size) lut[value] = own;
  __syncwarp();
  return __all_sync(kAllLanes, kReciprocals.exact[freq]);
}

// 16 first symbols, then the second one of each byte, rotated right by one bit if `rotated`.
inline __device__ __noinline__ bool fill_byte_lut(const ByteModel& model, bool rotated,
                                                  uint2* lut) {
  bool exact = true;
  __syncwarp();
#pragma unroll 3
  for (unsigned i = lane_id(); i < 17 * 16; i += kWarpSize) {
    const u32 freq = model.freq[i / 16][i % 16];
    const uint2 symbol = make_symbol(freq, model.start[i / 16][i % 16], false);
    const unsigned byte = i - 16;
    lut[rotated && i >= 16 ? 16 + byte / 2 + byte % 2 * 128 : i] = symbol;
    exact &= symbol.y >> 31 == 0;
  }
  __syncwarp();
  return __all_sync(kAllLanes, exact);
}

// One lane's coder. Words are stored below the address `end` in shared memory, which moves down.
// The words of a group are stored while the next group is coded: finding their places has a long
// latency, and nothing waits for them.
struct CoderState {
  u32 x = codec::entropy::kStateLow;
  u32 end;
  unsigned lane_bit, lanes_from;  // this lane; this lane and those above, whose words come first
  u32 words[4] = {};
  unsigned masks[4] = {};  // of the lanes that have a word

  __device__ __forceinline__ explicit CoderState(u32 words_end) : end(words_end) {
    asm volatile("mov.u32 %0, %%lanemask_eq;" : "=r"(lane_bit));
    asm volatile("mov.u32 %0, %%lanemask_ge;" : "=r"(lanes_from));
  }

  // Stores the words of the last group and moves `end`.
  __device__ __forceinline__ void put_words() {
#pragma unroll
    for (int step = 3; step >= 0; --step) {
      asm volatile(
          "{\n\t"
          ".reg .pred p;\n\t"
          ".reg .b32 mine;\n\t"
          "and.b32 mine, %2, %3;\n\t"
          "setp.ne.u32 p, mine, 0;\n\t"
          "@p st.shared.u16 [%0], %1;\n\t"
          "}" ::"r"(end - 2 * __popc(masks[step] & lanes_from)),
          "r"(words[step]), "r"(masks[step]), "r"(lane_bit)
          : "memory");
      end -= 2 * __popc(masks[step]);
    }
  }
};

// The same with words stored at once, for any frequencies.
struct Coder {
  u32 x = codec::entropy::kStateLow;
  u32 end;
  unsigned lanes_below;  // their words come before this lane's

  __device__ __forceinline__ explicit Coder(u32 words_end)
      : end(words_end), lanes_below(lanes_below_mask()) {}

  template <bool kExact>
  __device__ __forceinline__ void code_symbol(uint2 symbol, u32 freq) {
    const u32 by = kExact ? x : x + (symbol.y >> 31);
    const u32 start = kExact ? symbol.y >> 16 : symbol.y >> 16 & 0x1FF;
    const u32 q = __funnelshift_r(__umulhi(by, symbol.x), 0, symbol.y);
    x = q * (256 - freq) + (x + start);
  }

  // Stores the low halves of the states that are full.
  __device__ __forceinline__ void put_words(bool full) {
    const unsigned mask = __ballot_sync(kAllLanes, full);
    end -= 2 * __popc(mask);
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "setp.ne.u32 p, %2, 0;\n\t"
        "@p st.shared.u16 [%0], %1;\n\t"
        "}" ::"r"(end + 2 * __popc(mask & lanes_below)),
        "r"(x), "r"(static_cast<u32>(full))
        : "memory");
  }

  // Codes four pairs, the last one first, and of each the second symbol first. refill(step) may
  // load that pair of the next group in its place. Dot products extract bytes: the multiply pipe
  // has time.
  template <bool kExact, class Refill>
  __device__ __forceinline__ void code_group(uint2 (&symbols)[8], Refill refill) {
#pragma unroll
    for (int step = 3; step >= 0; --step) {
      const uint2 first = symbols[2 * step], second = symbols[2 * step + 1];
      const u32 first_freq = __dp4a(first.y, 0x100u, 1u),
                second_freq = __dp4a(second.y, 0x100u, 1u);
      const u32 high = x >> 16;
      const bool full = high >= first_freq * second_freq;
      put_words(full);
      x = full ? high : x;
      code_symbol<kExact>(second, second_freq);
      code_symbol<kExact>(first, first_freq);
      refill(step);
    }
  }
};

// Words fill a buffer in shared memory from its end down and leave it in chunks; the rest then
// moves back to the end.
inline constexpr u32 kWordChunk = 1024;
inline constexpr u32 kWordBuffer = kWordChunk + kWordChunk / 2;

struct WordSink {
  Coder coder;
  u32 top;  // address: the end of the buffer
  u8* words_end;
  u32 num_flushed = 0;

  __device__ WordSink(u32 buffer, u8* end_at)
      : coder(buffer + kWordBuffer), top(buffer + kWordBuffer), words_end(end_at) {}
  __device__ __forceinline__ void write_out() {
    num_flushed += kWordChunk;
    __syncwarp();
    auto* out = reinterpret_cast<uint4*>(words_end - num_flushed) + lane_id();
    const u32 mine = top + 16 * lane_id();
    const uint4 low = load_shared_b128(mine - kWordChunk),
                high = load_shared_b128(mine - kWordChunk / 2);
    out[0] = low;
    out[kWarpSize] = high;
  }
  // At least every two groups: each takes at most 256 bytes. False when more than `room` bytes have
  // left the buffer.
  __device__ __forceinline__ bool flush_chunk(u32 room) {
    if (top - coder.end < kWordChunk) return true;
    write_out();
    const u32 mine = top + 16 * lane_id();
    const uint4 rest = load_shared_b128(mine - kWordBuffer);
    __syncwarp();
    store_shared(mine - kWordChunk / 2, rest);
    coder.end += kWordChunk;
    __syncwarp();
    return num_flushed <= room;
  }
  // Returns the number of words.
  __device__ __forceinline__ u32 finish() {
    const u32 all = num_flushed + (top - coder.end);
    if (top != coder.end) write_out();
    __syncwarp();
    return all / 2;
  }
};

// Stores the escaped bytes of a group, in order, below `used` bytes from the end; returns how many.
// Bit i of `flags`: the lane's byte i is escaped.
inline __device__ __noinline__ u32 push_escapes(uint2 bytes, unsigned flags, u8* escapes_end,
                                                u32 used) {
  const unsigned lane = lane_id();
  const u32 count = __popc(flags);
  u32 before = warp_inclusive_sum(count);
  const u32 total = __shfl_sync(kAllLanes, before, 31);
  u8* at = escapes_end - used - total + (before - count);
  for (; flags != 0; flags &= flags - 1) {
    const int i = __ffs(static_cast<int>(flags)) - 1;
    *at++ = static_cast<u8>((i < 4 ? bytes.x : bytes.y) >> (i % 4 * 8));
  }
  __syncwarp();
  return total;
}

}  // namespace snug::cuda
