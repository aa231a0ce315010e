// cuda/bulk_copy.cuh - blocks move between global and shared memory as a whole:
// by the bulk copy engine where there is one (sm_90 on), else by loads and stores.
#pragma once
#include "cuda/device_frame.cuh"
#include "cuda/tensor_access.cuh"

namespace snug::cuda {

inline constexpr std::uint32_t kPieceBytes = 4096;  // of one copy: lanes share the work

// A barrier in shared memory; a load completes one of count 1. One thread sets it up.
__device__ __forceinline__ void init_barrier(std::uint32_t barrier, unsigned count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
__device__ __forceinline__ void arrive(std::uint32_t barrier) {
  asm volatile("{\n\t.reg .b64 t;\n\tmbarrier.arrive.shared.b64 t, [%0];\n\t}" ::"r"(barrier)
               : "memory");
}

__device__ __forceinline__ void wait_barrier(std::uint32_t barrier, unsigned parity) {
  unsigned done = 0;
  while (done == 0) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
#else
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
#endif
  }
}

// What threads wrote to shared memory becomes visible to bulk copies issued
// after the next barrier.
__device__ __forceinline__ void fence_for_bulk() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Announces a load of num_bytes (a multiple of 16), by one thread, before its copies.
__device__ __forceinline__ void expect_load(std::uint32_t barrier, std::uint32_t num_bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(num_bytes)
               : "memory");
#endif
}
// The end of a load, by the same thread.
__device__ __forceinline__ void finish_load(std::uint32_t barrier) {
#if __CUDA_ARCH__ < 900
  arrive(barrier);
#endif
}

// One copy by one thread; addresses and sizes are multiples of 16.
__device__ __forceinline__ void bulk_load(std::uint32_t shared, const void* global,
                                          std::uint32_t num_bytes, std::uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(global), "r"(num_bytes), "r"(barrier)
      : "memory");
#else
  for (std::uint32_t i = 0; i < num_bytes; i += 16)
    store_shared(shared + i,
                 *reinterpret_cast<const uint4*>(static_cast<const std::uint8_t*>(global) + i));
#endif
}

__device__ __forceinline__ void bulk_store(void* global, std::uint32_t shared,
                                           std::uint32_t num_bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared), "r"(num_bytes)
               : "memory");
#else
  for (std::uint32_t i = 0; i < num_bytes; i += 16)
    *reinterpret_cast<uint4*>(static_cast<std::uint8_t*>(global) + i) = load_shared16(shared + i);
#endif
}

// This thread's stores have read their shared memory, which may be reused then.
__device__ __forceinline__ void wait_stores() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}

// Calls copy(address, offset, num_bytes) for the lane's share of the pieces of
// [pos, pos + num_bytes) of the tensor.
template <class Copy>
__device__ __forceinline__ void for_each_piece(const DirectAccess& tensor, std::uint64_t pos,
                                               std::uint32_t num_bytes, Copy copy) {
  for (std::uint32_t at = lane_id() * kPieceBytes; at < num_bytes; at += kWarp * kPieceBytes)
    copy(tensor.data + pos + at, at, min(num_bytes - at, kPieceBytes));
}
template <class Copy>
__device__ __forceinline__ void for_each_piece(const ScatteredAccess& tensor, std::uint64_t pos,
                                               std::uint32_t num_bytes, Copy copy) {
  for (std::uint32_t at = lane_id() * kPieceBytes; at < num_bytes; at += kWarp * kPieceBytes) {
    const std::uint32_t end = min(at + kPieceBytes, num_bytes);
    for (std::uint32_t i = at; i < end;) {
      const ScatteredAccess::Piece piece = tensor.find(pos + i);
      const std::uint32_t here =
          piece.left < end - i ? static_cast<std::uint32_t>(piece.left) : end - i;
      copy(piece.at, i, here);
      i += here;
    }
  }
}

// Whether bulk copies can move these bytes; the answer is the warp's.
__device__ __forceinline__ bool can_move_in_bulk(const DirectAccess&, std::uint64_t,
                                                 std::uint32_t) {
  return true;
}
inline __device__ __noinline__ bool can_move_in_bulk(const ScatteredAccess& tensor,
                                                     std::uint64_t pos, std::uint32_t num_bytes) {
  bool good = true;
  for_each_piece(tensor, pos, num_bytes,
                 [&](const std::uint8_t* at, std::uint32_t, std::uint32_t here) {
                   good &= (reinterpret_cast<std::uintptr_t>(at) | here) % 16 == 0;
                 });
  return __all_sync(kAll, good);
}

// By a whole warp: starts the load of a block of the tensor that
// can_move_in_bulk, a multiple of 16 bytes.
template <class Access>
__device__ __forceinline__ void load_block(const Access& src, std::uint64_t pos,
                                           std::uint32_t num_bytes, std::uint32_t shared,
                                           std::uint32_t barrier) {
  if (lane_id() == 0) expect_load(barrier, num_bytes);
  __syncwarp();
  for_each_piece(src, pos, num_bytes,
                 [&](const std::uint8_t* at, std::uint32_t offset, std::uint32_t here) {
                   bulk_load(shared + offset, at, here, barrier);
                 });
  __syncwarp();
  if (lane_id() == 0) finish_load(barrier);
}

// The same into memory that a store of this warp still reads: each lane's piece is
// loaded as soon as what was there has been read, four lanes at a time.
template <class Access>
__device__ __forceinline__ void load_block_behind_store(const Access& src, std::uint64_t pos,
                                                        std::uint32_t num_bytes,
                                                        std::uint32_t shared,
                                                        std::uint32_t barrier) {
  if (lane_id() == 0) expect_load(barrier, num_bytes);
  __syncwarp();
#pragma unroll 1
  for (unsigned first = 0; first < kWarp; first += 4) {
    if (lane_id() / 4 * 4 == first) {
      wait_stores();
      for_each_piece(src, pos, num_bytes,
                     [&](const std::uint8_t* at, std::uint32_t offset, std::uint32_t here) {
                       bulk_load(shared + offset, at, here, barrier);
                     });
    }
  }
  __syncwarp();
  if (lane_id() == 0) finish_load(barrier);
}

template <class Access>
__device__ __forceinline__ void store_block(const Access& dst, std::uint64_t pos,
                                            std::uint32_t num_bytes, std::uint32_t shared) {
  for_each_piece(dst, pos, num_bytes,
                 [&](std::uint8_t* at, std::uint32_t offset, std::uint32_t here) {
                   bulk_store(at, shared + offset, here);
                 });
}

}  // namespace snug::cuda
