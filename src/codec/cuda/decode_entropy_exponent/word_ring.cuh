// codec/cuda/decode_entropy_exponent/word_ring.cuh - the words of a stream in shared memory.
#pragma once
#include "codec/cuda/frame/device_frame.cuh"

namespace snug::cuda {

// Renormalisation: takes the lane's next word if its state is too low. `next` is the address of the
// stream's next word; the words of a whole group are contiguous from there on.
__device__ __forceinline__ void take_word(u32& x, u32& next, unsigned lanes_below) {
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      ".reg .b32 needing, at, word;\n\t"
      "setp.lt.u32 p, %0, 65536;\n\t"
      "vote.sync.ballot.b32 needing, p, 0xFFFFFFFF;\n\t"
      "and.b32 at, needing, %2;\n\t"
      "popc.b32 at, at;\n\t"
      "mad.lo.u32 at, at, 2, %1;\n\t"
      "ld.shared.u16 word, [at];\n\t"  // all lanes: a predicated load keeps the old value alive
      "@p prmt.b32 %0, %0, word, 0x1054;\n\t"
      "popc.b32 needing, needing;\n\t"
      "mad.lo.u32 %1, needing, 2, %1;\n\t"
      "}"
      : "+r"(x), "+r"(next)
      : "r"(lanes_below)
      : "memory");
}

// The words of one section, prefetched into shared memory: two chunks of one Vec a lane in turn,
// and a copy of the start of the first behind the second, so that the words of a group are
// contiguous.
template <class Vec>
struct WordRing {
  static constexpr u32 kChunkBytes = sizeof(Vec) * kWarpSize;
  static constexpr u32 kRingBytes = 2 * kChunkBytes;
  static constexpr u32 kGroupBytes = 256;  // most that a group consumes
  static constexpr u32 kRoom = kRingBytes + kGroupBytes;

  const Vec* vecs;  // of the payload
  u32 next_vec, end_vec;
  u32 filled = 0, consumed = 0;  // bytes
  Vec ahead;

  // `past_vec` may be the payload's: the end of the section need not be known yet.
  __device__ __forceinline__ WordRing(const u8* payload, u32 first_vec, u32 past_vec)
      : vecs(reinterpret_cast<const Vec*>(payload)), next_vec(first_vec), end_vec(past_vec) {
    load_ahead();
  }
  __device__ __forceinline__ void load_ahead() {
    // Lanes beyond the end load the last vector: a select would wait for the load.
    ahead = __ldcs(vecs + min(next_vec + lane_id(), end_vec - 1));
  }
  // Provides the words of a whole group at the address returned. Calls pass(vector, index) for what
  // is added to the ring.
  template <class Pass>
  __device__ __forceinline__ u32 refill(u32 ring, Pass pass) {
    if (static_cast<i32>(filled - consumed) < static_cast<i32>(kGroupBytes)) {
      const u32 at = filled & kChunkBytes;
      const u32 mine = ring + sizeof(Vec) * lane_id();
      __syncwarp();
      store_shared(mine + at, ahead);
      if (at == 0 && sizeof(Vec) * lane_id() < kGroupBytes) store_shared(mine + kRingBytes, ahead);
      filled += kChunkBytes;
      pass(ahead, next_vec + lane_id());
      next_vec += kWarpSize;
      load_ahead();
      __syncwarp();
    }
    return ring + (consumed & (kRingBytes - 1));
  }
};

}  // namespace snug::cuda
