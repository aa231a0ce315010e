// delta/cuda/delta_check.cuh - checks header and index of a delta, as delta_format.cpp does.
#pragma once
#include "delta/cuda/delta_device.cuh"

namespace snug::cuda::deltas {

inline constexpr std::uint32_t kCheckThreads = 512;

struct ApplyWork {
  const std::uint8_t* delta;
  std::uint64_t delta_room;  // in bytes; the header may claim less
  const std::uint8_t* base;  // 16-byte aligned
  std::uint8_t* target;      // likewise; the base itself to change it in place
  std::uint64_t tensor_bytes;
  DType dtype;
  std::uint32_t log2_block;  // the largest that the launch can do
  delta::ClassRule rule;
  CallState* state;
  DeviceResult* result;
};

__device__ inline std::uint64_t word64(const std::uint8_t* p) {
  return *reinterpret_cast<const std::uint64_t*>(p);
}

__device__ inline delta::Header load_header(const std::uint8_t* p) {
  delta::Header h;
  h.dtype = static_cast<DType>(p[5]);
  h.log2_block = p[6];
  h.num_tail_bytes = p[7];
  h.num_elems = word64(p + 8);
  h.delta_bytes = word64(p + 16);
  h.base_hash = word64(p + 24);
  h.target_hash = word64(p + 32);
  h.num_changed = word64(p + 40);
  for (unsigned i = 0; i < 8; ++i) h.tail[i] = p[48 + i];
  h.checksum = *reinterpret_cast<const std::uint32_t*>(p + 56);
  h.kind = static_cast<delta::Kind>(p[60]);
  return h;
}

// The checks of read_header(), and those of this call.
__device__ inline std::uint64_t check_header(const ApplyWork& work) {
  const auto refuse = [](Code code, Reason reason) { return error_key(code, reason, kNowhere); };
  if (work.delta_room < delta::kHeaderBytes) return refuse(Code::kCorrupt, kReasonShortFrame);
  const std::uint8_t* p = work.delta;
  if (*reinterpret_cast<const std::uint32_t*>(p) != delta::kMagic)
    return refuse(Code::kBadMagic, kReasonMagic);
  if (p[4] != delta::kVersion) return refuse(Code::kUnsupportedVersion, kReasonVersion);
  const delta::Header h = load_header(p);
  if (h.dtype != work.dtype) return refuse(Code::kUsage, kReasonDType);
  const std::uint32_t width = width_of(h.dtype);
  bool bad = h.log2_block < delta::kMinLog2Block || h.log2_block > delta::kMaxLog2Block ||
             h.num_tail_bytes >= width || p[60] > 1 || (p[61] | p[62] | p[63]) != 0;
  for (unsigned i = 0; i < 8; ++i) bad |= i >= h.num_tail_bytes && h.tail[i] != 0;
  if (bad || h.num_elems > delta::kMaxRawBytes / width || h.num_changed > h.num_elems)
    return refuse(Code::kCorrupt, kReasonHeader);
  if (h.delta_bytes < h.payload_start() || h.delta_bytes % 4 != 0)
    return refuse(Code::kCorrupt, kReasonHeader);
  if (h.delta_bytes > work.delta_room) return refuse(Code::kCorrupt, kReasonCutShort);
  if (h.kind == delta::Kind::kFrame) return refuse(Code::kUsage, kReasonNeedsFrame);
  if (h.log2_block > static_cast<int>(work.log2_block)) return refuse(Code::kUsage, kReasonHeader);
  if (h.num_elems * width + h.num_tail_bytes != work.tensor_bytes)
    return refuse(Code::kWrongBase, kReasonWrongBase);
  return 0;
}

struct CheckShared {
  unsigned long long error, sum;
};

// Checks header, index and their checksum, by all thread blocks of a launch; the last one writes
// the result.
__device__ inline void check_index(const ApplyWork& work, CheckShared& shared) {
  CallState& state = *work.state;
  if (threadIdx.x == 0) {
    shared.sum = 0;
    shared.error = check_header(work);
  }
  __syncthreads();
  const bool readable = shared.error == 0;
  __syncthreads();  // all have read it before anyone adds an error
  std::uint64_t num_words = 0;
  if (readable) {
    const delta::Header h = load_header(work.delta);
    num_words = h.payload_start() / 4;
    const std::uint64_t num_blocks = h.num_blocks();
    const std::uint32_t* words = reinterpret_cast<const std::uint32_t*>(work.delta);
    std::uint64_t own = 0;
    bool bad = num_blocks == 0 && h.delta_bytes != num_words * 4;
    for (std::uint64_t i = std::uint64_t{blockIdx.x} * kCheckThreads + threadIdx.x; i < num_words;
         i += std::uint64_t{gridDim.x} * kCheckThreads) {
      const std::uint32_t end = words[i];
      if (i != 14) own += checksum_term(end, static_cast<std::uint32_t>(i));
      if (i < delta::kHeaderBytes / 4) continue;
      const std::uint64_t b = i - delta::kHeaderBytes / 4;
      const std::uint64_t begin = b == 0 ? num_words : words[i - 1];
      const std::uint64_t most =
          delta::raw_payload_bytes(h.elems_in_block(b), width_of(h.dtype)) / 4;
      bad |= begin < num_words || end < begin || end > begin + most ||
             std::uint64_t{end} * 4 > h.delta_bytes ||
             (b + 1 == num_blocks && std::uint64_t{end} * 4 != h.delta_bytes);
    }
    if (bad) atomicMax(&shared.error, error_key(Code::kCorrupt, kReasonIndex, kNowhere));
    own = warp_sum(own);
    if (lane_id() == 0) atomicAdd(&shared.sum, own);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  atomicMax(&state.first_error, shared.error);
  atomicAdd(&state.head_sum, shared.sum);
  __threadfence();
  if (atomicAdd(&state.ticket, 1u) + 1 < gridDim.x) return;
  std::uint64_t error = read_state(&state.first_error);
  // A damaged index is a damaged header first, as on the CPU.
  if (readable && checksum_finish(read_state(&state.head_sum), num_words * 4) !=
                      *reinterpret_cast<const std::uint32_t*>(work.delta + 56))
    error = error_key(Code::kCorrupt, kReasonHeadChecksum, kNowhere);
  state.first_error = error;
  write_result(work.result, error, work.tensor_bytes);
}

}  // namespace snug::cuda::deltas
