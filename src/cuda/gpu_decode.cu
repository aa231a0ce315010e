// The decode kernels. Both restore any frame: one gives each block a warp, as
// entropy-coded blocks need it; the other gives each block a thread block, which
// streams `fixed` and raw blocks faster.
#include <cuda_runtime.h>

#include "cuda/decode_any.cuh"
#include "cuda/decode_fixed.cuh"
#include "cuda/decode_palette.cuh"
#include "cuda/kernels.cuh"

namespace snug::cuda {
namespace {

constexpr int kDecodeWarps = 4;  // of a thread block
constexpr int kDecodeCtas = 8;   // a multiprocessor
constexpr unsigned kWideThreads = 256;
constexpr int kWideCtas = 5;

// Checks the entry of one block against its neighbours and the frame.
__device__ bool entry_is_valid(const DeviceHeader& h, const std::uint8_t* frame, std::uint64_t block,
                               const DeviceEntry& e, unsigned width) {
  const uint4* index = reinterpret_cast<const uint4*>(frame + frame::kHeaderBytes);
  const std::uint64_t next =
      block + 1 < h.num_blocks ? unpack_entry(__ldg(index + block + 1)).offset : h.frame_bytes;
  return (block > 0 || e.offset == h.payload_start()) && e.offset >= h.payload_start() &&
         e.codec < kNumCodecs && e.num_bytes % frame::kAlign == 0 && e.num_bytes != 0 &&
         e.num_bytes <= align16(std::uint64_t{h.elems_in_block(block)} * width) &&
         e.offset + e.num_bytes == next && next <= h.frame_bytes;
}

template <class Access>
__device__ __forceinline__ BlockResult decode_block(const std::uint8_t* payload, const DeviceEntry& e, std::uint32_t n,
                                                    DType dtype, const Access& dst, std::uint64_t pos,
                                                    DecodeSmem& smem) {
  if (e.codec == static_cast<unsigned>(Codec::kEntropy) && dtype == DType::kBF16 && e.plane_modes == 3u << 2)
    return decode_palette_bf16(payload, e.num_bytes, n, dst, pos,
                               static_cast<std::uint32_t>(__cvta_generic_to_shared(smem.palette.slots)));
  BlockResult result{};
  if (e.codec == static_cast<unsigned>(Codec::kFixed) && dtype == DType::kBF16)
    result.reason = decode_fixed_bf16<WarpTeam>(payload, e, n, dst, pos, result.sum);
  else if (e.codec == static_cast<unsigned>(Codec::kRaw))
    result.reason = decode_raw<WarpTeam>(payload, e, n, width_of(dtype), dst, pos, result.sum);
  else if (e.codec == static_cast<unsigned>(Codec::kConstant))
    result.reason = decode_constant<WarpTeam>(payload, e, n, width_of(dtype), dst, pos, result.sum);
  else
    result = decode_any(payload, e, n, dtype, dst, pos, &smem);
  return result;
}

// What lane 0 does after the last block of an item, or for an item without
// blocks: checks what only all of them together can tell.
__device__ void finish_item(const Work& work, const WorkItem& w, const DeviceHeader& h) {
  ItemState& state = work.states[w.idx];
  std::uint64_t sum = atomicAdd(&state.head_sum, 0ull);
  const std::uint32_t* head = static_cast<const std::uint32_t*>(w.item.frame);
  if (h.code == Code::kOk)
    for (unsigned i = 0; i < frame::kHeaderBytes / 4; ++i)
      if (i != 8) sum += checksum_term(__ldg(head + i), i);  // word 8 is the checksum itself
  if (h.code != Code::kOk)
    report(&state, h.code, h.reason, kNowhere);
  else if (checksum_finish(sum, h.payload_start()) != h.checksum)
    report(&state, Code::kCorrupt, kReasonHeadChecksum, kNowhere);
  write_result(&work.results[w.idx], atomicAdd(&state.first_error, 0ull),
               h.num_elems * width_of(work.dtype) + h.num_tail_bytes);
}

__device__ __noinline__ void finish_block(const Work& work, std::uint64_t ticket, Reason reason) {
  const WorkItem w = find_item(work, ticket);
  const DeviceHeader h = read_device_header(static_cast<const std::uint8_t*>(w.item.frame), w.item.frame_bytes,
                                            w.item.tensor_bytes, work.dtype);
  const std::uint64_t block = ticket - w.first_block;
  if (h.num_blocks == 0) {
    if (block == 0) finish_item(work, w, h);
    return;
  }
  ItemState& state = work.states[w.idx];
  if (reason != kReasonNone) report(&state, Code::kCorrupt, reason, block);
  const uint4 packed =
      __ldg(reinterpret_cast<const uint4*>(static_cast<const std::uint8_t*>(w.item.frame) + frame::kHeaderBytes) + block);
  atomicAdd(&state.head_sum, static_cast<unsigned long long>(checksum_term(packed, static_cast<std::uint32_t>(4 + block))));
  __threadfence();
  if (atomicAdd(&state.done, 1u) + 1 == h.num_blocks) finish_item(work, w, h);
}

// A block that a ticket stands for, checked against header and index.
struct DecodeJob {
  const std::uint8_t* payload;
  DeviceEntry entry;
  std::uint64_t pos;  // in the tensor
  std::uint32_t n;
  bool exists;  // false: there is no such block, or its header is not valid
  bool ends;    // no higher ticket has work either
  Reason reason;
};

// Headers are read again for every block: that costs less than keeping them in
// registers. Writes the tail bytes too.
template <class Access>
__device__ DecodeJob open_job(const Work& work, std::uint64_t ticket, const Access& dst, const WorkItem& w) {
  const std::uint8_t* frame = static_cast<const std::uint8_t*>(w.item.frame);
  const DeviceHeader h = read_device_header(frame, w.item.frame_bytes, w.item.tensor_bytes, work.dtype);
  const std::uint64_t block = ticket - w.first_block;
  const unsigned width = width_of(work.dtype);
  DecodeJob job{};
  if (block == 0 && h.code == Code::kOk && threadIdx.x % kWarp < h.num_tail_bytes)
    dst.store_byte(h.num_elems * width + lane_id(), static_cast<std::uint8_t>(h.tail >> (8 * lane_id())));
  job.exists = block < h.num_blocks;
  job.ends = !job.exists && block != 0 && work.items == nullptr;
  if (!job.exists) return job;
  job.entry = unpack_entry(__ldg(reinterpret_cast<const uint4*>(frame + frame::kHeaderBytes) + block));
  job.reason = entry_is_valid(h, frame, block, job.entry, width) ? kReasonNone : kReasonIndex;
  job.payload = frame + job.entry.offset;
  job.n = h.elems_in_block(block);
  job.pos = (block << h.log2_block) * width;
  return job;
}

__device__ Reason check_sum(Reason reason, std::uint64_t sum, const DeviceEntry& e) {
  return reason != kReasonPayload && checksum_finish(sum, e.num_bytes) != e.checksum ? kReasonChecksum : reason;
}

__device__ std::uint64_t last_ticket(const Work& work) {
  return work.items == nullptr ? ~std::uint64_t{0} : work.first_block[work.num_items];
}

template <class Access>
__global__ void __launch_bounds__(kDecodeWarps* kWarp, kDecodeCtas) decode_kernel(const __grid_constant__ Work work) {
  __shared__ DecodeSmem smem_of[kDecodeWarps];
  DecodeSmem& smem = smem_of[threadIdx.x / kWarp];
  const std::uint64_t total = last_ticket(work);
  for (std::uint64_t ticket; (ticket = warp_ticket(work.ticket)) < total;) {
    const WorkItem w = find_item(work, ticket);
    const Access dst = access_item<Access>(work, w.item);
    const DecodeJob job = open_job(work, ticket, dst, w);
    if (job.ends) return;
    Reason reason = job.reason;
    if (job.exists && reason == kReasonNone) {
      const BlockResult r = decode_block(job.payload, job.entry, job.n, work.dtype, dst, job.pos, smem);
      reason = check_sum(r.reason, warp_sum64(r.sum), job.entry);
    }
    if (lane_id() == 0) finish_block(work, ticket, reason);
    __syncwarp();
  }
}

template <class Access>
__global__ void __launch_bounds__(kWideThreads, kWideCtas) decode_wide_kernel(const __grid_constant__ Work work) {
  using Team = BlockTeam<kWideThreads>;
  __shared__ DecodeSmem smem;
  __shared__ unsigned tickets[2];  // of this round and the next
  const std::uint64_t total = last_ticket(work);
  if (threadIdx.x == 0) tickets[0] = atomicAdd(work.ticket, 1u);
  for (unsigned round = 0;; ++round) {
    __syncthreads();
    const std::uint64_t ticket = tickets[round & 1];
    if (ticket >= total) return;
    if (threadIdx.x == kWideThreads - 1) tickets[(round + 1) & 1] = atomicAdd(work.ticket, 1u);
    const WorkItem w = find_item(work, ticket);
    const Access dst = access_item<Access>(work, w.item);
    const DecodeJob job = open_job(work, ticket, dst, w);
    if (job.ends) return;
    Reason reason = job.reason;
    if (job.exists && reason == kReasonNone) {
      std::uint64_t sum = 0;
      const bool fixed = job.entry.codec == static_cast<unsigned>(Codec::kFixed) && work.dtype == DType::kBF16;
      if (fixed) {
        reason = decode_fixed_bf16<Team>(job.payload, job.entry, job.n, dst, job.pos, sum);
      } else if (job.entry.codec == static_cast<unsigned>(Codec::kRaw)) {
        reason = decode_raw<Team>(job.payload, job.entry, job.n, width_of(work.dtype), dst, job.pos, sum);
      } else if (job.entry.codec == static_cast<unsigned>(Codec::kConstant)) {
        reason = decode_constant<Team>(job.payload, job.entry, job.n, width_of(work.dtype), dst, job.pos, sum);
      } else if (threadIdx.x < kWarp) {
        const BlockResult r = decode_block(job.payload, job.entry, job.n, work.dtype, dst, job.pos, smem);
        reason = r.reason;
        sum = r.sum;
      }
      reason = check_sum(reason, Team::sum(sum), job.entry);
    }
    if (threadIdx.x == 0) finish_block(work, ticket, reason);
  }
}

}  // namespace

template <class Access>
static cudaError_t launch(const Work& work, std::uint64_t num_blocks, int num_sms, cudaStream_t stream) {
  const bool wide = work.codec != Codec::kEntropy;
  const std::uint64_t wanted = wide ? num_blocks : (num_blocks + kDecodeWarps - 1) / kDecodeWarps;
  const auto most = static_cast<std::uint64_t>(num_sms) * (wide ? kWideCtas : kDecodeCtas);
  const auto num_ctas = static_cast<unsigned>(wanted == 0 ? 1 : wanted < most ? wanted : most);
  if (wide)
    decode_wide_kernel<Access><<<num_ctas, kWideThreads, 0, stream>>>(work);
  else
    decode_kernel<Access><<<num_ctas, kDecodeWarps * kWarp, 0, stream>>>(work);
  return cudaGetLastError();
}

cudaError_t launch_decode(const Work& work, bool direct, std::uint64_t num_blocks, int num_sms, cudaStream_t stream) {
  return direct ? launch<DirectAccess>(work, num_blocks, num_sms, stream)
                : launch<ScatteredAccess>(work, num_blocks, num_sms, stream);
}

}  // namespace snug::cuda
