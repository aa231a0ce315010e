// The encode kernel of the `fixed` codec and of raw frames, and its launch.
#include <cuda_runtime.h>

#include "codec/cuda/encode_fixed/encode_fixed_kernel.cuh"
#include "codec/cuda/frame/encode_verdict.cuh"
#include "codec/cuda/kernels.cuh"
#include "gpu/launch.h"

namespace snug::cuda {
namespace {

template <class Access, int kWidth>
cudaError_t launch(const Work& work, std::uint64_t num_blocks, int num_sms, cudaStream_t stream) {
  const auto kernel = encode_wide_kernel<Access, kWidth>;
  const std::uint32_t block_bytes = width_of(work.dtype) << work.log2_block;
  StageRoom room;
  cudaError_t error = find_stage_room(kernel, room);
  if (error != cudaSuccess) return error;
  const unsigned block_units = block_bytes / kRingUnit,
                 num_units = room.stages_of(kRingUnit, kMaxBlocksAhead * block_units);
  if (num_units < block_units) return cudaErrorInvalidConfiguration;  // it would wait forever
  const auto most = static_cast<std::uint64_t>(num_sms);
  const std::uint64_t num_ctas = num_blocks < most ? num_blocks : most;
  error = launch_kernel(
      kernel, {num_ctas, kEncodeWideThreads, num_units * kRingUnit, stream, Start::kEarly}, work,
      num_units);
  return error == cudaSuccess ? launch_encode_verdict<Access>(work, num_ctas, stream) : error;
}

template <class Access>
cudaError_t launch_any(const Work& work, std::uint64_t num_blocks, int num_sms,
                       cudaStream_t stream) {
  if (work.codec != Codec::kFixed || !has_fixed_codec(work.dtype))
    return launch<Access, 1>(work, num_blocks, num_sms, stream);
  return work.dtype == DType::kF32 ? launch<Access, 4>(work, num_blocks, num_sms, stream)
                                   : launch<Access, 2>(work, num_blocks, num_sms, stream);
}

}  // namespace

bool uses_wide_encode(DType dtype, Codec codec, int log2_block) {
  return codec != Codec::kEntropy && (width_of(dtype) << log2_block) <= kMaxWideBlock;
}

cudaError_t launch_encode_wide(const Work& work, bool direct, std::uint64_t num_blocks, int num_sms,
                               cudaStream_t stream) {
  return direct ? launch_any<DirectAccess>(work, num_blocks, num_sms, stream)
                : launch_any<ScatteredAccess>(work, num_blocks, num_sms, stream);
}

}  // namespace snug::cuda
