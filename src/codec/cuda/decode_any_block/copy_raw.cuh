// codec/cuda/decode_any_block/copy_raw.cuh - one warp copies a raw block. What is under way lands
// in shared memory: the first-level cache is small where that is large, and would hold up loads.
#pragma once
#include "codec/cuda/frame/tensor_access.cuh"

namespace snug::cuda {

// `room` is the address of 512 bytes a stage.
inline constexpr unsigned kRawStages = 8;

__device__ __forceinline__ Reason copy_raw_block(const std::uint8_t* payload, const DeviceEntry& e,
                                                 std::uint32_t n, unsigned width, DirectAccess dst,
                                                 std::uint64_t pos, std::uint32_t room,
                                                 std::uint64_t& sum) {
  const std::uint32_t raw = n * width, full = raw / 16, mine = room + 16 * lane_id();
  if (e.plane_modes != 0 || e.num_bytes != align16(raw)) return kReasonPayload;
  const uint4* vecs = reinterpret_cast<const uint4*>(payload);
  const auto fetch = [&](std::uint32_t vec, unsigned stage) {
    if (vec < full) copy_async_b128(mine + 16 * kWarpSize * stage, vecs + vec);
    commit_copies();
  };
  std::uint32_t vec = lane_id(), factor = checksum_factor(4 * vec);
  dst = advanced(dst, pos);
#pragma unroll
  for (unsigned s = 0; s < kRawStages; ++s) fetch(vec + kWarpSize * s, s);
#pragma unroll 1
  while (vec < full) {
#pragma unroll
    for (unsigned s = 0; s < kRawStages; ++s) {
      wait_copies<kRawStages - 1>();
      const uint4 v = load_shared_b128(mine + 16 * kWarpSize * s);
      fetch(vec + kWarpSize * kRawStages, s);
      if (vec < full) {
        dst.store16(16 * std::uint64_t{vec}, v);
        sum += checksum_terms(v, factor);
      }
      vec += kWarpSize;
      factor += 4 * kWarpSize * frame::kChecksumStep;
    }
  }
  wait_copies<0>();
  if (raw % 16 != 0 && lane_id() == 0) {
    const uint4 last = __ldg(vecs + full);
    store_end(dst, 16 * std::uint64_t{full}, last, static_cast<std::int32_t>(raw % 16));
    sum += checksum_term(last, full);
  }
  return kReasonNone;
}

}  // namespace snug::cuda
