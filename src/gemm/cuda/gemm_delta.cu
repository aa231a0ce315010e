// Deltas of packed matrices: the dense matrix is restored, changed and packed again.
#include "delta/cuda/gpu_delta_host.h"
#include "snug/gemm.h"

namespace snug::gemm {
namespace {

// Offsets in the workspace.
struct UpdateWorkspace {
  std::size_t results = 0, apply = kAlign, dense, pack, total;
  std::size_t dense_bytes, pack_bytes;

  UpdateWorkspace(std::uint64_t n, std::uint64_t k)
      : dense_bytes(n * k * 2), pack_bytes(pack_workspace_bytes(n, k)) {
    const auto align = [](std::size_t v) { return (v + kAlign - 1) / kAlign * kAlign; };
    dense = align(apply + cuda::delta_apply_workspace_bytes(dense_bytes, {}));
    pack = align(dense + dense_bytes);
    total = pack + pack_bytes;
  }
};

// The first error of the steps.
__global__ void join_results(const DeviceResult* steps, DeviceResult* result) {
  *result = steps[0].code != 0 ? steps[0] : steps[1];
}

}  // namespace

std::size_t apply_delta_workspace_bytes(std::uint64_t n, std::uint64_t k) noexcept {
  return packed_bound(n, k, Kind::kRaw) == 0 ? 0 : UpdateWorkspace(n, k).total;
}

Status apply_delta(const Matrix& matrix, cuda::Source delta, Kind kind, cuda::Target new_packed,
                   cuda::Target workspace, DeviceResult* result, const cuda::DeltaOptions& options,
                   Stream stream) noexcept {
  using cuda::usage;
  if (options.dtype != DType::kBF16)
    return usage("packed matrices are BF16", static_cast<std::uint64_t>(options.dtype));
  const std::size_t needed = apply_delta_workspace_bytes(matrix.n, matrix.k);
  if (needed == 0) return usage("matrix shape out of range");
  if (Status s = cuda::deltas::check_memory(workspace, needed, result); !s.ok()) return s;
  const auto* old_begin = static_cast<const std::byte*>(matrix.data);
  const auto* new_begin = static_cast<const std::byte*>(new_packed.data);
  if (old_begin < new_begin + new_packed.num_bytes && new_begin < old_begin + matrix.num_bytes)
    return usage("the new matrix overlaps the old one");
  const UpdateWorkspace layout(matrix.n, matrix.k);
  auto* memory = static_cast<std::byte*>(workspace.data);
  auto* steps = reinterpret_cast<DeviceResult*>(memory + layout.results);
  std::byte* dense = memory + layout.dense;
  cuda::DeltaOptions apply_options = options;
  apply_options.host_result = nullptr;
  if (Status s = unpack(matrix, dense, matrix.k, stream); !s.ok()) return s;
  // In place: after an error the old matrix is packed again.
  if (Status s = cuda::delta_apply(delta, {dense, layout.dense_bytes},
                                   {memory + layout.apply, layout.dense - layout.apply}, steps,
                                   apply_options, stream);
      !s.ok())
    return s;
  if (Status s = gemm::pack(dense, matrix.k, matrix.n, matrix.k, kind, new_packed,
                            {memory + layout.pack, layout.pack_bytes}, steps + 1, stream);
      !s.ok())
    return s;
  join_results<<<1, 1, 0, stream>>>(steps, result);
  return cuda::deltas::copy_result(cudaGetLastError(), result, options.host_result, stream);
}

}  // namespace snug::gemm
