// codec/cuda/select_kernel.h - which kernel runs a call of snug/cuda.h. docs/gpu.md is the map.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "snug/tensor.h"

namespace snug::cuda {

struct KernelCall;  // codec/cuda/frame/work.cuh

enum class Operation : std::uint8_t { kEncode, kDecode };

// Thread blocks of an encode kernel that a multiprocessor runs at the same time, and the scratch
// memory that each of them needs in the workspace.
struct EncodeSlots {
  unsigned per_sm;
  std::uint64_t scratch_bytes;
};

struct Kernel {
  cudaError_t (*launch)(const KernelCall& call);
  EncodeSlots (*slots)(DType dtype, Codec codec, int log2_block) = nullptr;  // null: decodes
};

// `log2_block` and, for decoding, `codec` are what the caller expects: every decode kernel restores
// every frame of its dtype.
const Kernel& select_kernel(Operation operation, DType dtype, Codec codec, bool is_batch,
                            int log2_block) noexcept;

// Largest block that encode_fixed takes: its shared memory holds one to three of them.
inline constexpr std::uint32_t kMaxRingBlock = 64 * 1024;

// Each is in the folder of its name.
cudaError_t launch_encode_entropy_bf16(const KernelCall& call);
cudaError_t launch_encode_entropy_any(const KernelCall& call);
cudaError_t launch_encode_fixed(const KernelCall& call);
cudaError_t launch_decode_entropy_exponent(const KernelCall& call);
cudaError_t launch_decode_entropy_bytes(const KernelCall& call);
cudaError_t launch_decode_fixed_bf16(const KernelCall& call);
cudaError_t launch_decode_fixed_any(const KernelCall& call);

// Thread blocks of one warp that the shared memory of a multiprocessor holds, at most `most`.
constexpr unsigned slots_that_fit(std::uint32_t smem_bytes, unsigned most) {
  constexpr std::uint32_t kSharedBytes = 228 * 1024, kReserved = 1024;
  const unsigned fit = kSharedBytes / (smem_bytes + kReserved);
  return fit < most ? fit : most;
}
EncodeSlots slots_bf16(DType dtype, Codec codec, int log2_block);
EncodeSlots slots_any(DType dtype, Codec codec, int log2_block);

}  // namespace snug::cuda
