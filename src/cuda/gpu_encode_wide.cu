// The encode kernel of the `fixed` codec and of raw frames, and its launch.
#include <cuda_runtime.h>

#include "cuda/encode_wide.cuh"
#include "cuda/kernels.cuh"

namespace snug::cuda {
namespace {

template <class Access, int kWidth, int kThreads>
cudaError_t launch(const Work& work, std::uint64_t num_blocks, int num_sms, cudaStream_t stream) {
  const auto kernel = encode_wide_kernel<Access, kWidth, kThreads>;
  const std::uint32_t block_elems = 1u << work.log2_block;
  const std::uint32_t smem =
      block_elems * width_of(work.dtype) + (kWidth > 1 ? 4 * escape_room(block_elems) : 0);
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(smem));
  int per_sm = 0;
  if (error == cudaSuccess)
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel,
                                                          kThreads + static_cast<int>(kWarp), smem);
  if (error != cudaSuccess) return error;
  const std::uint64_t most =
      static_cast<std::uint64_t>(num_sms) * static_cast<unsigned>(per_sm > 0 ? per_sm : 1);
  kernel<<<static_cast<unsigned>(num_blocks < most ? num_blocks : most), kThreads + kWarp, smem,
           stream>>>(work);
  return cudaGetLastError();
}

template <class Access>
cudaError_t launch_any(const Work& work, std::uint64_t num_blocks, int num_sms,
                       cudaStream_t stream) {
  const std::uint32_t block_bytes = width_of(work.dtype) << work.log2_block;
  if (work.codec != Codec::kFixed || !has_fixed_codec(work.dtype))
    return launch<Access, 1, 256>(work, num_blocks, num_sms, stream);
  if (work.dtype == DType::kF32)
    return block_bytes <= 32 * 1024 ? launch<Access, 4, 128>(work, num_blocks, num_sms, stream)
                                    : launch<Access, 4, 256>(work, num_blocks, num_sms, stream);
  return block_bytes <= 32 * 1024 ? launch<Access, 2, 128>(work, num_blocks, num_sms, stream)
                                  : launch<Access, 2, 256>(work, num_blocks, num_sms, stream);
}

}  // namespace

bool uses_wide_encode(DType dtype, Codec codec, int log2_block) {
  return codec != Codec::kEntropy && (width_of(dtype) << log2_block) <= kMaxStageBytes;
}

cudaError_t launch_encode_wide(const Work& work, bool direct, std::uint64_t num_blocks, int num_sms,
                               cudaStream_t stream) {
  return direct ? launch_any<DirectAccess>(work, num_blocks, num_sms, stream)
                : launch_any<ScatteredAccess>(work, num_blocks, num_sms, stream);
}

}  // namespace snug::cuda
