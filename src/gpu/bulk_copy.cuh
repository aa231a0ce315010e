// gpu/bulk_copy.cuh - blocks move between global and shared memory as a whole:
// by the bulk copy engine where there is one (sm_90 on), else by loads and stores.
#pragma once
#include "gpu/bulk_load.cuh"
#include "codec/cuda/frame/device_frame.cuh"
#include "codec/cuda/frame/tensor_access.cuh"

namespace snug::cuda {

inline constexpr std::uint32_t kPieceBytes = 8192;  // of one copy: lanes share the work

// What threads wrote to shared memory becomes visible to bulk copies issued
// after the next barrier.
__device__ __forceinline__ void fence_for_bulk() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// A barrier in shared memory; a load completes one of count 1. One thread sets it up.
__device__ __forceinline__ void set_barrier(std::uint32_t barrier, unsigned count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// The same for bulk copies.
__device__ __forceinline__ void init_barrier(std::uint32_t barrier, unsigned count) {
  set_barrier(barrier, count);
  fence_for_bulk();
}
__device__ __forceinline__ void arrive(std::uint32_t barrier) {
  asm volatile("{\n\t.reg .b64 t;\n\tmbarrier.arrive.shared.b64 t, [%0];\n\t}" ::"r"(barrier)
               : "memory");
}

// Whether waiting there would be over at once.
__device__ __forceinline__ bool has_passed(std::uint32_t barrier, unsigned parity) {
  unsigned done;
  asm volatile(
      "{\n\t.reg .pred p;\n\t"
      "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n\t"
      "selp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
__device__ __forceinline__ void wait_barrier(std::uint32_t barrier, unsigned parity) {
#if __CUDA_ARCH__ >= 900
  unsigned done = 0;
  while (done == 0)
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
#else
  while (!has_passed(barrier, parity)) {
  }
#endif
}

// The first kThreads of a thread block as a team.
template <unsigned kThreads>
struct BarrierTeam {
  static constexpr unsigned kSize = kThreads;
  __device__ static unsigned idx() { return threadIdx.x; }
  __device__ static void sync() { asm volatile("bar.sync 1, %0;" ::"n"(kSize) : "memory"); }
  __device__ static bool all(bool v) {
    unsigned good;
    asm volatile(
        "{\n\t.reg .pred p, q;\n\tsetp.ne.u32 p, %1, 0;\n\tbar.red.and.pred q, 1, %2, "
        "p;\n\tselp.u32 %0, 1, 0, q;\n\t}"
        : "=r"(good)
        : "r"(static_cast<unsigned>(v)), "n"(kSize)
        : "memory");
    return good != 0;
  }
};

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

// Asks for a piece of global memory in the L2 cache, by one thread, as bulk_load.
__device__ __forceinline__ void bulk_prefetch(const void* global, std::uint32_t num_bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(num_bytes)
               : "memory");
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

}  // namespace snug::cuda
