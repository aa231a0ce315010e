// codec/cuda/frame/decode_frame.cuh - what all decode kernels do around a block: check header and
// index entry before it, report errors after it.
#pragma once
#include "codec/cuda/frame/work.cuh"

namespace snug::cuda {

// The block of a ticket, checked against header and index.
struct DecodeJob {
  WorkItem w;
  const u8* payload;
  DeviceEntry entry;
  uint4 packed;    // the entry as stored
  u64 pos;         // in the tensor
  u64 num_blocks;  // of the item
  u32 n;
  Reason reason;
  bool exists;  // false: no such block, or the header is not valid
  bool ends;    // higher tickets have no work either
};

// Whether an entry can describe a block of n elements whose payload ends at `end`.
__device__ __forceinline__ bool is_valid_entry(const DeviceEntry& e, u64 block, u64 end, u32 n,
                                               unsigned width, const DeviceHeader& h) {
  return (block > 0 || e.offset == h.payload_start()) && e.offset >= h.payload_start() &&
         e.codec < kNumCodecs && e.num_bytes % frame::kAlign == 0 && e.num_bytes != 0 &&
         e.num_bytes <= align16(u64{n} * width) && e.offset + e.num_bytes == end &&
         end <= h.frame_bytes;
}

// Reads the header again for every block, which costs less than keeping it in registers, and the
// entries at the same time, as far as the frame's buffer goes. Errors of headers are reported
// elsewhere.
__device__ __forceinline__ DecodeJob open_decode_job(const Work& work, u64 ticket,
                                                     u64 num_tickets) {
  DecodeJob job{};
  job.ends = ticket >= num_tickets;
  if (job.ends) return job;
  job.w = find_item(work, ticket);
  const auto* frame = static_cast<const u8*>(job.w.item.frame);
  const u64 block = ticket - job.w.first_block, room = job.w.item.frame_bytes;
  const uint4* entry = reinterpret_cast<const uint4*>(frame + frame::kHeaderBytes) + block;
  const bool aligned = reinterpret_cast<std::uintptr_t>(frame) % frame::kAlign == 0;
  uint4 next{}, header[4] = {};  // zeros are no header
  const u64 entry_end = frame::kHeaderBytes + (block + 1) * frame::kEntryBytes;
  if (aligned && entry_end <= room) job.packed = __ldg(entry);
  if (aligned && entry_end + frame::kEntryBytes <= room) next = __ldg(entry + 1);
  if (aligned && room >= frame::kHeaderBytes)
#pragma unroll
    for (int i = 0; i < 4; ++i) header[i] = __ldg(reinterpret_cast<const uint4*>(frame) + i);
  const DeviceHeader h = parse_device_header(header[0], header[1], header[2], header[3], room,
                                             job.w.item.tensor_bytes, work.dtype);
  const unsigned width = width_of(work.dtype);
  job.num_blocks = h.num_blocks;
  job.exists = block < h.num_blocks;
  job.ends = !job.exists && block != 0 && work.items == nullptr;
  if (!job.exists) return job;
  job.entry = unpack_entry(job.packed);
  job.n = h.elems_in_block(block);
  job.pos = (block << h.log2_block) * width;
  job.payload = frame + job.entry.offset;
  const u64 end = block + 1 < h.num_blocks ? unpack_entry(next).offset : h.frame_bytes;
  const bool valid = is_valid_entry(job.entry, block, end, job.n, width, h);
  job.reason = valid ? kReasonNone : kReasonIndex;
  return job;
}

// Prefetches what a warp reads first of an entropy block: kRawLines lines of raw planes, and the
// start of the coded plane.
template <unsigned kWidth, unsigned kRawLines>
__device__ __forceinline__ void prefetch_block(const DecodeJob& job) {
  const auto prefetch = [&](u32 at) {
    if (at < job.entry.num_bytes) prefetch_l2(job.payload + at);
  };
  const auto section = (kWidth - 1) * static_cast<u32>(align16(job.n));
  if constexpr (kWidth > 1)
    for (u32 line = 0; line < kRawLines; ++line) prefetch(128 * line);
  for (u32 line = 0; line < 8; ++line) prefetch(section + 128 * line);
}

// Status of a block, and this thread's checksum terms, which are complete if the layout is valid.
struct BlockResult {
  Reason reason;
  u64 sum;
};

__device__ __forceinline__ Reason check_sum(Reason reason, u64 sum, const DeviceEntry& e) {
  return reason != kReasonPayload && checksum_finish(sum, e.num_bytes) != e.checksum
             ? kReasonChecksum
             : reason;
}

// By one thread, after the last block of a batch's item or for an item without blocks: checks the
// checksum over header and index, writes the tail bytes and the result.
template <class Access>
__device__ __noinline__ void finish_item(const Work& work, const WorkItem& w) {
  ItemState& state = work.states[w.idx];
  const DeviceHeader h = read_device_header(static_cast<const u8*>(w.item.frame),
                                            w.item.frame_bytes, w.item.tensor_bytes, work.dtype);
  const u64 elem_bytes = h.num_elems * width_of(work.dtype);
  const u32* head = static_cast<const u32*>(w.item.frame);
  if (h.code != Code::kOk) {
    report_error(&state, h.code, h.reason, kNowhere);
  } else {
    u64 sum = atomicAdd(&state.head_sum, 0ull);
    for (unsigned i = 0; i < frame::kHeaderBytes / 4; ++i)
      if (i != 8) sum += checksum_term(__ldg(head + i), i);  // word 8 is the checksum itself
    if (checksum_finish(sum, h.payload_start()) != h.checksum)
      report_error(&state, Code::kCorrupt, kReasonHeadChecksum, kNowhere);
    const Access dst = access_item<Access>(work, w.item);
    for (unsigned i = 0; i < h.num_tail_bytes; ++i)
      dst.store_byte(elem_bytes + i, static_cast<u8>(h.tail >> (8 * i)));
  }
  write_result(&work.results[w.idx], atomicAdd(&state.first_error, 0ull),
               elem_bytes + h.num_tail_bytes);
}

// The finished blocks of a batch's item that a thread has not yet added to ItemState; of one tensor
// only the first error, for the verdict.
struct DecodeReport {
  unsigned long long first_error;  // see error_key()
  u64 head_sum;
  u64 num_blocks;  // of the item
  WorkItem w;
  unsigned done;

