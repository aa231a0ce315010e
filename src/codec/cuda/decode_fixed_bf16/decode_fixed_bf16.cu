// The decode kernel for one BF16 tensor that is not entropy-coded, and its launch.
#include <cuda_runtime.h>

#include "codec/cuda/decode_fixed_bf16/decode_fixed_bf16_kernel.cuh"
#include "codec/cuda/frame/decode_verdict.cuh"
#include "codec/cuda/kernels.cuh"

namespace snug::cuda {
namespace {

// Few blocks are spread over all warps of as many thread blocks; of many, as few warps share
// one as have eight rows each, or sixteen.
template <class Access>
cudaError_t launch(const Work& work, std::uint64_t num_blocks, int num_sms, cudaStream_t stream) {
  std::uint64_t num_ctas = static_cast<unsigned>(num_sms);
  if (num_ctas > kMaxErrors) num_ctas = kMaxErrors;
  if (num_ctas > num_blocks) num_ctas = num_blocks == 0 ? 1 : num_blocks;
  const unsigned rows = (1u << work.log2_block) / kRowValues;
  unsigned log2_warps = 4;
  static_assert(1u << 4 == kStraightWarps && kStraightWarps >> 1 == kMaxGroups);
  const unsigned wanted = num_blocks >= 4 * num_ctas ? 16 : 8;
  while (log2_warps > 1 && rows >> log2_warps < wanted &&
         num_blocks << (log2_warps - 1) >= num_ctas * (kStraightWarps - 1))
    --log2_warps;
  // The same number of blocks for all thread blocks, rather than one more for some.
  const std::uint64_t groups = kStraightWarps >> log2_warps;
  const std::uint64_t turns = (num_blocks + num_ctas * groups - 1) / (num_ctas * groups);
  if (turns != 0) num_ctas = (num_blocks + turns * groups - 1) / (turns * groups);
  const auto kernel = rows >> log2_warps >= 8   ? decode_straight_kernel<Access, 8>
                      : rows >> log2_warps >= 4 ? decode_straight_kernel<Access, 4>
                      : rows >> log2_warps >= 2 ? decode_straight_kernel<Access, 2>
                                                : decode_straight_kernel<Access, 1>;
  return launch_decoder<Access>(kernel, num_ctas, kStraightThreads + kWarpSize, 0, stream, work,
                                log2_warps);
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
