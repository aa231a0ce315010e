// cuda/symbol_coder.cuh - what the encoding kernels share: symbols prepared for
// coding, one step of the coder, and where its words go.
#pragma once
#include "codec/entropy/rans.h"
#include "cuda/device_frame.cuh"
#include "cuda/entropy_tables.cuh"

namespace snug::cuda {

inline constexpr unsigned kWordBuffer = 1024;  // two chunks of words on their way to memory

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
template <uint2 (*kMakeSymbol)(std::uint32_t, std::uint32_t, bool)>
__device__ __noinline__ bool fill_palette_lut(std::uint32_t freq, std::uint32_t value,
                                              std::uint32_t size, uint2* lut) {
  const unsigned lane = lane_id();
  freq = lane < 16 ? freq : 0;
  const uint2 own = kMakeSymbol(freq, start_of(freq), lane == size);
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

template <bool kExact>
__device__ __forceinline__ void code_symbol(std::uint32_t& x, uint2 symbol) {
  const std::uint32_t c = __dp4a(symbol.y, 0x100u, 0u);  // 256 - freq
  std::uint32_t q = __funnelshift_r(__umulhi(x, symbol.x), 0, symbol.y);
  if constexpr (!kExact)
    if (static_cast<std::int32_t>(x - q * (256 - c)) < 0) --q;
  x = q * c + (x + (symbol.y >> 16));
}

// The state of one lane's coder and its words, which are put below the address `end` in
// shared memory; it moves down. A group's words are put while the next group is coded: to
// find their places takes long, and nothing waits for them.
struct CoderState {
  std::uint32_t x = codec::entropy::kStateLow;
  std::uint32_t end;
  unsigned lane_bit, lanes_from;  // this lane and those above: they put their words first
  std::uint32_t words[4] = {};
  unsigned masks[4] = {};  // of the lanes that have one

  __device__ __forceinline__ explicit CoderState(std::uint32_t words_end) : end(words_end) {
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
};

struct Coder : CoderState {
  using CoderState::CoderState;

  // Codes four pairs, the last one first, and of each the second symbol first. Dot
  // products take bytes apart: the pipe of the multiplications has time, that of
  // logical operations less.
  template <bool kExact>
  __device__ __forceinline__ void code_group(const uint2 (&symbols)[8]) {
    put_words();
#pragma unroll
    for (int step = 3; step >= 0; --step) {
      const auto freq_of = [](uint2 symbol) {
        std::uint32_t freq;  // 256 - byte 1
        asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(freq) : "r"(symbol.y), "r"(0xFF00), "r"(256));
        return freq;
      };
      const uint2 first = symbols[2 * step], second = symbols[2 * step + 1];
      // Below 2^32: two frequencies of 256 would be a plane of one byte, not coded.
      const std::uint32_t limit = freq_of(first) * freq_of(second) << 16;
      const bool full = x >= limit;
      words[step] = x;
      masks[step] = __ballot_sync(kAll, full);
      x = full ? x >> 16 : x;
      code_symbol<kExact>(x, second);
      code_symbol<kExact>(x, first);
    }
  }
};

// Words fill a buffer in shared memory from its end and leave it in chunks of 512
// bytes; what is left then moves back to the end.
struct WordSink {
  static constexpr std::uint32_t kChunk = 512;
  Coder coder;
  std::uint32_t top;  // address
  std::uint32_t num_flushed = 0;
  std::uint8_t* words_end;

  __device__ WordSink(std::uint32_t buffer, std::uint8_t* end_at)
      : coder(buffer + kWordBuffer), top(buffer + kWordBuffer), words_end(end_at) {}
  __device__ __forceinline__ void write_out() {
    num_flushed += kChunk;
    __syncwarp();
    *reinterpret_cast<uint4*>(words_end - num_flushed + 16 * lane_id()) =
        load_shared16(top - kChunk + 16 * lane_id());
  }
  // After each group, which takes at most 256 bytes.
  __device__ __forceinline__ void flush_chunk() {
    if (top - coder.end < kChunk) return;
    write_out();
    const uint2 rest = load_shared8(top - kChunk - 256 + 8 * lane_id());
    __syncwarp();
    store_shared(top - 256 + 8 * lane_id(), rest);
    coder.end += kChunk;
    __syncwarp();
  }
  __device__ __forceinline__ std::uint32_t num_bytes() const {
    return num_flushed + (top - coder.end);
  }
  // Returns the number of words.
  __device__ __forceinline__ std::uint32_t finish() {
    coder.put_words();
    flush_chunk();
    const std::uint32_t all = num_bytes();
    if (top != coder.end) write_out();
    __syncwarp();
    return all / 2;
  }
};

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
