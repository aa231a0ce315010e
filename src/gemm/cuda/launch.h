// gemm/cuda/launch.h - what the host side of the kernels shares.
#pragma once
#include "gemm/cuda/linear_params.h"
#include "gemm/plan.h"

namespace snug::gemm {

// The current device, whose properties are read once.
const Device& current_device() noexcept;

Status usage(const char* what, std::uint64_t found = kNowhere,
             std::uint64_t expected = kNowhere) noexcept;
Status from_cuda(cudaError_t error) noexcept;

inline bool aligned(const void* p, std::size_t to) {
  return reinterpret_cast<std::uintptr_t>(p) % to == 0;
}

// Whether the fields of a matrix are plausible, without looking at its data.
Status check_matrix(const Matrix& matrix) noexcept;
PackedParts parts_of(const Matrix& matrix) noexcept;

std::uint64_t plan_workspace_bytes(const Device& device, const Problem& problem,
                                   const CompletePlan& complete) noexcept;

cudaError_t launch_few_rows(const Device& device, LinearParams params, Kind kind,
                            const FewRowsFit& fit, cudaStream_t stream) noexcept;
cudaError_t launch_batch(const Device& device, const LinearParams& params, Kind kind,
                         const Plan& plan, cudaStream_t stream) noexcept;
cudaError_t launch_generic(const LinearParams& params, Kind kind, cudaStream_t stream) noexcept;

// Restores strips [first, first + count) to rows of ld elements.
cudaError_t launch_unpack(const Matrix& matrix, std::uint64_t first_strip, std::uint64_t num_strips,
                          void* w, std::uint64_t ld, cudaStream_t stream) noexcept;

// cuBLASLt, found at run time.
inline constexpr std::uint64_t kBlasWorkspaceBytes = 32 << 20;
bool have_blas() noexcept;
// y[m][n] = x[m][k] w[n][k]^T + bias; y and bias already point to the panel.
Status blas_linear(const LinearParams& params, const void* w, std::uint64_t ldw, std::uint32_t n,
                   void* workspace, cudaStream_t stream) noexcept;

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
