// The decode kernel for BF16 frames that are not entropy-coded, and its launch.
#include <cuda_runtime.h>

#include "cuda/decode_straight.cuh"
#include "cuda/decode_verdict.cuh"
#include "cuda/kernels.cuh"

namespace snug::cuda {
namespace {

template <class Access>
cudaError_t launch(const Work& work, std::uint64_t num_blocks, int num_sms, cudaStream_t stream) {
  std::uint64_t num_ctas = static_cast<unsigned>(num_sms);
  if (num_ctas > kMaxErrors) num_ctas = kMaxErrors;
  if (num_ctas > num_blocks) num_ctas = num_blocks == 0 ? 1 : num_blocks;
  return launch_decoder<Access>(decode_straight_kernel<Access>, num_ctas, kStraightThreads, 0,
                                stream, work);
}

}  // namespace

bool uses_straight_decode(const Work& work) {
  return work.items == nullptr && work.dtype == DType::kBF16 && work.codec != Codec::kEntropy;
}

cudaError_t launch_decode_straight(const Work& work, bool direct, std::uint64_t num_blocks,
                                   int num_sms, cudaStream_t stream) {
  return direct ? launch<DirectAccess>(work, num_blocks, num_sms, stream)
                : launch<ScatteredAccess>(work, num_blocks, num_sms, stream);
}

}  // namespace snug::cuda
