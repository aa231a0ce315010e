// codec/cuda/frame/encode_verdict.cuh - what the encoding of one tensor ends with: header and
// result.
#pragma once
#include "codec/cuda/frame/encode_frame.cuh"
#include "codec/cuda/frame/verdict.cuh"

namespace snug::cuda {

// After a kernel of num_ctas thread blocks, each of which left its share of head_sums.
template <class Access>
__global__ void __launch_bounds__(kVerdictThreads)
    encode_verdict_kernel(const __grid_constant__ Work work, unsigned num_ctas) {
  const EncodeJob job = make_encode_job(work, 0);
  // Twice: the first time, without any effect, brings the code near while the kernel before still
  // runs.
#pragma unroll 1
  for (unsigned round = 0; round < 2; ++round) {
    const bool counts = round == 1;
    if (counts) {
      wait_for_previous_kernel();
      __syncthreads();  // before sum_all() again
    }
    const ItemState state = counts ? *work.states : ItemState{};
    std::uint64_t sum = 0;
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
      *work.results = {
          0, before.code != 0 ? before.code : static_cast<std::uint32_t>(Code::kDstTooSmall),
          kReasonUpstream, before.block};
    }
  }
}

// Ends the call whose encode kernel of num_ctas thread blocks has just been launched.
template <class Access>
cudaError_t launch_encode_verdict(const Work& work, std::uint64_t num_ctas, cudaStream_t stream) {
  if (work.items != nullptr) return cudaSuccess;
  return launch_kernel(encode_verdict_kernel<Access>,
                       {1, kVerdictThreads, 0, stream, Start::kEarly}, work,
                       static_cast<unsigned>(num_ctas));
}

}  // namespace snug::cuda
