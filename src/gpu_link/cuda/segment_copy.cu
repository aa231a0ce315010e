#include <algorithm>

#include "gpu_link/cuda/segment_copy.h"

namespace snug::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kSlice = 16 * 1024;  // bytes that a thread block copies at a time

// Whole groups of 16 bytes where both sides are aligned, single bytes elsewhere.
__device__ void copy_slice(std::uint8_t* to, const std::uint8_t* from, unsigned n) {
  unsigned done = 0;
  if ((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) % 16 == 0) {
    const auto* src = reinterpret_cast<const uint4*>(from);
    auto* dst = reinterpret_cast<uint4*>(to);
    for (unsigned i = threadIdx.x; i < n / 16; i += kThreads) dst[i] = src[i];
    done = n / 16 * 16;
  }
  for (unsigned i = done + threadIdx.x; i < n; i += kThreads) to[i] = from[i];
}

struct PieceArguments {
  std::uint8_t* data[kPiecesALaunch];
  std::uint32_t starts[kPiecesALaunch + 1];  // in the memory; the last one is the end
};
static_assert(sizeof(PieceArguments) + 64 <= 4096, "what every GPU takes as arguments");

__global__ void copy_kernel(const __grid_constant__ PieceArguments pieces, unsigned num_pieces,
                            std::uint8_t* memory, bool gathers) {
  for (unsigned i = blockIdx.x; i < num_pieces; i += gridDim.x) {
    std::uint8_t* piece = pieces.data[i];
    std::uint8_t* place = memory + pieces.starts[i];
    const unsigned length = pieces.starts[i + 1] - pieces.starts[i];
    for (unsigned at = blockIdx.y * kSlice; at < length; at += gridDim.y * kSlice) {
      const unsigned n = length - at < kSlice ? length - at : kSlice;
      copy_slice(gathers ? place + at : piece + at, gathers ? piece + at : place + at, n);
    }
  }
}

}  // namespace

cudaError_t copy_segments(CopyWay way, std::span<const Segment> pieces, void* memory,
                          cudaStream_t stream) {
  auto* place = static_cast<std::uint8_t*>(memory);
  while (!pieces.empty()) {
    const auto n = static_cast<unsigned>(std::min(pieces.size(), kPiecesALaunch));
    PieceArguments arguments;
    arguments.starts[0] = 0;
    for (unsigned i = 0; i < n; ++i) {
      arguments.data[i] = static_cast<std::uint8_t*>(pieces[i].data);
      arguments.starts[i + 1] =
          arguments.starts[i] + static_cast<std::uint32_t>(pieces[i].num_bytes);
    }
    // Few pieces are cut into more slices, to fill the GPU.
    const unsigned rows = std::clamp(512u / n, 2u, 128u);
    copy_kernel<<<dim3(n, rows), kThreads, 0, stream>>>(arguments, n, place,
                                                        way == CopyWay::kGather);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
    place += arguments.starts[n];
    pieces = pieces.subspan(n);
  }
  return cudaSuccess;
}

}  // namespace snug::cuda
