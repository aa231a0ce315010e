// cuda/encode_frame.cuh - what all encode kernels do around a block: which one,
// index entry, header, result.
#pragma once
#include "cuda/block_order.cuh"
#include "cuda/work.cuh"

namespace snug::cuda {

// The block a ticket stands for.
struct EncodeJob {
  WorkItem w;
  std::uint64_t block;
  std::uint64_t num_blocks;  // of the item
  std::uint64_t pos;         // of the block in the tensor, bytes
  std::uint32_t n;           // elements
  bool fits;                 // header and index fit into the frame

  __device__ std::uint64_t payload_start() const {
    return frame::kHeaderBytes + num_blocks * frame::kEntryBytes;
  }
};

__device__ inline std::uint64_t num_tickets(const Work& work) {
  if (work.items != nullptr) return work.first_block[work.num_items];
  const std::uint64_t elems = elems_in(work.single.tensor_bytes, work.dtype);
  const std::uint64_t blocks =
      (elems + (std::uint64_t{1} << work.log2_block) - 1) >> work.log2_block;
  return blocks == 0 ? 1 : blocks;
}

inline __device__ __noinline__ EncodeJob make_encode_job(const Work& work, std::uint64_t ticket) {
  EncodeJob job;
  job.w = find_item(work, ticket);
  job.block = ticket - job.w.first_block;
  const unsigned width = width_of(work.dtype);
  const std::uint64_t elems = elems_in(job.w.item.tensor_bytes, work.dtype);
  job.num_blocks = (elems + (std::uint64_t{1} << work.log2_block) - 1) >> work.log2_block;
  job.pos = (job.block << work.log2_block) * width;
  const std::uint64_t left = elems - (job.block << work.log2_block);
  job.n = static_cast<std::uint32_t>(left >> work.log2_block ? 1u << work.log2_block : left);
  job.fits = job.w.item.frame_bytes >= job.payload_start() &&
             reinterpret_cast<std::uintptr_t>(job.w.item.frame) % frame::kAlign == 0;
  return job;
}

// The header, by one thread, once all blocks are done.
template <class Access>
__device__ __noinline__ void finish_frame(const Work& work, EncodeJob job, Access src) {
  ItemState& state = work.states[job.w.idx];
  const unsigned width = width_of(work.dtype);
  const std::uint64_t raw = job.w.item.tensor_bytes, elems = elems_in(raw, work.dtype);
  const auto num_tail = static_cast<unsigned>(raw & (width - 1));
  const std::uint64_t end =
      job.num_blocks == 0 ? job.payload_start() : atomicAdd(&state.frame_end, 0ull);
  if (!job.fits) report(&state, Code::kDstTooSmall, kReasonFrameRoom, kNowhere);
  if (job.fits) {
    std::uint64_t tail = 0;
    for (unsigned i = 0; i < num_tail; ++i)
      tail |= std::uint64_t{src.load_byte(elems * width + i)} << (8 * i);
    std::uint32_t head[frame::kHeaderBytes / 4] = {};
    head[0] = frame::kMagic;
    head[1] = frame::kVersion | static_cast<std::uint32_t>(work.dtype) << 8 |
              work.log2_block << 16 | num_tail << 24;
    head[2] = static_cast<std::uint32_t>(elems);
    head[3] = static_cast<std::uint32_t>(elems >> 32);
    head[4] = static_cast<std::uint32_t>(end);
    head[5] = static_cast<std::uint32_t>(end >> 32);
    head[6] = static_cast<std::uint32_t>(tail);
    head[7] = static_cast<std::uint32_t>(tail >> 32);
    std::uint64_t sum = atomicAdd(&state.head_sum, 0ull);
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) sum += checksum_term(head[i], i);
    head[8] = checksum_finish(sum, job.payload_start());
    auto* out = static_cast<std::uint32_t*>(job.w.item.frame);
#pragma unroll
    for (unsigned i = 0; i < frame::kHeaderBytes / 4; ++i) out[i] = head[i];
  }
  write_result(&work.results[job.w.idx], atomicAdd(&state.first_error, 0ull), end);
}

// The finished blocks of one item that a thread has not told the others about yet:
// few atomics instead of some for every block.
struct Tally {
  std::uint64_t head_sum = 0;
  unsigned done = 0;
  std::uint32_t item = 0;

  __device__ bool is_of_another_item(const Work& work, std::uint64_t ticket) const {
    return done != 0 && work.items != nullptr && work.first_block[item + 1] <= ticket;
  }
  // Writes the index entry of a block. entry.offset is where the payload went;
  // `written` is false where it did not fit.
  __device__ void add(const Work& work, const EncodeJob& job, const DeviceEntry& entry,
                      bool written) {
    const uint4 packed = pack_entry(entry);
    if (job.fits)
      reinterpret_cast<uint4*>(static_cast<std::uint8_t*>(job.w.item.frame) +
                               frame::kHeaderBytes)[job.block] = packed;
    ItemState& state = work.states[job.w.idx];
    if (!written) report(&state, Code::kDstTooSmall, kReasonFrameRoom, kNowhere);
    if (job.block + 1 == job.num_blocks)
      atomicExch(&state.frame_end, entry.offset + entry.num_bytes);
    head_sum += checksum_term(packed, static_cast<std::uint32_t>(4 + job.block));
    item = job.w.idx;
    ++done;
  }
  // `job` is any of the item. The last to come writes the header.
  template <class Access>
  __device__ void flush(const Work& work, const EncodeJob& job, const Access& src) {
    if (done == 0) return;
    ItemState& state = work.states[item];
    atomicAdd(&state.head_sum, static_cast<unsigned long long>(head_sum));
    __threadfence();
    const bool last = atomicAdd(&state.done, done) + done == job.num_blocks;
    head_sum = 0;
    done = 0;
    if (!last) return;
    __threadfence();
    finish_frame(work, job, src);
  }
};

// Whether the call this one depends on (a decode, for transcoding) went well;
// if not, the holder of ticket 0 says so.
__device__ inline bool upstream_failed(const Work& work, std::uint64_t ticket) {
  if (work.upstream == nullptr) return false;
  const DeviceResult before = *work.upstream;
  if (before.code == 0 && before.num_bytes == work.single.tensor_bytes) return false;
  if (ticket == 0 && lane_id() == 0)
    *work.results = {
        0, before.code != 0 ? before.code : static_cast<std::uint32_t>(Code::kDstTooSmall),
        kReasonUpstream, before.block};
  return true;
}

}  // namespace snug::cuda
