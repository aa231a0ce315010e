// codec/cuda/frame/bulk_copy.cuh - blocks of tensors, loaded whole by the bulk copy engine.
#pragma once
#include "codec/cuda/frame/tensor_access.cuh"
#include "gpu/ptx_barrier.cuh"

namespace snug::cuda {

inline constexpr u32 kPieceBytes = 8192;  // of one copy: lanes share the work

// Calls copy(address, offset, num_bytes) for the lane's share of the pieces of
// [pos, pos + num_bytes) of the tensor.
template <class Copy>
__device__ __forceinline__ void for_each_piece(const DirectAccess& tensor, u64 pos, u32 num_bytes,
                                               Copy copy) {
  for (u32 at = lane_id() * kPieceBytes; at < num_bytes; at += kWarpSize * kPieceBytes)
    copy(tensor.data + pos + at, at, min(num_bytes - at, kPieceBytes));
}
template <class Copy>
__device__ __forceinline__ void for_each_piece(const ScatteredAccess& tensor, u64 pos,
                                               u32 num_bytes, Copy copy) {
  for (u32 at = lane_id() * kPieceBytes; at < num_bytes; at += kWarpSize * kPieceBytes) {
    const u32 end = min(at + kPieceBytes, num_bytes);
    for (u32 i = at; i < end;) {
      const ScatteredAccess::Piece piece = tensor.find(pos + i);
      const u32 here = piece.left < end - i ? static_cast<u32>(piece.left) : end - i;
      copy(piece.at, i, here);
      i += here;
    }
  }
}

// Whether bulk copies can move these bytes; the same answer for all lanes.
inline __device__ __noinline__ bool can_move_in_bulk(const ScatteredAccess& tensor, u64 pos,
                                                     u32 num_bytes) {
  bool good = true;
  for_each_piece(tensor, pos, num_bytes, [&](const u8* at, u32, u32 here) {
    good &= (reinterpret_cast<std::uintptr_t>(at) | here) % 16 == 0;
  });
  return __all_sync(kAllLanes, good);
}

// By a whole warp: starts the load of a block that can_move_in_bulk, a multiple of 16 bytes.
template <class Access>
__device__ __forceinline__ void load_block(const Access& src, u64 pos, u32 num_bytes, u32 shared,
                                           u32 barrier) {
  if (lane_id() == 0) barrier_expect(barrier, num_bytes);
  __syncwarp();
  for_each_piece(src, pos, num_bytes, [&](const u8* at, u32 offset, u32 here) {
    bulk_load(shared + offset, at, here, barrier);
  });
  __syncwarp();
  if (lane_id() == 0) barrier_loads_issued(barrier);
}

}  // namespace snug::cuda
