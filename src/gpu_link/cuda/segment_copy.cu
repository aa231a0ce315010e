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
constexpr u32 kCountShift = 48;  // above the sum of as many 32-bit numbers as a launch has blocks
static_assert(kLeastRows * kPiecesALaunch <= kMostBlocks && kMostBlocks < 1 << (kCountShift - 32));

// Copies n bytes, which start at byte `at` of the chunk. Returns this thread's checksum terms.
// Whole groups of 16 bytes where both sides are aligned, single bytes elsewhere.
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
      if (i < n / 16) reinterpret_cast<uint4*>(to)[i] = v[j];
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
      if (i < n) to[i] = static_cast<u8>(bytes[j]);
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

// Each half of a thread block's sum is added to a counter of its own, together with the number of
// blocks that have added theirs. The block that completes a half sees its total: no block has to
// wait for the writes of another, and the counters are 0 again for the next launch.
__device__ void add_to_total(u64 sum, SumOfLaunch where) {
  __shared__ u64 of_warps[kThreads / kWarpSize];
  sum = warp_sum(sum);
  if (lane_id() == 0) of_warps[warp_id()] = sum;
  __syncthreads();
  if (threadIdx.x >= 2) return;
  sum = 0;
  for (const u64 of_warp : of_warps) sum += of_warp;
  const u64 half = (sum >> 32 * threadIdx.x & 0xFFFF'FFFF) | u64{1} << kCountShift;
  const u64 all =
      atomicAdd(&where.counters[threadIdx.x], static_cast<unsigned long long>(half)) + half;
  if (all >> kCountShift != gridDim.x * gridDim.y) return;
  where.counters[threadIdx.x] = 0;
  where.halves[threadIdx.x] = all & ((u64{1} << kCountShift) - 1);
}

template <std::size_t kMost>
__global__ void __launch_bounds__(kThreads)
    copy_kernel(const __grid_constant__ PieceArguments<kMost> pieces, u8* memory, CopyWay way,
                SumOfLaunch where) {
  u8* const piece = pieces.data[blockIdx.x];
  const u32 start = pieces.starts[blockIdx.x], length = pieces.starts[blockIdx.x + 1] - start;
  u64 sum = 0;
  for (u32 at = blockIdx.y * kSlice; at < length; at += gridDim.y * kSlice) {
    const u32 n = length - at < kSlice ? length - at : kSlice;
    u8* const place = memory + start + at;
    sum += way == CopyWay::kScatter ? copy_slice(piece + at, place, n, start + at)
                                    : copy_slice(place, piece + at, n, start + at);
  }
  if (where.counters != nullptr) add_to_total(sum, where);
}

// Few pieces are cut into more slices, to fill the GPU; no thread block is without work for the
// longest one.
u32 rows_for(std::span<const Segment> pieces) {
  const auto most =
      std::clamp(kMostBlocks / static_cast<u32>(pieces.size()), kLeastRows, kMostBlocks / 2);
  std::size_t longest = 1;
  for (const Segment& piece : pieces) longest = std::max<std::size_t>(longest, piece.num_bytes);
  return static_cast<u32>(std::min<std::size_t>(most, (longest + kSlice - 1) / kSlice));
}

// `start`: of the first piece in the memory, and then behind the last.
template <std::size_t kMost>
cudaError_t launch(CopyWay way, std::span<const Segment> pieces, u32& start, void* memory,
                   SumOfLaunch where, cudaStream_t stream) {
  PieceArguments<kMost> arguments;
  arguments.starts[0] = start;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    arguments.data[i] = static_cast<u8*>(pieces[i].data);
    arguments.starts[i + 1] = start += static_cast<u32>(pieces[i].num_bytes);
  }
  const auto n = static_cast<u32>(pieces.size());
  copy_kernel<kMost><<<dim3(n, rows_for(pieces)), kThreads, 0, stream>>>(
      arguments, static_cast<u8*>(memory), way, where);
  return cudaGetLastError();
}

}  // namespace

cudaError_t CopySum::ensure(std::size_t num_pieces) {
  const std::size_t num_launches = (num_pieces + kPiecesALaunch - 1) / kPiecesALaunch;
  const cudaError_t error = counters_.ensure(2 * sizeof(u64));
  return error == cudaSuccess ? halves_.ensure(num_launches * 2 * sizeof(u64)) : error;
}

cudaError_t CopySum::expect(std::size_t num_pieces, cudaStream_t stream) {
  num_launches_ = 0;
  cudaError_t error = ensure(num_pieces);
  if (error == cudaSuccess && !are_zero_)
    error = cudaMemsetAsync(counters_.as(), 0, counters_.num_bytes(), stream);
  are_zero_ = error == cudaSuccess;
  return error;
}

SumOfLaunch CopySum::next_launch() {
  return {counters_.as<unsigned long long>(), halves_.as<u64>() + 2 * num_launches_++};
}

u64 CopySum::checksum(std::uint64_t num_bytes) const {
  u64 sum = 0;
  const u64* const halves = halves_.as<const u64>();
  for (std::size_t i = 0; i < num_launches_; ++i) sum += halves[2 * i] + (halves[2 * i + 1] << 32);
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
  cudaError_t error = sum == nullptr ? cudaSuccess : sum->expect(pieces.size(), stream);
  u32 start = 0;
  while (error == cudaSuccess && !pieces.empty()) {
    const auto some = pieces.first(std::min(pieces.size(), kPiecesALaunch));
    const auto n = static_cast<u32>(some.size());
    const SumOfLaunch where = sum == nullptr ? SumOfLaunch{} : sum->next_launch();
    error = n == 1 ? launch<1>(way, some, start, memory, where, stream)
                   : launch<kPiecesALaunch>(way, some, start, memory, where, stream);
    pieces = pieces.subspan(n);
  }
  return error;
}

}  // namespace snug::cuda
