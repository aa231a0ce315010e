// codec/cuda/frame/decode_verdict.cuh - the verdict on one decoded tensor: checks header and index
// beside the decode kernel, waits for it and writes the result. The decode kernel then needs
// neither counters nor zeroed memory.
#pragma once
#include "codec/cuda/frame/decode_frame.cuh"
#include "codec/cuda/frame/verdict.cuh"

namespace snug::cuda {

// Each of num_errors thread blocks has left the key of its first error, or 0.
template <class Access>
__global__ void __launch_bounds__(kVerdictThreads)
    decode_verdict_kernel(const __grid_constant__ Work work, unsigned num_errors) {
  const auto* frame = static_cast<const u8*>(work.single.frame);
  const DeviceHeader h =
      read_device_header(frame, work.single.frame_bytes, work.single.tensor_bytes, work.dtype);
  u64 sum = 0;
  if (h.code == Code::kOk) {
    const uint4* vecs = reinterpret_cast<const uint4*>(frame);
    const u64 num_vecs = h.payload_start() / 16;
#pragma unroll 4
    for (u64 i = threadIdx.x; i < num_vecs; i += kVerdictThreads) {
      uint4 v = __ldg(vecs + i);
      if (i == 2) v.x = 0;  // the checksum itself
      sum += checksum_term(v, static_cast<u32>(i));
    }
  }
  sum = sum_all(sum);
  if (threadIdx.x >= kWarpSize) return;
  unsigned long long error = 0;
  if (h.code != Code::kOk)
    error = error_key(h.code, h.reason, kNowhere);
  else if (checksum_finish(sum, h.payload_start()) != h.checksum)
    error = error_key(Code::kCorrupt, kReasonHeadChecksum, kNowhere);
  wait_for_previous_kernel();
  unsigned long long worst = 0;
#pragma unroll 8
  for (unsigned i = lane_id(); i < num_errors; i += kWarpSize)
    worst = max(worst, __ldcg(work.errors + i));
  if (__any_sync(kAllLanes, worst != 0)) {
#pragma unroll
    for (unsigned d = kWarpSize / 2; d != 0; d /= 2)
      worst = max(worst, __shfl_xor_sync(kAllLanes, worst, d));
  }
  if (lane_id() != 0) return;
  if (h.code == Code::kOk) error = max(error, worst);
  const u64 elem_bytes = h.num_elems * width_of(work.dtype);
  if (h.code == Code::kOk) {
    const Access dst = access_item<Access>(work, work.single);
    for (unsigned i = 0; i < h.num_tail_bytes; ++i)
      dst.store_byte(elem_bytes + i, static_cast<u8>(h.tail >> (8 * i)));
  }
  write_result(work.results, error, elem_bytes + h.num_tail_bytes);
}

// Launches a decode kernel, and the verdict on one tensor. Only batches and pages are prepared.
template <class Access, class Kernel, class... Args>
cudaError_t launch_decoder(const KernelCall& call, Kernel kernel, u64 num_ctas,
                           unsigned num_threads, u32 smem_bytes, const Args&... args) {
  const Work& work = call.work;
  const bool prepared = work.items != nullptr || work.segments != nullptr;
  const cudaError_t error = launch_kernel(
      kernel,
      {num_ctas, num_threads, smem_bytes, call.stream, prepared ? Start::kEarly : Start::kInOrder},
      work, args...);
  if (error != cudaSuccess || work.items != nullptr) return error;
  return launch_kernel(decode_verdict_kernel<Access>,
                       {1, kVerdictThreads, 0, call.stream, Start::kEarly}, work,
                       static_cast<unsigned>(num_ctas));
}

}  // namespace snug::cuda
