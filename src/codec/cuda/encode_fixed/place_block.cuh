// codec/cuda/encode_fixed/place_block.cuh - the placers of encode_fixed.cu: codec, plane modes,
// size and place in the frame of an analyzed block.
#pragma once
#include "codec/cuda/encode_fixed/encode_ring.cuh"

namespace snug::cuda {

// By one warp.
template <int kWidth>
__device__ __forceinline__ void settle_block(const Work& work, BlockInfo& info) {
  const EncodeJob& job = info.job;
  const u32 differs = info.differs;
  const auto room = static_cast<u32>(align16(u64{job.n} * width_in<kWidth>(work)));
  u32 modes = 0, payload = room;
  Codec codec = Codec::kRaw;
  if constexpr (kWidth > 1) {
    if constexpr (kWidth == 4)
      for (unsigned p = 0; p < 3; ++p)
        if ((differs >> (8 * p) & 255) == 0) modes |= mode_bits(PlaneMode::kConstant, p);
    const u64 coded = FixedParts(job.n, kWidth, modes).head + codec::FixedHeader::kBytes +
                      align16(4 * u64{info.num_escapes});
    if (coded < room) {
      codec = Codec::kFixed;
      payload = static_cast<u32>(coded);
    }
  }
  if (work.codec != Codec::kRaw && differs == 0) {
    codec = Codec::kConstant;
    payload = 16;
  }
  const u64 units = place_block(work.sizes + job.w.first_block, job.block, payload / 16,
                                job.payload_start() / 16);
  if (lane_id() != 0) return;
  info.offset = units * 16;
  info.written = job.fits && info.offset + payload <= job.w.item.frame_bytes;
  info.codec = static_cast<u32>(codec);
  info.plane_modes = codec == Codec::kFixed ? modes : 0;
  info.payload_bytes = payload;
}

template <int kWidth>
__device__ __forceinline__ void place_blocks(const Work& work, unsigned num_placers,
                                             unsigned placer, EncodeFixedSmem& smem) {
  if (placer >= num_placers) return;
  for (unsigned j = placer;; j += num_placers) {
    await_block(smem.counted, j);
    BlockInfo& info = smem.infos[j % kBlockInfos];
    if (info.ends) return;
    settle_block<kWidth>(work, info);
    __syncwarp();
    barrier_arrive(shared_address(&smem.placed[j % kBlockInfos]));
  }
}

}  // namespace snug::cuda
