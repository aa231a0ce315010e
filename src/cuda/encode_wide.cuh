// cuda/encode_wide.cuh - a thread block loads one block of the frame into shared
// memory, turns it into its payload in place and stores that. Worker threads do the
// arithmetic (cuda/encode_fixed.cuh); one more warp, the placer, moves data and
// finds the block's place in the frame meanwhile.
#pragma once
#include "cuda/encode_fixed.cuh"

namespace snug::cuda {

// Number of escapes, codec, modes and size of the block.
template <int kWidth, int kThreads>
__device__ __forceinline__ void settle_block(const Work& work, FixedSmem<kThreads>& smem) {
  const unsigned lane = lane_id(), width = width_of(work.dtype);
  const std::uint32_t n = smem.job.n;
  const auto room = static_cast<std::uint32_t>(align16(std::uint64_t{n} * width));
  std::uint32_t total = 0, modes = 0, payload = room;
  Codec codec = Codec::kRaw;
  if constexpr (kWidth > 1) {
    total = escapes_before(smem.num_escapes_of, kThreads / kWarp);
    if constexpr (kWidth == 4)
      for (unsigned p = 0; p < 3; ++p)
        if ((smem.differs >> (8 * p) & 255) == 0) modes |= 1u << (2 * p);
    const std::uint64_t coded = FixedParts(n, kWidth, modes).head + codec::FixedHeader::kBytes +
                                align16(4 * std::uint64_t{total});
    if (coded < room) {
      codec = Codec::kFixed;
      payload = static_cast<std::uint32_t>(coded);
    }
  }
  if (work.codec != Codec::kRaw && smem.differs == 0) {
    codec = Codec::kConstant;
    payload = 16;
  }
  if (lane == 0) {
    smem.sum = 0;
    smem.num_escapes = total;
    smem.codec = static_cast<std::uint32_t>(codec);
    smem.plane_modes = codec == Codec::kFixed ? modes : 0;
    smem.payload_bytes = payload;
  }
  __syncwarp();
}

// Draws tickets until one has a block; false after the last.
template <class Access, int kThreads>
__device__ __forceinline__ bool draw_job(const Work& work, std::uint64_t num_tickets,
                                         FixedSmem<kThreads>& smem) {
  for (;;) {
    const std::uint64_t ticket = warp_ticket(work.ticket);
    if (ticket >= num_tickets || upstream_failed(work, ticket)) return false;
    if (lane_id() == 0) smem.next_job = make_encode_job(work, ticket);
    __syncwarp();
    if (smem.next_job.num_blocks != 0) return true;
    if (lane_id() == 0)
      finish_frame(work, smem.next_job, access_item<Access>(work, smem.next_job.w.item));
    __syncwarp();
  }
}

template <class Access, int kWidth, int kThreads>
__device__ __forceinline__ void place_blocks(const Work& work, std::uint8_t* block,
                                             FixedSmem<kThreads>& smem) {
  const unsigned lane = lane_id(), width = width_of(work.dtype);
  const std::uint32_t stage = shared_address(block), barrier = shared_address(&smem.loaded);
  const std::uint64_t num_tickets_in_all = num_tickets(work);
  Tally tally;
  bool more = draw_job<Access>(work, num_tickets_in_all, smem), written = false;
  DeviceEntry entry{};
  for (bool first = true;; first = false) {
    if (more) {
      const EncodeJob& next = smem.next_job;
      const Access src = access_item<Access>(work, next.w.item);
      const std::uint32_t num_bytes = next.n * width, whole_vecs = num_bytes & ~15u;
      const bool in_bulk = can_move_in_bulk(src, next.pos, whole_vecs);
      if (!in_bulk || num_bytes != whole_vecs) {
        wait_stores();
        __syncwarp();
      }
      if (in_bulk) {
        if (lane < num_bytes - whole_vecs)
          block[whole_vecs + lane] = src.load_byte(next.pos + whole_vecs + lane);
        load_block_behind_store(src, next.pos, whole_vecs, stage, barrier);
      }
      if (lane == 0) smem.by_hand = !in_bulk;
    } else {
      wait_stores();
    }
    // What is left to do for the block before, now that the next one is on its way.
    if (lane == 0 && !first) {
      tally.add(work, smem.job, entry, written);
      if (!more || smem.next_job.w.idx != smem.job.w.idx)
        tally.flush(work, smem.job, access_item<Access>(work, smem.job.w.item));
    }
    if (lane == 0) {
      smem.ends = !more;
      if (more) smem.job = smem.next_job;
    }
    __syncwarp();
    sync_all<kThreads>();
    if (!more) return;
    if constexpr (kWidth > 1) {
      sync_all<kThreads>();
      bool one_value;
      const uint2 palette = make_fixed_palette<kHistogramCopies>(smem.histogram, one_value);
      if (lane < 14) {
        const unsigned i = lane / 2, high = (i < 4 ? palette.x : palette.y) >> (i % 4 * 8) & 255;
        smem.lut[high + lane % 2 * 128] = static_cast<std::uint8_t>(i);
      }
      if (lane == 0) {
        smem.palette = palette;
        smem.may_be_constant = one_value;
      }
      sync_all<kThreads>();
    }
    sync_all<kThreads>();
    settle_block<kWidth, kThreads>(work, smem);
    sync_all<kThreads>();
    // The look-back runs while the workers write the payload. The next ticket is not
    // drawn earlier: who holds one makes all later blocks wait for its size.
    const EncodeJob& job = smem.job;
    const std::uint64_t units = place_block(work.sizes + job.w.first_block, job.block,
                                            smem.payload_bytes / 16, job.payload_start() / 16);
    entry = {units * 16, smem.codec, smem.plane_modes, smem.payload_bytes, 0};
    written = job.fits && entry.offset + entry.num_bytes <= job.w.item.frame_bytes;
    more = draw_job<Access>(work, num_tickets_in_all, smem);
    sync_all<kThreads>();
    if (written)
      store_block(DirectAccess{static_cast<std::uint8_t*>(job.w.item.frame)}, entry.offset,
                  entry.num_bytes, stage);
    entry.checksum = checksum_finish(smem.sum, entry.num_bytes);
  }
}

template <class Access, int kWidth, int kThreads>
__global__ void __launch_bounds__(kThreads + kWarp, 768 / kThreads)
    encode_wide_kernel(const __grid_constant__ Work work) {
  extern __shared__ __align__(128) std::uint8_t block[];
  __shared__ FixedSmem<kThreads> smem;
  if (threadIdx.x == kThreads) init_barrier(shared_address(&smem.loaded), 1);
  __syncthreads();
  if (threadIdx.x < kThreads)
    code_blocks<Access, kWidth, kThreads>(work, block, smem);
  else
    place_blocks<Access, kWidth, kThreads>(work, block, smem);
}

}  // namespace snug::cuda
