// cuda/pair_coder.cuh - coding pairs of palette symbols, as exponents are coded: what a
// symbol takes, and four steps of the coder at once.
#pragma once
#include "cuda/symbol_coder.cuh"

namespace snug::cuda {

// Coding a symbol turns x into x + start + q * (256 - freq), q = x / freq by
// multiplication (see Reciprocals). .x = multiplier; .y = shift | is_escape << 7 |
// freq << 8 | start << 16. Frequencies are below 256: the escape has one too.
__device__ __forceinline__ uint2 make_pair_symbol(std::uint32_t freq, std::uint32_t start,
                                                  bool is_escape) {
  const std::uint32_t shift =
      freq <= 1 ? 0 : 31 - static_cast<std::uint32_t>(__clz(static_cast<int>(freq - 1)));
  if (freq <= 1) start += 255;
  return {kReciprocals.multiplier[freq], shift | (is_escape ? 128u : 0u) | freq << 8 | start << 16};
}

// A symbol for each of 256 plane bytes; value and freq are those of the lane's
// palette index. Returns whether all frequencies are exact.
inline __device__ __noinline__ bool fill_pair_lut(std::uint32_t freq, std::uint32_t value,
                                                  std::uint32_t size, uint2* lut) {
  const unsigned lane = lane_id();
  freq = lane < 16 ? freq : 0;
  const uint2 own = make_pair_symbol(freq, start_of(freq), lane == size);
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

// The coder of one lane. Words are put below the address `end` in shared memory,
// which moves down; those of a group while the next one is coded.
struct PairCoder {
  std::uint32_t x = codec::entropy::kStateLow;
  std::uint32_t end;
  unsigned lane_bit, lanes_from;  // this lane and those above: they put their words first
  std::uint32_t words[4] = {};
  unsigned masks[4] = {};  // of the lanes that have one

  __device__ __forceinline__ explicit PairCoder(std::uint32_t words_end) : end(words_end) {
    asm volatile("mov.u32 %0, %%lanemask_eq;" : "=r"(lane_bit));
    asm volatile("mov.u32 %0, %%lanemask_ge;" : "=r"(lanes_from));
  }

  // Puts the words of the last group; `end` counts them only then.
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

  // Dot products take bytes apart: the pipe of the multiplications has time, that of
  // logical operations less.
  __device__ __forceinline__ void code_symbol(uint2 symbol) {
    std::uint32_t c;  // 256 - freq
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(c) : "r"(symbol.y), "r"(0xFF00), "r"(256));
    const std::uint32_t q = __funnelshift_r(__umulhi(x, symbol.x), 0, symbol.y);
    x = q * c + (x + (symbol.y >> 16));
  }

  // Codes four pairs, the last one first, and of each the second symbol first. What
  // does not depend on that, meanwhile() and the words of the group before, comes after
  // the first vote: with nothing but arithmetic from there on, the compiler fills the
  // waits of one with the other.
  template <class Meanwhile>
  __device__ __forceinline__ void code_group(const uint2 (&symbols)[8], Meanwhile meanwhile) {
    std::uint32_t new_words[4];
    unsigned new_masks[4];
#pragma unroll
    for (int step = 3; step >= 0; --step) {
      const uint2 first = symbols[2 * step], second = symbols[2 * step + 1];
      const std::uint32_t product = __dp4a(first.y, __byte_perm(second.y, 0, 0x4414), 0u);
      const std::uint32_t high = x >> 16;
      const bool full = high >= product;  // of the two frequencies
      new_words[step] = x;
      new_masks[step] = __ballot_sync(kAll, full);
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
