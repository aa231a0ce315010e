// cuda/word_ring.cuh - reading tables and words of a stream from shared memory.
#pragma once
#include "cuda/device_frame.cuh"

namespace snug::cuda {

__device__ __forceinline__ std::uint32_t load_shared_u32(std::uint32_t address) {
  std::uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ std::uint32_t load_shared_u16(std::uint32_t address) {
  std::uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ std::uint32_t load_shared_u8(std::uint32_t address) {
  std::uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}

// Takes the lane's next word from the ring if its state is too low.
template <unsigned kRing>
__device__ __forceinline__ void take_word(std::uint32_t& x, std::uint32_t ring,
                                          std::uint32_t& consumed, unsigned lanes_below) {
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      ".reg .b32 needing, at, word;\n\t"
      "setp.lt.u32 p, %0, 65536;\n\t"
      "vote.sync.ballot.b32 needing, p, 0xFFFFFFFF;\n\t"
      "and.b32 at, needing, %2;\n\t"
      "popc.b32 at, at;\n\t"
      "mad.lo.u32 at, at, 2, %1;\n\t"
      "lop3.b32 at, at, %4, %3, 0xEA;\n\t"  // (at & (kRing - 1)) | ring
      "ld.shared.u16 word, [at];\n\t"  // by all lanes: a predicated load would keep an old value
                                       // alive
      "@p prmt.b32 %0, %0, word, 0x1054;\n\t"
      "popc.b32 needing, needing;\n\t"
      "mad.lo.u32 %1, needing, 2, %1;\n\t"
      "}"
      : "+r"(x), "+r"(consumed)
      : "r"(lanes_below), "r"(ring), "n"(kRing - 1)
      : "memory");
}

}  // namespace snug::cuda
