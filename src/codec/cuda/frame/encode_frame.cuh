// codec/cuda/frame/encode_frame.cuh - what all encode kernels do around a block: find it, write its
// index entry, and in the end header and result.
#pragma once
#include "codec/cuda/frame/look_back.cuh"
#include "codec/cuda/frame/work.cuh"

namespace snug::cuda {

// The block a ticket stands for.
struct EncodeJob {
  WorkItem w;
  u64 block;
  u64 num_blocks;  // of the item
  u64 pos;         // of the block in the tensor, bytes
  u32 n;           // elements
  bool fits;       // header and index fit into the frame

  __device__ u64 payload_start() const {
    return frame::kHeaderBytes + num_blocks * frame::kEntryBytes;
  }
};

__device__ inline u64 num_tickets(const Work& work) {
  if (work.items != nullptr) return work.first_block[work.num_items];
  const u64 elems = elems_in(work.single.tensor_bytes, work.dtype);
  const u64 blocks = blocks_in(elems, work.log2_block);
  return blocks == 0 ? 1 : blocks;
}

inline __device__ __noinline__ EncodeJob make_encode_job(const Work& work, u64 ticket) {
  EncodeJob job;
  job.w = find_item(work, ticket);
  job.block = ticket - job.w.first_block;
  const unsigned width = width_of(work.dtype);
  const u64 elems = elems_in(job.w.item.tensor_bytes, work.dtype);
  job.num_blocks = blocks_in(elems, work.log2_block);
  job.pos = (job.block << work.log2_block) * width;
  const u64 left = elems - (job.block << work.log2_block);
  job.n = static_cast<u32>(left >> work.log2_block ? 1u << work.log2_block : left);
  job.fits = job.w.item.frame_bytes >= job.payload_start() &&
             reinterpret_cast<std::uintptr_t>(job.w.item.frame) % frame::kAlign == 0;
  return job;
}

// Header and result, by one thread, after all blocks. `sum` has the checksum terms of the index;
// the other two are as in ItemState. Without `stores` nothing is read or written.
template <class Access>
__device__ __noinline__ void write_header(const Work& work, const EncodeJob& job, Access src,
                                          u64 sum, u64 frame_end, u64 first_error,
                                          bool stores = true) {
  const unsigned width = width_of(work.dtype);
  const u64 raw = job.w.item.tensor_bytes, elems = elems_in(raw, work.dtype);
  const auto num_tail = static_cast<unsigned>(raw & (width - 1));
  const u64 end = job.num_blocks == 0 ? job.payload_start() : frame_end;
  if (job.fits) {
    u64 tail = 0;
    for (unsigned i = 0; stores && i < num_tail; ++i)
      tail |= u64{src.load_byte(elems * width + i)} << (8 * i);
    const uint4 a = {frame::kMagic,
                     frame::kVersion | static_cast<u32>(work.dtype) << 8 | work.log2_block << 16 |
                         num_tail << 24,
                     static_cast<u32>(elems), static_cast<u32>(elems >> 32)};
    const uint4 b = {static_cast<u32>(end), static_cast<u32>(end >> 32), static_cast<u32>(tail),
                     static_cast<u32>(tail >> 32)};
    sum += checksum_term(a, 0) + checksum_term(b, 1);
    const uint4 c = {checksum_finish(sum, job.payload_start()), 0, 0, 0};
    auto* out = static_cast<uint4*>(job.w.item.frame);
    if (stores) {
      out[0] = a;
      out[1] = b;
      out[2] = c;
      out[3] = {};
    }
  } else {
    first_error = max(static_cast<unsigned long long>(first_error),
                      error_key(Code::kDstTooSmall, kReasonFrameRoom, kNowhere));
  }
  if (stores) write_result(&work.results[job.w.idx], first_error, end);
}

// The same for an item of a batch; one tensor has a verdict.
template <class Access>
__device__ __forceinline__ void finish_frame(const Work& work, const EncodeJob& job, Access src) {
  if (work.items == nullptr) return;
  ItemState& state = work.states[job.w.idx];
  write_header(work, job, src, atomicAdd(&state.head_sum, 0ull), atomicAdd(&state.frame_end, 0ull),
               atomicAdd(&state.first_error, 0ull));
}

// Finished blocks of one item that a thread has not yet added to ItemState: saves atomics.
struct EncodeReport {
  u64 head_sum = 0;
  unsigned done = 0;
  u32 item = 0;

  __device__ bool is_of_another_item(const Work& work, u64 ticket) const {
    return done != 0 && work.items != nullptr && work.first_block[item + 1] <= ticket;
  }
  // Writes the index entry of a block; `written` is false where its payload did not fit.
  __device__ void add(const Work& work, const EncodeJob& job, const DeviceEntry& entry,
                      bool written) {
    const uint4 packed = pack_entry(entry);
    if (job.fits)
      reinterpret_cast<uint4*>(static_cast<u8*>(job.w.item.frame) +
                               frame::kHeaderBytes)[job.block] = packed;
    ItemState& state = work.states[job.w.idx];
    if (!written) report_error(&state, Code::kDstTooSmall, kReasonFrameRoom, kNowhere);
    if (job.block + 1 == job.num_blocks)
      atomicExch(&state.frame_end, entry.offset + entry.num_bytes);
    head_sum += checksum_term(packed, static_cast<u32>(4 + job.block));
    item = job.w.idx;
    ++done;
  }
  // `job` is any of the item. The last one to flush an item of a batch writes its header.
  template <class Access>
  __device__ void flush(const Work& work, const EncodeJob& job, const Access& src) {
    if (done == 0) return;
    if (work.items == nullptr) {
      atomicAdd(&work.head_sums[blockIdx.x], static_cast<unsigned long long>(head_sum));
      head_sum = 0;
      done = 0;
      return;
    }
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

// Whether the call that this one depends on (a decode, for transcoding) has failed.
__device__ inline bool upstream_failed(const Work& work) {
  return work.upstream != nullptr &&
         (work.upstream->code != 0 || work.upstream->num_bytes != work.single.tensor_bytes);
}

}  // namespace snug::cuda
