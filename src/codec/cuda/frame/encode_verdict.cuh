// codec/cuda/frame/encode_verdict.cuh - the verdict on one encoded tensor: header and result.
#pragma once
#include "codec/cuda/frame/encode_frame.cuh"
#include "codec/cuda/frame/verdict.cuh"

namespace snug::cuda {

// Each of num_ctas thread blocks has left its share of the index's checksum in head_sums.
template <class Access>
__global__ void __launch_bounds__(kVerdictThreads)
    encode_verdict_kernel(const __grid_constant__ Work work, unsigned num_ctas) {
  const EncodeJob job = make_encode_job(work, 0);
  // The first round has no effect: it loads the code into the instruction cache while the previous
  // kernel still runs.
#pragma unroll 1
  for (unsigned round = 0; round < 2; ++round) {
    const bool counts = round == 1;
    if (counts) {
      wait_for_previous_kernel();
      __syncthreads();  // sum_all() reuses its memory
    }
    const ItemState state = counts ? *work.states : ItemState{};
    u64 sum = 0;
#pragma unroll 4
    for (unsigned i = threadIdx.x; i < (counts ? num_ctas : 0); i += kVerdictThreads)
      sum += work.head_sums[i];
    sum = sum_all(sum);
    if (threadIdx.x != 0) continue;
    if (!upstream_failed(work)) {
      write_header(work, job, access_item<Access>(work, work.single), sum, state.frame_end,
                   state.first_error, counts);
    } else if (counts) {
      const DeviceResult& before = *work.upstream;
      *work.results = {0, before.code != 0 ? before.code : static_cast<u32>(Code::kDstTooSmall),
                       kReasonUpstream, before.block};
    }
  }
}

// Launches an encode kernel, and the verdict on one tensor.
template <class Access, class Kernel, class... Args>
cudaError_t launch_encoder(const KernelCall& call, Kernel kernel, u64 num_ctas,
                           unsigned num_threads, u32 smem_bytes, const Args&... args) {
  const cudaError_t error = launch_kernel(
      kernel, {num_ctas, num_threads, smem_bytes, call.stream, Start::kEarly}, call.work, args...);
  if (error != cudaSuccess || call.work.items != nullptr) return error;
  return launch_kernel(encode_verdict_kernel<Access>,
                       {1, kVerdictThreads, 0, call.stream, Start::kEarly}, call.work,
                       static_cast<unsigned>(num_ctas));
}

}  // namespace snug::cuda
