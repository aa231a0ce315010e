// codec/cuda/kernels.cuh - the launchers behind snug/cuda.h.
#pragma once
#include <cuda_runtime.h>

#include "codec/cuda/frame/work.cuh"

namespace snug::cuda {

// num_blocks is an upper bound where the device alone knows the number.
cudaError_t launch_decode(const Work& work, bool direct, std::uint64_t num_blocks, int num_sms,
                          cudaStream_t stream);
cudaError_t launch_encode(const Work& work, bool direct, std::uint64_t num_blocks, int num_sms,
                          cudaStream_t stream);

// What launch_decode uses for all others of frames not said to be entropy-coded.
cudaError_t launch_decode_wide(const Work& work, bool direct, std::uint64_t num_blocks, int num_sms,
                               cudaStream_t stream);

// What launch_decode uses for one BF16 tensor that is not said to be entropy-coded.
bool uses_straight_decode(const Work& work);
cudaError_t launch_decode_straight(const Work& work, bool direct, std::uint64_t num_blocks,
                                   int num_sms, cudaStream_t stream);

// What launch_decode uses for entropy-coded frames of types without an exponent plane.
cudaError_t launch_decode_bytes(const Work& work, bool direct, std::uint64_t num_blocks,
                                int num_sms, cudaStream_t stream);

// What launch_encode uses for fixed and raw frames of blocks up to 64 KiB.
bool uses_wide_encode(DType dtype, Codec codec, int log2_block);
cudaError_t launch_encode_wide(const Work& work, bool direct, std::uint64_t num_blocks, int num_sms,
                               cudaStream_t stream);

// What launch_encode uses for BF16 with the entropy codec.
bool uses_palette_encode(DType dtype, Codec codec);
int palette_warps_per_sm(int log2_block);
cudaError_t launch_encode_palette(const Work& work, bool direct, std::uint64_t num_blocks,
                                  int num_sms, cudaStream_t stream);

// Warps that hold scratch memory at the same time, and how much each.
std::uint64_t encode_slots(DType dtype, Codec codec, int log2_block, std::uint64_t num_blocks,
                           int num_sms);
std::uint64_t encode_scratch_bytes(DType dtype, Codec codec, int log2_block);

}  // namespace snug::cuda
