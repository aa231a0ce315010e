// The host side of packing: checks, workspace, launches.
#include <algorithm>

#include "gemm/cuda/linear_host.h"
#include "gemm/cuda/pack_kernels.cuh"
#include "gemm/cuda/unpack_kernels.cuh"

namespace snug::gemm {
namespace {

// Offsets in the workspace of packing from a frame: the decoder's result and workspace, the tensor.
struct FrameWorkspace {
  std::uint64_t result = 0, decode = kAlign, tensor, pack, total;
  std::size_t decode_bytes;

  FrameWorkspace(std::uint64_t n, std::uint64_t k) {
    decode_bytes = cuda::decode_workspace_bytes(n * k * 2, {});
    tensor = align_up(decode + decode_bytes, kAlign);
    pack = align_up(tensor + n * k * 2, kAlign);
    total = pack + PackWorkspace(n, k).total;
  }
};

Status check_pack(std::uint64_t n, std::uint64_t k, Kind kind, cuda::Target dst,
                  cuda::Target workspace, std::uint64_t workspace_bytes,
                  const DeviceResult* result) {
  if (packed_bound(n, k, kind) == 0) return usage("matrix shape or kind out of range");
  const Layout layout(n, k, kind);
  if (dst.data == nullptr || !is_aligned(dst.data, kAlign))
    return usage("packed matrix is not 256-byte aligned");
  if (dst.num_bytes < layout.overflows)
    return {Code::kDstTooSmall, "packed matrix does not fit", kNowhere, kNowhere, dst.num_bytes,
            layout.overflows};
  if (Status s = check_workspace(workspace.data, workspace.num_bytes, workspace_bytes); !s.ok())
    return s;
  if (result == nullptr) return usage("no place for the result");
  if (layout.strips > 0x7FFFFFFFu) return usage("matrix shape out of range");
  if (current_device().num_sms == 0) return {Code::kNoDevice, "no usable GPU"};
  if (current_device().major < 8)
    return {Code::kNoDevice, "packing needs a GPU of compute capability 8.0 or later"};
  return {};
}

PackParams pack_params(const void* w, std::uint64_t ld, std::uint64_t n, std::uint64_t k, Kind kind,
                       cuda::Target dst, std::uint8_t* workspace, DeviceResult* result) {
  const PackWorkspace offsets(n, k);
  const Layout layout(n, k, kind);
  const std::uint64_t room = (dst.num_bytes - layout.overflows) / kOverflowBytes;
  return {.w = static_cast<const std::uint16_t*>(w),
          .ld = ld,
          .n = n,
          .k = k,
          .part_n = n,
          .part_strips = layout.strips,
          .row_end = n,
          .pairs = ld % 2 == 0 && is_aligned(w, 4),
          .dst = static_cast<std::uint8_t*>(dst.data),
          .max_overflows = std::min(room, layout.max_overflows),
          .kind = kind,
          .strip_escaped = reinterpret_cast<std::uint64_t*>(workspace + offsets.escapes),
          .strip_overflows = reinterpret_cast<std::uint64_t*>(workspace + offsets.overflows),
          .tile_overflows = workspace + offsets.tiles,
          .result = result};
}

}  // namespace

cudaError_t enqueue_pack(const PackParams& p, std::uint32_t count, cudaStream_t stream) noexcept {
  const dim3 strips(static_cast<std::uint32_t>(Layout(p.n, p.k, p.kind).strips), count);
  pack_strips<<<strips, kPackThreads, 0, stream>>>(p);
  finish_pack<<<dim3(1, count), 1024, 0, stream>>>(p);
  if (p.kind == Kind::kFixed) pack_overflows<<<strips, 32, 0, stream>>>(p);
  return cudaGetLastError();
}

std::size_t pack_workspace_bytes(std::uint64_t n, std::uint64_t k) noexcept {
  return packed_bound(n, k, Kind::kFixed) == 0 ? 0 : PackWorkspace(n, k).total;
}

std::size_t pack_frame_workspace_bytes(std::uint64_t n, std::uint64_t k) noexcept {
  return packed_bound(n, k, Kind::kFixed) == 0 ? 0 : FrameWorkspace(n, k).total;
}

Status pack(const void* w, std::uint64_t ld, std::uint64_t n, std::uint64_t k, Kind kind,
            cuda::Target dst, cuda::Target workspace, DeviceResult* result,
            Stream stream) noexcept {
  if (Status s = check_pack(n, k, kind, dst, workspace, pack_workspace_bytes(n, k), result);
      !s.ok())
    return s;
  if (w == nullptr || !is_aligned(w, 2)) return usage("weights are not 2-byte aligned");
  if (ld < k) return usage("rows overlap: leading dimension", ld, k);
  return from_cuda(enqueue_pack(
      pack_params(w, ld, n, k, kind, dst, static_cast<std::uint8_t*>(workspace.data), result), 1,
      stream));
}

Status pack_frame(cuda::Source frame, std::uint64_t n, std::uint64_t k, Kind kind, cuda::Target dst,
                  cuda::Target workspace, DeviceResult* result, Stream stream) noexcept {
  if (Status s = check_pack(n, k, kind, dst, workspace, pack_frame_workspace_bytes(n, k), result);
      !s.ok())
    return s;
  const FrameWorkspace offsets(n, k);
  auto* base = static_cast<std::uint8_t*>(workspace.data);
  auto* decoded = reinterpret_cast<DeviceResult*>(base + offsets.result);
  if (Status s = cuda::decode(frame, {base + offsets.tensor, n * k * 2},
                              {base + offsets.decode, offsets.decode_bytes}, decoded, {}, stream);
      !s.ok())
    return s;
  PackParams p =
      pack_params(base + offsets.tensor, k, n, k, kind, dst, base + offsets.pack, result);
  p.upstream = decoded;
  p.upstream_bytes = n * k * 2;
  return from_cuda(enqueue_pack(p, 1, stream));
}

Result<Matrix> open(const void* data, std::uint64_t num_bytes, Stream stream) noexcept {
  if (data == nullptr || !is_aligned(data, kAlign))
    return usage("packed matrix is not 256-byte aligned");
  if (num_bytes < kHeaderBytes) return inspect({}, num_bytes);
  std::byte header[kHeaderBytes];
  cudaError_t error = cudaMemcpyAsync(header, data, kHeaderBytes, cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) return from_cuda(error);
  Result<Matrix> matrix = inspect(header, num_bytes);
  if (matrix.ok()) matrix->data = data;
  return matrix;
}

PackedParts parts_of(const Matrix& matrix) noexcept {
  const Layout layout(matrix.n, matrix.k, matrix.kind);
  const auto* data = static_cast<const std::uint8_t*>(matrix.data);
  return {data + layout.tiles,
          reinterpret_cast<const uint2*>(data + layout.palettes),
          reinterpret_cast<const uint4*>(data + layout.escapes),
          {data + layout.overflows,
           static_cast<std::uint32_t>((matrix.num_bytes - layout.overflows) / kOverflowBytes)}};
}

cudaError_t launch_unpack(const Matrix& matrix, std::uint64_t first_strip, std::uint64_t num_strips,
                          std::uint64_t row_end, void* w, std::uint64_t ld,
                          cudaStream_t stream) noexcept {
  const Layout layout(matrix.n, matrix.k, matrix.kind);
  UnpackParams p{};
  static_cast<PackedParts&>(p) = parts_of(matrix);
  p.n = row_end;
  p.k = matrix.k;
  p.first_strip = first_strip;
  p.num_strips = num_strips;
  p.tiles_per_strip = layout.tiles_per_strip;
  p.w = static_cast<std::uint16_t*>(w);
  p.ld = ld;
  p.wide = ld % 8 == 0 && is_aligned(w, 16);
  const auto blocks = static_cast<std::uint32_t>((num_strips * layout.tiles_per_strip + 7) / 8);
  if (matrix.kind == Kind::kRaw)
    unpack_tiles<Kind::kRaw><<<blocks, 256, 0, stream>>>(p);
  else
    unpack_tiles<Kind::kFixed><<<blocks, 256, 0, stream>>>(p);
  return cudaGetLastError();
}

Status unpack(const Matrix& matrix, void* w, std::uint64_t ld, Stream stream) noexcept {
  if (Status s = check_matrix(matrix); !s.ok()) return s;
  if (w == nullptr || !is_aligned(w, 2)) return usage("weights are not 2-byte aligned");
  if (ld < matrix.k) return usage("rows overlap: leading dimension", ld, matrix.k);
  if (current_device().num_sms == 0) return {Code::kNoDevice, "no usable GPU"};
  return from_cuda(launch_unpack(matrix, 0, Layout(matrix.n, matrix.k, matrix.kind).strips,
                                 matrix.n, w, ld, stream));
}

}  // namespace snug::gemm
