// Checksums of packed matrices on the GPU: a thread block reads a strip.
#include "gemm/cuda/linear_host.h"
#include "gpu/checksum.cuh"
#include "gpu/warp.cuh"

namespace snug::gemm {
namespace {

using cuda::checksum_factor, cuda::checksum_term, cuda::checksum_terms;
using cuda::kAllLanes, cuda::lane_id, cuda::warp_id, cuda::warp_sum;

constexpr std::uint32_t kThreads = 512, kWarps = kThreads / 32;
constexpr std::uint32_t kLoads = 4;  // of 16 bytes, under way in each thread

struct SumParams : PackedParts {
  std::uint64_t tiles_per_strip;
  std::uint64_t* sums;            // to write, or null
  const std::uint64_t* expected;  // to compare with, or null
  DeviceResult* result;           // with `expected`: its block becomes the first strip that differs
};

// The word index of 16 or 8 bytes counts modulo 2^32, as that of words does.
__device__ __forceinline__ std::uint32_t idx32(std::uint64_t idx) {
  return static_cast<std::uint32_t>(idx);
}

// This thread's share of num_vecs times 16 bytes that begin with word 0 of the strip.
__device__ __forceinline__ std::uint64_t sum_tiles(const uint4* vecs, std::uint64_t num_vecs) {
  constexpr std::uint32_t kStep = 4 * kThreads * frame::kChecksumStep;  // to a thread's next factor
  std::uint64_t sum = 0, i = threadIdx.x;
  std::uint32_t factor = checksum_factor(4 * threadIdx.x);
  for (; i + (kLoads - 1) * kThreads < num_vecs; i += kLoads * kThreads, factor += kLoads * kStep) {
    uint4 v[kLoads];
#pragma unroll
    for (std::uint32_t j = 0; j < kLoads; ++j) v[j] = __ldcs(vecs + i + j * kThreads);
#pragma unroll
    for (std::uint32_t j = 0; j < kLoads; ++j) sum += checksum_terms(v[j], factor + j * kStep);
  }
  for (; i < num_vecs; i += kThreads, factor += kStep)
    sum += checksum_terms(__ldcs(vecs + i), factor);
  return sum;
}

// Escapes of the strip, and the overflows that they name: each by a whole warp.
__device__ std::uint64_t sum_escapes(const SumParams& p, std::uint64_t strip,
                                     const StripWords& words) {
  const uint4* escapes = p.escapes + strip * p.tiles_per_strip;
  std::uint64_t sum = 0;
  for (std::uint64_t first = warp_id() * 32; first < p.tiles_per_strip; first += kThreads) {
    const std::uint64_t tile = first + lane_id();
    const uint4 v = tile < p.tiles_per_strip ? __ldg(escapes + tile) : uint4{0, 0, 0, 0};
    sum += checksum_term(v, idx32(words.escapes / 4 + tile));
    std::uint32_t marked =
        __ballot_sync(kAllLanes, v.x == kOverflowMark && v.y < p.overflows.count);
    for (; marked != 0; marked &= marked - 1) {
      const auto lane = static_cast<std::uint32_t>(__ffs(static_cast<int>(marked))) - 1;
      const std::uint64_t number = __shfl_sync(kAllLanes, v.y, static_cast<int>(lane));
      const auto* bytes =
          reinterpret_cast<const uint4*>(p.overflows.bytes + number * kOverflowBytes);
      const std::uint64_t at = words.overflows / 4 + (first + lane) * (kOverflowBytes / 16);
#pragma unroll
      for (std::uint32_t i = lane_id(); i < kOverflowBytes / 16; i += 32)
        sum += checksum_term(__ldcs(bytes + i), idx32(at + i));
    }
  }
  return sum;
}

template <Kind kKind>
__global__ void __launch_bounds__(kThreads) sum_strips(const __grid_constant__ SumParams p) {
  constexpr std::uint32_t kTileVecs = tile_bytes_of(kKind) / 16;
  const std::uint64_t strip = blockIdx.x, num_vecs = p.tiles_per_strip * kTileVecs;
  std::uint64_t sum =
      sum_tiles(reinterpret_cast<const uint4*>(p.tiles) + strip * num_vecs, num_vecs);
  if constexpr (kKind == Kind::kFixed) {
    const StripWords words(p.tiles_per_strip, kKind);
    sum += sum_escapes(p, strip, words);
    if (threadIdx.x == 0) sum += checksum_term(__ldg(p.palettes + strip), idx32(words.palette / 2));
  }
  __shared__ std::uint64_t shares[kWarps];
  sum = warp_sum(sum);
  if (lane_id() == 0) shares[warp_id()] = sum;
  __syncthreads();
  if (warp_id() != 0) return;
  sum = warp_sum(lane_id() < kWarps ? shares[lane_id()] : 0);
  if (lane_id() != 0) return;
  const std::uint64_t checksum = frame::wide_checksum(sum, strip + 1);
  if (p.sums != nullptr) p.sums[strip] = checksum;
  if (p.expected != nullptr && p.expected[strip] != checksum)
    atomicMin(reinterpret_cast<unsigned long long*>(&p.result->block),
              static_cast<unsigned long long>(strip));
}

// The block is the first strip that differs, or still kNowhere.
__global__ void finish_verify(DeviceResult* result, std::uint64_t num_bytes) {
  const bool ok = result->block == kNowhere;
  result->num_bytes = ok ? num_bytes : 0;
  result->code = static_cast<std::uint32_t>(ok ? Code::kOk : Code::kCorrupt);
  result->reason = 0;
}

Status start(const Matrix& matrix, SumParams p, cudaStream_t stream) {
  static_cast<PackedParts&>(p) = parts_of(matrix);
  const Layout layout(matrix.n, matrix.k, matrix.kind);
  p.tiles_per_strip = layout.tiles_per_strip;
  const auto strips = static_cast<std::uint32_t>(layout.strips);
  if (p.result != nullptr)  // kNowhere
    if (Status s = from_cuda(cudaMemsetAsync(p.result, 0xFF, sizeof *p.result, stream)); !s.ok())
      return s;
  if (matrix.kind == Kind::kRaw)
    sum_strips<Kind::kRaw><<<strips, kThreads, 0, stream>>>(p);
  else
    sum_strips<Kind::kFixed><<<strips, kThreads, 0, stream>>>(p);
  if (p.result != nullptr) finish_verify<<<1, 1, 0, stream>>>(p.result, matrix.num_bytes);
  return from_cuda(cudaGetLastError());
}

Status check(const Matrix& matrix, const std::uint64_t* sums) {
  if (Status s = check_matrix(matrix); !s.ok()) return s;
  if (sums == nullptr || !is_aligned(sums, 8)) return usage("checksums are not 8-byte aligned");
  if (current_device().num_sms == 0) return {Code::kNoDevice, "no usable GPU"};
  return {};
}

}  // namespace

Status strip_sums(const Matrix& matrix, std::uint64_t* sums, Stream stream) noexcept {
  if (Status s = check(matrix, sums); !s.ok()) return s;
  SumParams p{};
  p.sums = sums;
  return start(matrix, p, stream);
}

Status verify(const Matrix& matrix, const std::uint64_t* sums, DeviceResult* result,
              Stream stream) noexcept {
  if (Status s = check(matrix, sums); !s.ok()) return s;
  if (result == nullptr) return usage("no place for the result");
  SumParams p{};
  p.expected = sums;
  p.result = result;
  return start(matrix, p, stream);
}

}  // namespace snug::gemm
