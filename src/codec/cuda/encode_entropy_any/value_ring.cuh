// codec/cuda/encode_entropy_any/value_ring.cuh - feeds the values of a block to the coder through
// shared memory: loads in flight hold no registers.
#pragma once
#include "codec/cuda/encode_entropy_any/plane_sample.cuh"

namespace snug::cuda {

// A block passes through it from its end to its start, in pieces of one group or more. All lanes
// copy, and read what others copied.
template <class Access, int kWidth>
struct ValueRing {
  static constexpr i32 kGroupBytes = 128 * kWidth;
  static constexpr i32 kPieceBytes = kGroupBytes < 512 ? 512 : kGroupBytes;
  static constexpr i32 kPieceGroups = kPieceBytes / kGroupBytes;
  static constexpr i32 kPieces = kRingBytes / kPieceBytes;

  Access mine;  // this lane's first vector
  u32 ring;

  __device__ __forceinline__ ValueRing(const BlockValues<Access, kWidth>& values, i32 num_pieces,
                                       u32 address)
      : mine(advanced(values.src, values.pos + 16 * lane_id())), ring(address) {
#pragma unroll
    for (i32 i = 0; i + 1 < kPieces; ++i) fetch(num_pieces - 1 - i);
  }
  __device__ __forceinline__ void fetch(i32 piece) const {
    if (piece >= 0) {
      const u32 to = ring + kPieceBytes * (static_cast<unsigned>(piece) % kPieces);
#pragma unroll
      for (i32 at = 0; at < kPieceBytes; at += 512)
        mine.fetch16(static_cast<u32>(kPieceBytes * piece + at),
                     to + static_cast<u32>(at) + 16 * lane_id());
    }
    commit_copies();
  }
  // Waits for a piece, and starts the copy of the one that replaces the previous piece.
  __device__ __forceinline__ void enter(i32 piece) const {
    wait_copies<kPieces - 2>();
    __syncwarp();
    fetch(piece + 1 - kPieces);
  }
  // The lane's four values of a group. Below the first group they are undefined.
  __device__ __forceinline__ void read(i32 group, u32 (&words)[kWidth]) const {
    const u32 at =
        ring + static_cast<u32>(kGroupBytes * group) % kRingBytes + 4 * kWidth * lane_id();
    if constexpr (kWidth == 1) {
      words[0] = load_shared_u32(at);
    } else if constexpr (kWidth == 2) {
      const uint2 v = load_shared_b64(at);
      words[0] = v.x, words[1] = v.y;
    } else {
#pragma unroll
      for (int i = 0; i < kWidth; i += 4) {
        const uint4 v = load_shared_b128(at + 4 * i);
        words[i] = v.x, words[i + 1] = v.y, words[i + 2] = v.z, words[i + 3] = v.w;
      }
    }
  }
};

}  // namespace snug::cuda
