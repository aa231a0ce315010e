// cuda/palette_escapes.cuh - escaped bytes on their way into the groups that they belong to,
// before those are stored: a second look at memory would cost more than all else.
#pragma once
#include "cuda/palette_section.cuh"

namespace snug::cuda {

// 16 bytes past the first-level cache, which what is read once need not pass.
__device__ __forceinline__ void copy_async_once(std::uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// Escapes of a block in shared memory, 512 bytes of the payload at a time.
template <bool kInPlace>  // as open_palette_section
struct EscapeBytes {
  static constexpr std::uint32_t kRoom = 16 * kWarp;
  static constexpr std::uint32_t kFlags = kInPlace ? 0x80008000u : 0x00010001u;
  // What a byte is multiplied with to come where it belongs in the lower half of a pair.
  static constexpr std::uint32_t kUnit = kInPlace ? 1u << 7 : 1u << 8;

  const std::uint8_t* payload;
  std::uint32_t num_bytes;  // of it
  std::uint32_t window;     // address in shared memory
  std::uint32_t first;      // what the window starts with, an offset in the payload
  std::uint32_t next;       // the next escape's

  // Starts loading the window; the caller waits before the first patch().
  __device__ __forceinline__ EscapeBytes(const std::uint8_t* block, std::uint32_t block_bytes,
                                         std::uint32_t room, std::uint32_t escapes_at)
      : payload(block),
        num_bytes(block_bytes),
        window(room),
        first(escapes_at & ~15u),
        next(escapes_at) {
    load();
  }
  __device__ __forceinline__ void load() {
    const std::uint32_t mine = first + 16 * lane_id();
    if (mine < num_bytes) copy_async_once(window + 16 * lane_id(), payload + mine);
    commit_copies();
  }

  __device__ __forceinline__ static bool any(const std::uint32_t (&pairs)[4]) {
    return __any_sync(kAll, ((pairs[0] | pairs[1] | pairs[2] | pairs[3]) & kFlags) != 0);
  }
  // Puts escapes where the pairs of a group have flags; of its values only so many count.
  __device__ __forceinline__ void patch(std::uint32_t (&pairs)[4], std::uint32_t num_values,
                                        unsigned lanes_below) {
    if (next - first > kRoom - kGroupElems) {
      __syncwarp();
      first = next & ~15u;
      load();
      wait_copies<0>();
      __syncwarp();
    }
    std::uint32_t units[4];  // of the escapes in a pair
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      units[k] = kInPlace ? pairs[k] >> 8 & 0x00800080u : (pairs[k] & kFlags) << 8;
      const std::uint32_t value = 8 * lane_id() + 2 * k;
      if (value + 1 >= num_values) units[k] &= value < num_values ? 0xFFFFu : 0u;
    }
    const std::uint32_t all = units[0] + units[1] + units[2] + units[3];
    const unsigned holders = __ballot_sync(kAll, all != 0);
    // No unit alone: one that was added up, or both of them.
    if (__any_sync(kAll, ((all & (all - 1)) | (all & ~(kUnit | kUnit << 16))) != 0)) {
      patch_several(pairs, units);
      return;
    }
    const std::uint32_t byte =
        load_shared_u8(window + (next - first) + __popc(holders & lanes_below));
#pragma unroll
    for (int k = 0; k < 4; ++k) pairs[k] += units[k] * byte;
    next += __popc(holders);
  }
  __device__ __forceinline__ void patch_several(std::uint32_t (&pairs)[4],
                                                const std::uint32_t (&units)[4]) {
    const std::uint32_t count =
        __popc(units[0] | units[1] << 1 | units[2] << 2 | units[3] << 3);
    std::uint32_t before = count;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const std::uint32_t below = __shfl_up_sync(kAll, before, d);
      if (lane_id() >= static_cast<unsigned>(d)) before += below;
    }
    std::uint32_t at = window + (next - first) + before - count;
    next += __shfl_sync(kAll, before, 31);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t unit = units[i / 2] & kUnit << (16 * (i % 2));
      if (unit != 0) pairs[i / 2] += unit * load_shared_u8(at++);
    }
  }
};

}  // namespace snug::cuda
