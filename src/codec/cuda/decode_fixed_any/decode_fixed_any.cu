// The decode kernel for frames that are not entropy-coded, and its launch.
#include <cuda_runtime.h>

#include "codec/cuda/decode_fixed_any/decode_fixed_any_kernel.cuh"
#include "codec/cuda/frame/decode_verdict.cuh"
#include "codec/cuda/kernels.cuh"

namespace snug::cuda {
namespace {

// Each thread block has a multiprocessor to itself: what its shared memory holds
// of stages, and never so little that two would share one.
template <class Access, int kWidth>
cudaError_t launch(const Work& work, std::uint64_t num_blocks, int num_sms, cudaStream_t stream) {
  const auto kernel = decode_wide_kernel<Access, kWidth>;
  StageRoom room;
  const cudaError_t error = find_stage_room(kernel, room);
  if (error != cudaSuccess) return error;
  std::uint32_t stage_bytes = kWidth << work.log2_block;
  if (stage_bytes > kDecodeStageBytes) stage_bytes = kDecodeStageBytes;
  if (stage_bytes < sizeof(DecodeSmem)) stage_bytes = sizeof(DecodeSmem);
  const unsigned num_stages = room.stages_of(stage_bytes, kMaxStages);
  const std::uint32_t half = room.num_bytes / 2 + 1024,
                      smem = num_stages * stage_bytes > half ? num_stages * stage_bytes : half;
  const std::uint64_t most = num_sms < static_cast<int>(kMaxErrors) ? num_sms : kMaxErrors;
  const auto num_ctas = static_cast<unsigned>(num_blocks == 0     ? 1
                                              : num_blocks < most ? num_blocks
                                                                  : most);
  return launch_decoder<Access>(kernel, num_ctas, kConsumerThreads + kWarpSize, smem, stream, work,
                                stage_bytes, num_stages);
}

template <class Access>
cudaError_t launch_any(const Work& work, std::uint64_t num_blocks, int num_sms,
                       cudaStream_t stream) {
  switch (width_of(work.dtype)) {
    case 1: return launch<Access, 1>(work, num_blocks, num_sms, stream);
    case 2: return launch<Access, 2>(work, num_blocks, num_sms, stream);
    case 4: return launch<Access, 4>(work, num_blocks, num_sms, stream);
    default: return launch<Access, 8>(work, num_blocks, num_sms, stream);
  }
}

}  // namespace

cudaError_t launch_decode_wide(const Work& work, bool direct, std::uint64_t num_blocks, int num_sms,
                               cudaStream_t stream) {
  return direct ? launch_any<DirectAccess>(work, num_blocks, num_sms, stream)
                : launch_any<ScatteredAccess>(work, num_blocks, num_sms, stream);
}

}  // namespace snug::cuda
