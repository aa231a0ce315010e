// codec/cuda/decode_entropy_exponent/palette_escapes.cuh - puts escaped bytes into decoded groups
// before those are stored: patching stored values would cost more.
#pragma once
#include "codec/cuda/decode_entropy_exponent/palette_section.cuh"

namespace snug::cuda {

// Escapes of a block in shared memory, 512 bytes of the payload at a time.
template <bool kInPlace>  // as open_palette_section
struct EscapeBytes {
  static constexpr u32 kRoom = 16 * kWarpSize;
  static constexpr u32 kFlags = kInPlace ? 0x80008000u : 0x00010001u;
  // Multiplying a byte with this moves it to its place in the lower half of a pair.
  static constexpr u32 kUnit = kInPlace ? 1u << 7 : 1u << 8;

  const u8* payload;
  u32 num_bytes;  // of it
  u32 window;     // address in shared memory
  u32 first;      // payload offset of the window
  u32 next;       // payload offset of the next escape

  // Starts loading the window; the caller waits before the first patch().
  __device__ __forceinline__ EscapeBytes(const u8* block, u32 block_bytes, u32 room, u32 escapes_at)
      : payload(block),
        num_bytes(block_bytes),
        window(room),
        first(escapes_at & ~15u),
        next(escapes_at) {
    load();
  }
  __device__ __forceinline__ void load() {
    const u32 mine = first + 16 * lane_id();
    if (mine < num_bytes) copy_async_b128(window + 16 * lane_id(), payload + mine);
    commit_copies();
  }

  __device__ __forceinline__ static bool any(const u32 (&pairs)[4]) {
    return __any_sync(kAllLanes, ((pairs[0] | pairs[1] | pairs[2] | pairs[3]) & kFlags) != 0);
  }
  // Puts escapes where the pairs of a group have flags, in its first num_values.
  __device__ __forceinline__ void patch(u32 (&pairs)[4], u32 num_values, unsigned lanes_below) {
    if (next - first > kRoom - kGroupElems) {
      __syncwarp();
      first = next & ~15u;
      load();
      wait_copies<0>();
      __syncwarp();
    }
    // The sum of kUnit, shifted to each half of a pair that is an escape.
    const auto units_of = [](u32 pair) {
      return kInPlace ? pair >> 8 & (kUnit | kUnit << 16) : (pair & kFlags) << 8;
    };
    // No loops over elements: the compiler would put the array into local memory.
    if (num_values < kGroupElems) {
      const auto keep = [&](u32& pair, u32 value) {
        if (value + 1 >= num_values) pair &= value < num_values ? 0xFFFFu : 0u;
      };
      keep(pairs[0], 8 * lane_id());
      keep(pairs[1], 8 * lane_id() + 2);
      keep(pairs[2], 8 * lane_id() + 4);
      keep(pairs[3], 8 * lane_id() + 6);
    }
    const u32 all =
        units_of(pairs[0]) + units_of(pairs[1]) + units_of(pairs[2]) + units_of(pairs[3]);
    const unsigned holders = __ballot_sync(kAllLanes, all != 0);
    // Common case: no lane has more than one escape, so `all` is one unit or 0.
    if (!__any_sync(kAllLanes, ((all & (all - 1)) | (all & ~(kUnit | kUnit << 16))) != 0)) {
      const u32 byte = load_shared_u8(window + (next - first) + __popc(holders & lanes_below));
      pairs[0] += units_of(pairs[0]) * byte;
      pairs[1] += units_of(pairs[1]) * byte;
      pairs[2] += units_of(pairs[2]) * byte;
      pairs[3] += units_of(pairs[3]) * byte;
      next += __popc(holders);
      return;
    }
    // Up to 8 a lane.
    const u32 count = __popc(units_of(pairs[0]) | units_of(pairs[1]) << 1 |
                             units_of(pairs[2]) << 2 | units_of(pairs[3]) << 3);
    const u32 upto = warp_inclusive_sum(count);
    u32 at = window + (next - first) + upto - count;
    next += __shfl_sync(kAllLanes, upto, 31);
    const auto put = [&](u32& pair) {
      if ((units_of(pair) & kUnit) != 0) pair += kUnit * load_shared_u8(at++);
      if ((units_of(pair) & kUnit << 16) != 0) pair += (kUnit << 16) * load_shared_u8(at++);
    };
    put(pairs[0]);
    put(pairs[1]);
    put(pairs[2]);
    put(pairs[3]);
  }
};

}  // namespace snug::cuda
