#include <algorithm>

#include "gpu/checksum.cuh"
#include "gpu/warp.cuh"
#include "gpu_link/cuda/segment_copy.h"

namespace snug::cuda {
namespace {

constexpr u32 kThreads = 256;
constexpr u32 kSlice = 16 * 1024;  // bytes that a thread block copies at a time
constexpr u32 kMostBlocks = 512;   // of a launch
constexpr u32 kLeastRows = 2;      // of thread blocks, where pieces are many
constexpr u32 kLoads = kSlice / (16 * kThreads), kByteLoads = 8;  // under way in each thread
static_assert(kLeastRows * kPiecesALaunch <= kMostBlocks);

// Copies n bytes, unless `to` is null. They start at byte `at` of the chunk. Returns this thread's
// checksum terms. Whole groups of 16 bytes where both sides are aligned, single bytes elsewhere.
__device__ u64 copy_slice(u8* to, const u8* from, u32 n, u32 at) {
  u64 sum = 0;
  u32 done = 0;
  if ((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from) | at) % 16 ==
      0) {
    uint4 v[kLoads];
#pragma unroll
    for (u32 j = 0; j < kLoads; ++j) {
      const u32 i = threadIdx.x + j * kThreads;
      v[j] = i < n / 16 ? reinterpret_cast<const uint4*>(from)[i] : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (u32 j = 0; j < kLoads; ++j) {
      const u32 i = threadIdx.x + j * kThreads;
      if (to != nullptr && i < n / 16) reinterpret_cast<uint4*>(to)[i] = v[j];
      sum += checksum_term(v[j], at / 16 + i);
    }
    done = n / 16 * 16;
  }
  for (u32 first = done + threadIdx.x; first < n; first += kByteLoads * kThreads) {
    u32 bytes[kByteLoads];
#pragma unroll
    for (u32 j = 0; j < kByteLoads; ++j) {
      const u32 i = first + j * kThreads;
      bytes[j] = i < n ? from[i] : 0;
    }
#pragma unroll
    for (u32 j = 0; j < kByteLoads; ++j) {
      const u32 i = first + j * kThreads, place = at + i;
      if (to != nullptr && i < n) to[i] = static_cast<u8>(bytes[j]);
      sum += checksum_term(bytes[j] << 8 * (place % 4), place / 4);
    }
  }
  return sum;
}

// A launch takes longer with more arguments, so one piece has a kernel of its own.
template <std::size_t kMost>
struct PieceArguments {
  u8* data[kMost];
  u32 starts[kMost + 1];  // in the memory; the last one is the end
};
static_assert(sizeof(PieceArguments<kPiecesALaunch>) + 64 <= 4096, "what every GPU takes");

template <std::size_t kMost>
__global__ void __launch_bounds__(kThreads)
    copy_kernel(const __grid_constant__ PieceArguments<kMost> pieces, u8* memory, CopyWay way,
                u64* shares) {
  u8* const piece = pieces.data[blockIdx.x];
  const u32 start = pieces.starts[blockIdx.x], length = pieces.starts[blockIdx.x + 1] - start;
  u64 sum = 0;
  for (u32 at = blockIdx.y * kSlice; at < length; at += gridDim.y * kSlice) {
    const u32 n = length - at < kSlice ? length - at : kSlice;
    u8* const place = memory == nullptr ? nullptr : memory + start + at;
    sum += way == CopyWay::kScatter ? copy_slice(piece + at, place, n, start + at)
                                    : copy_slice(place, piece + at, n, start + at);
  }
  if (shares == nullptr) return;
  __shared__ u64 of_warps[kThreads / kWarpSize];
  sum = warp_sum(sum);
  if (lane_id() == 0) of_warps[warp_id()] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (u32 i = 1; i < kThreads / kWarpSize; ++i) sum += of_warps[i];
  shares[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

// Few pieces are cut into more slices, to fill the GPU.
u32 rows_for(u32 num_pieces) {
  return std::clamp(kMostBlocks / num_pieces, kLeastRows, kMostBlocks / 2);
}

// `start`: of the first piece in the memory, and then behind the last.
template <std::size_t kMost>
cudaError_t launch(CopyWay way, std::span<const Segment> pieces, u32& start, void* memory,
                   u64* shares, cudaStream_t stream) {
  PieceArguments<kMost> arguments;
  arguments.starts[0] = start;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    arguments.data[i] = static_cast<u8*>(pieces[i].data);
    arguments.starts[i + 1] = start += static_cast<u32>(pieces[i].num_bytes);
  }
  const auto n = static_cast<u32>(pieces.size());
  copy_kernel<kMost><<<dim3(n, rows_for(n)), kThreads, 0, stream>>>(
      arguments, static_cast<u8*>(memory), way, shares);
  return cudaGetLastError();
}

}  // namespace

cudaError_t CopySum::ensure(std::size_t num_pieces) {
  const std::size_t num_launches = (num_pieces + kPiecesALaunch - 1) / kPiecesALaunch;
  return shares_.ensure(num_launches * kMostBlocks * sizeof(u64));
}

cudaError_t CopySum::expect(std::size_t num_pieces) {
  num_shares_ = 0;
  return ensure(num_pieces);
}

u64* CopySum::take_shares(std::size_t num_blocks) {
  u64* const first = shares_.as<u64>() + num_shares_;
  num_shares_ += num_blocks;
  return first;
}

u64 CopySum::checksum(std::uint64_t num_bytes) const {
  u64 sum = 0;
  for (std::size_t i = 0; i < num_shares_; ++i) sum += shares_.as<const u64>()[i];
  return frame::wide_checksum(sum, num_bytes);
}

cudaError_t load_copy_kernels() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, copy_kernel<1>);
  return error == cudaSuccess ? cudaFuncGetAttributes(&attributes, copy_kernel<kPiecesALaunch>)
                              : error;
}

cudaError_t copy_segments(CopyWay way, std::span<const Segment> pieces, void* memory, CopySum* sum,
                          cudaStream_t stream) {
  cudaError_t error = sum == nullptr ? cudaSuccess : sum->expect(pieces.size());
  u32 start = 0;
  while (error == cudaSuccess && !pieces.empty()) {
    const auto some = pieces.first(std::min(pieces.size(), kPiecesALaunch));
    const auto n = static_cast<u32>(some.size());
    u64* const shares = sum == nullptr ? nullptr : sum->take_shares(n * rows_for(n));
    error = n == 1 ? launch<1>(way, some, start, memory, shares, stream)
                   : launch<kPiecesALaunch>(way, some, start, memory, shares, stream);
    pieces = pieces.subspan(n);
  }
  return error;
}

}  // namespace snug::cuda
