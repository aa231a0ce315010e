// gemm/cuda/launch.h - what the host side of the kernels shares.
#pragma once
#include <cuda_runtime.h>

#include "gemm/cuda/linear_params.cuh"
#include "snug/gemm.h"

namespace snug::gemm {

// The current device; num_sms is 0 where there is none.
struct Device {
  int num_sms = 0, major = 0, minor = 0;
  std::uint32_t max_smem = 0;
  char name[64] = "";

  bool hopper() const { return major == 9 && minor == 0; }
};
const Device& current_device() noexcept;

Status usage(const char* what, std::uint64_t found = kNowhere,
             std::uint64_t expected = kNowhere) noexcept;
Status from_cuda(cudaError_t error) noexcept;

// Whether the fields of a matrix can be true, without looking at its data.
Status check_matrix(const Matrix& matrix) noexcept;

PackedParts parts_of(const Matrix& matrix) noexcept;

// Where things lie in a workspace. Counters come first and have a fixed size, so
// that one workspace can serve matrices of different shapes.
inline constexpr std::uint64_t kCounterBytes = 512 << 10;
inline constexpr std::uint32_t kMaxDecodeTokens = 16;

// How k is cut and how deep the rings are; splits == 0: the kernel does not fit.
struct DecodeFit {
  std::uint32_t splits = 0, warps = 0, stages = 0, max_split_tiles = 0;
  double waste = 0;  // time over that of an even distribution
};
DecodeFit fit_decode(const Device& device, std::uint64_t n, std::uint64_t k, std::uint64_t m,
                     Kind kind, const Plan& plan) noexcept;
std::uint64_t decode_partial_bytes(std::uint64_t n, std::uint32_t m, std::uint32_t splits) noexcept;
cudaError_t launch_decode(const Device& device, LinearParams params, Kind kind,
                          const DecodeFit& fit, cudaStream_t stream) noexcept;

// Rows of x in a tile of the batch kernel: the smallest width that holds m.
std::uint32_t batch_columns(std::uint64_t m) noexcept;
bool batch_fits(const Plan& plan, std::uint64_t k) noexcept;
std::uint64_t batch_partial_bytes(const Device& device, const Plan& plan) noexcept;
cudaError_t launch_batch(const Device& device, const LinearParams& params, Kind kind,
                         const Plan& plan, cudaStream_t stream) noexcept;

cudaError_t launch_generic(const LinearParams& params, Kind kind, cudaStream_t stream) noexcept;

// cuBLASLt, found at run time.
inline constexpr std::uint64_t kBlasWorkspaceBytes = 32 << 20;
bool have_blas() noexcept;
// y[m][n] = x[m][k] w[n][k]^T + bias; y and bias already point to the panel.
Status blas_linear(const LinearParams& params, const void* w, std::uint64_t ldw, std::uint32_t n,
                   void* workspace, cudaStream_t stream) noexcept;

// Restores strips [first, first + count) to rows of ld elements.
cudaError_t launch_unpack(const Matrix& matrix, std::uint64_t first_strip, std::uint64_t num_strips,
                          void* w, std::uint64_t ld, cudaStream_t stream) noexcept;

// Launches so that the kernel may begin while the one before it ends; kernels
// wait for it themselves before they touch what it wrote.
template <class Params>
cudaError_t launch_overlapped(const Device& device, void (*kernel)(Params), std::uint32_t blocks,
                              std::uint32_t threads, std::uint32_t smem, const Params& params,
                              cudaStream_t stream, std::uint32_t cluster = 1) {
  // Always the same limit: other threads may be launching with other sizes. These
  // kernels have no shared memory but this.
  if (smem > 48 << 10) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(device.max_smem));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = smem;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster == 1 ? 1 : 2;
  return cudaLaunchKernelEx(&config, kernel, params);
}

}  // namespace snug::gemm
