// Applies a delta to a tensor on the GPU: the kernels and the host side of delta_apply.
#include <algorithm>

#include "delta/cuda/delta_apply.cuh"
#include "delta/cuda/gpu_delta_host.h"

namespace snug::cuda {
namespace deltas {
namespace {

__global__ void __launch_bounds__(kCheckThreads) check_kernel(const ApplyWork work) {
  __shared__ CheckShared shared;
  check_index(work, shared);
}

// Thread blocks that fit a multiprocessor of sm_90.
template <unsigned kWidth, unsigned kThreads, bool kMany>
constexpr std::uint32_t blocks_per_sm() {
  constexpr std::size_t kBytes = sizeof(ApplyShared<kWidth, kThreads, kMany>) + 1024;
  return static_cast<std::uint32_t>(
      std::clamp<std::size_t>(228 * 1024 / kBytes, 1, 1024 / kThreads));
}

template <unsigned kWidth, unsigned kThreads, bool kMany, Pass kPass>
__global__ void __launch_bounds__(kThreads, blocks_per_sm<kWidth, kThreads, kMany>())
    apply_kernel(const ApplyWork work) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  apply_blocks<kWidth, kThreads, kMany, kPass>(
      work, *reinterpret_cast<ApplyShared<kWidth, kThreads, kMany>*>(memory));
}

template <unsigned kWidth, unsigned kThreads, bool kMany, Pass kPass>
cudaError_t launch_blocks(const ApplyWork& work, int num_sms, cudaStream_t stream) {
  const std::uint64_t num_blocks = work.tensor_bytes / (kWidth * kThreads * kPerThread) + 1;
  const std::uint64_t most =
      static_cast<std::uint64_t>(num_sms) * blocks_per_sm<kWidth, kThreads, kMany>();
  return launch_kernel(
      apply_kernel<kWidth, kThreads, kMany, kPass>,
      {std::min(num_blocks, most), kThreads, sizeof(ApplyShared<kWidth, kThreads, kMany>), stream},
      work);
}

template <unsigned kWidth, unsigned kThreads, Pass kPass>
cudaError_t launch_pass(const ApplyWork& work, int num_sms, cudaStream_t stream) {
  const cudaError_t error = launch_blocks<kWidth, kThreads, false, kPass>(work, num_sms, stream);
  if (error != cudaSuccess) return error;
  return launch_blocks<kWidth, kThreads, true, kPass>(work, num_sms, stream);
}

template <unsigned kWidth, unsigned kThreads>
cudaError_t launch_apply(const ApplyWork& work, int num_sms, cudaStream_t stream) {
  if (work.target != work.base)
    return launch_pass<kWidth, kThreads, Pass::kCheckAndStore>(work, num_sms, stream);
  const cudaError_t error = launch_pass<kWidth, kThreads, Pass::kCheck>(work, num_sms, stream);
  if (error != cudaSuccess) return error;
  return launch_pass<kWidth, kThreads, Pass::kStore>(work, num_sms, stream);
}

template <unsigned kWidth>
cudaError_t launch_width(const ApplyWork& work, int num_sms, cudaStream_t stream) {
  switch (work.log2_block) {
    case 12: return launch_apply<kWidth, 64>(work, num_sms, stream);
    case 13: return launch_apply<kWidth, 128>(work, num_sms, stream);
    default: return launch_apply<kWidth, 256>(work, num_sms, stream);
  }
}

Status apply(Source update, Source base, void* target, Target workspace, DeviceResult* result,
             const DeltaOptions& options, Stream stream) {
  if (Status s = check_options(options, base.num_bytes); !s.ok()) return s;
  if (Status s = check_memory(workspace, kStateBytes, result); !s.ok()) return s;
  for (const void* p : {update.data, base.data, const_cast<const void*>(target)})
    if (!is_aligned(p, 16)) return usage("delta and tensors must be 16-byte aligned");
  int num_sms = 0;
  cudaError_t error = device_attribute(cudaDevAttrMultiProcessorCount, num_sms);
  if (error != cudaSuccess) return from_cuda(error);
  ApplyWork work{};
  work.delta = static_cast<const std::uint8_t*>(update.data);
  work.delta_room = update.num_bytes;
  work.base = static_cast<const std::uint8_t*>(base.data);
  work.target = static_cast<std::uint8_t*>(target);
  work.tensor_bytes = base.num_bytes;
  work.dtype = options.dtype;
  work.log2_block = static_cast<std::uint32_t>(log2_block_of(options));
  work.rule = delta::class_rule(options.dtype);
  work.state = static_cast<CallState*>(workspace.data);
  work.result = result;
  error = cudaMemsetAsync(workspace.data, 0, kStateBytes, stream);
  if (error == cudaSuccess) {
    // A thread for each entry of the index, in up to 64 thread blocks.
    const std::uint64_t num_blocks = work.tensor_bytes >> delta::kMinLog2Block;
    const auto grid =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(num_blocks / kCheckThreads + 1, 64));
    check_kernel<<<grid, kCheckThreads, 0, stream>>>(work);
    error = cudaGetLastError();
  }
  if (error == cudaSuccess)
    error = elem_bytes(options.dtype) == 1 ? launch_width<1>(work, num_sms, stream)
                                           : launch_width<2>(work, num_sms, stream);
  return copy_result(error, result, options.host_result, stream);
}

}  // namespace
}  // namespace deltas

using namespace deltas;

std::size_t delta_apply_workspace_bytes(std::size_t, const DeltaOptions&) noexcept {
  return kStateBytes;
}

Status delta_apply(Source update, Target tensor, Target workspace, DeviceResult* result,
                   const DeltaOptions& options, Stream stream) noexcept {
  return apply(update, {tensor.data, tensor.num_bytes}, tensor.data, workspace, result, options,
               stream);
}

Status delta_apply_to(Source update, Source base, Target target, Target workspace,
                      DeviceResult* result, const DeltaOptions& options, Stream stream) noexcept {
  if (target.num_bytes < base.num_bytes)
    return {Code::kDstTooSmall, "no room for the tensor", kNowhere,
            kNowhere,           target.num_bytes,         base.num_bytes};
  const auto from = reinterpret_cast<std::uintptr_t>(base.data),
             to = reinterpret_cast<std::uintptr_t>(target.data);
  if (base.num_bytes > 0 && from < to + base.num_bytes && to < from + base.num_bytes)
    return usage("base and target overlap: use delta_apply");
  return apply(update, base, target.data, workspace, result, options, stream);
}

}  // namespace snug::cuda
