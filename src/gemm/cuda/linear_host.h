// gemm/cuda/linear_host.h - what the host side of the kernels shares.
#pragma once
#include "gemm/cuda/linear_params.h"
#include "gemm/plan.h"
#include "gpu/launch.h"
#include "gpu/status.h"

namespace snug::gemm {

using cuda::from_cuda;
using cuda::is_aligned;
using cuda::usage;

// The current device, whose properties are read once.
const Device& current_device() noexcept;

// Whether the fields of a matrix are plausible, without looking at its data.
Status check_matrix(const Matrix& matrix) noexcept;
PackedParts parts_of(const Matrix& matrix) noexcept;
LinearParams params_of(const Matrix& matrix, const LinearArgs& args) noexcept;

std::uint64_t plan_workspace_bytes(const Device& device, const Problem& problem,
                                   const CompletePlan& complete) noexcept;

cudaError_t launch_few_rows(const Device& device, LinearParams params, Kind kind,
                            const FewRowsFit& fit, cudaStream_t stream) noexcept;
cudaError_t launch_batch(const Device& device, const LinearParams& params, Kind kind,
                         const Plan& plan, cudaStream_t stream) noexcept;
cudaError_t launch_generic(const LinearParams& params, Kind kind, cudaStream_t stream) noexcept;

// Restores strips [first, first + count) to rows of ld elements, but no row from row_end on.
cudaError_t launch_unpack(const Matrix& matrix, std::uint64_t first_strip, std::uint64_t num_strips,
                          std::uint64_t row_end, void* w, std::uint64_t ld,
                          cudaStream_t stream) noexcept;

// cuBLASLt, found at run time.
inline constexpr std::uint64_t kBlasWorkspaceBytes = 32 << 20;
bool have_blas() noexcept;
// y[m][n] = x[m][k] w[n][k]^T + bias; y and bias already point to the panel.
Status blas_linear(const LinearParams& params, const void* w, std::uint64_t ldw, std::uint32_t n,
                   void* workspace, cudaStream_t stream) noexcept;

// Launches a kernel for Hopper, which waits for the previous one and has dynamic shared memory
// only: no questions to the driver.
template <class Params>
cudaError_t launch_sm90(const Device& device, void (*kernel)(Params), const cuda::Launch& launch,
                        const Params& params) {
  if (launch.smem_bytes > cuda::kUsualSmemBytes) {
    const cudaError_t error = cuda::raise_smem_limit(kernel, device.max_smem);
    if (error != cudaSuccess) return error;
  }
  return cuda::launch_as_is(kernel, launch, params);
}

}  // namespace snug::gemm