  template <class Access>
  __device__ void flush(const Work& work) {
    if (done == 0) return;
    ItemState& state = work.states[w.idx];
    atomicAdd(&state.head_sum, static_cast<unsigned long long>(head_sum));
    __threadfence();
    const bool last = atomicAdd(&state.done, done) + done == num_blocks;
    head_sum = 0;
    done = 0;
    if (last) finish_item<Access>(work, w);
  }
  template <class Access>
  __device__ void add(const Work& work, const DecodeJob& job, u64 ticket, Reason reason) {
    if (work.items == nullptr) {
      if (reason != kReasonNone)
        first_error = max(first_error, error_key(Code::kCorrupt, reason, ticket));
      return;
    }
    if (done != 0 && w.idx != job.w.idx) flush<Access>(work);
    const u64 block = ticket - job.w.first_block;
    if (job.num_blocks == 0) {
      if (block == 0) finish_item<Access>(work, job.w);
      return;
    }
    if (reason != kReasonNone) report_error(&work.states[job.w.idx], Code::kCorrupt, reason, block);
    head_sum += checksum_term(job.packed, static_cast<u32>(4 + block));
    num_blocks = job.num_blocks;
    w = job.w;
    ++done;
  }
};

// The end of a thread block whose warps have a report each. first_error is in shared memory and 0.
template <class Access>
__device__ __forceinline__ void leave_first_error(const Work& work, DecodeReport& report,
                                                  unsigned long long& first_error) {
  if (lane_id() == 0) report.template flush<Access>(work);
  __syncthreads();
  if (lane_id() == 0 && report.first_error != 0) atomicMax(&first_error, report.first_error);
  __syncthreads();
  if (threadIdx.x == 0) work.errors[blockIdx.x] = first_error;
}

__device__ inline u64 ticket_end(const Work& work) {
  return work.items == nullptr ? ~u64{0} : work.first_block[work.num_items];
}

}  // namespace snug::cuda
