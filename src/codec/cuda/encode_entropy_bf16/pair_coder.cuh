// codec/cuda/encode_entropy_bf16/pair_coder.cuh - codes pairs of palette symbols, four at once.
#pragma once
#include "codec/cuda/encode_entropy_any/symbol_coder.cuh"

namespace snug::cuda {

// As make_symbol, with .y = shift | is_escape << 7 | freq << 8 | start << 16. Frequencies are below
// 256, because the escape has one, too.
__device__ __forceinline__ uint2 make_pair_symbol(u32 freq, u32 start, bool is_escape) {
  const u32 shift = freq <= 1 ? 0 : 31 - static_cast<u32>(__clz(static_cast<int>(freq - 1)));
  if (freq <= 1) start += 255;
  return {kReciprocals.multiplier[freq], shift | (is_escape ? 128u : 0u) | freq << 8 | start << 16};
}

struct PairCoder : CoderState {
  // Constants in registers: the compiler would load them at every use.
  u32 minus_byte1, all;

  __device__ __forceinline__ explicit PairCoder(u32 words_end) : CoderState(words_end) {
    asm volatile("mov.u32 %0, 0xFF00;" : "=r"(minus_byte1));
    asm volatile("mov.u32 %0, 256;" : "=r"(all));
  }

  // Dot products extract bytes: the multiply pipe has time, the logic pipe less.
  __device__ __forceinline__ void code_symbol(uint2 symbol) {
    u32 c;  // 256 - freq
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(c) : "r"(symbol.y), "r"(minus_byte1), "r"(all));
    const u32 q = __funnelshift_r(__umulhi(x, symbol.x), 0, symbol.y);
    x = q * c + (x + (symbol.y >> 16));
  }

  // Codes four pairs, the last one first, and of each the second symbol first. Independent work,
  // meanwhile() and the words of the previous group, comes after the first vote: from there on
  // there is only arithmetic, and the compiler interleaves both.
  template <class Meanwhile>
  __device__ __forceinline__ void code_group(const uint2 (&symbols)[8], Meanwhile meanwhile) {
    u32 new_words[4];
    unsigned new_masks[4];
#pragma unroll
    for (int step = 3; step >= 0; --step) {
      const uint2 first = symbols[2 * step], second = symbols[2 * step + 1];
      const u32 product = __dp4a(first.y, __byte_perm(second.y, 0, 0x4414), 0u);
      const u32 high = x >> 16;
      const bool full = high >= product;  // of the two frequencies
      new_words[step] = x;
      new_masks[step] = __ballot_sync(kAllLanes, full);
      if (step == 3) {
        meanwhile();
        put_words();
      }
      x = full ? high : x;
      code_symbol(second);
      code_symbol(first);
    }
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      words[step] = new_words[step];
      masks[step] = new_masks[step];
    }
  }
};

}  // namespace snug::cuda
