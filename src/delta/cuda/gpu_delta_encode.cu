// Makes a delta of two tensors on the GPU: the kernel and the host side of delta_encode.
#include <algorithm>

#include "delta/cuda/delta_encode.cuh"
#include "delta/cuda/gpu_delta_host.h"

namespace snug::cuda {
namespace deltas {
namespace {

template <unsigned kWidth, bool kLargeBlocks>
__global__ void __launch_bounds__(kEncodeThreads, 2) encode_kernel(const EncodeWork work) {
  extern __shared__ __align__(16) std::uint8_t rooms[];
  __shared__ EncodeShared shared;
  encode_round<kWidth, kLargeBlocks>(work, shared, rooms);
}

delta::Header make_header(std::size_t raw_bytes, const DeltaOptions& options) {
  delta::Header header;
  header.dtype = options.dtype;
  header.log2_block = log2_block_of(options);
  header.num_elems = raw_bytes / elem_bytes(options.dtype);
  header.num_tail_bytes = static_cast<std::uint8_t>(raw_bytes % elem_bytes(options.dtype));
  return header;
}

// Shared memory for each warp: what suits a Hopper GPU, or what the GPU has. 0 if one warp alone
// could not encode a block of which all elements changed.
template <bool kLargeBlocks>
cudaError_t choose_room(const delta::Header& header, std::uint32_t& room_bytes) {
  int most = 0;
  const cudaError_t error = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, most);
  if (error != cudaSuccess) return error;
  const std::uint32_t there_is =
      (static_cast<std::uint32_t>(most) - sizeof(EncodeShared)) / kRoundBlocks / 16 * 16;
  room_bytes = std::min(kLargeBlocks ? kLargeRoomBytes : kSmallRoomBytes, there_is);
  const std::size_t needed =
      EncodeRoom<kLargeBlocks>::bytes_for_all(header.block_elems(), elem_bytes(header.dtype));
  if (std::size_t{kRoundBlocks} * room_bytes < needed) room_bytes = 0;
  return cudaSuccess;
}

template <bool kLargeBlocks>
cudaError_t launch_encode(const EncodeWork& work, cudaStream_t stream) {
  const auto kernel = elem_bytes(work.header.dtype) == 1 ? encode_kernel<1, kLargeBlocks>
                                                         : encode_kernel<2, kLargeBlocks>;
  return launch_kernel(kernel,
                       {std::max(1u, work.num_rounds()), kEncodeThreads,
                        std::size_t{kRoundBlocks} * work.room_bytes, stream},
                       work);
}

}  // namespace
}  // namespace deltas

using namespace deltas;

std::size_t delta_encode_workspace_bytes(std::size_t raw_bytes,
                                         const DeltaOptions& options) noexcept {
  if (!check_options(options, raw_bytes).ok()) return 0;
  return kStateBytes +
         (make_header(raw_bytes, options).num_blocks() / kRoundBlocks + 1) * sizeof(std::uint64_t);
}

Status delta_encode(Source base, Source next, Target out, Target workspace, DeviceResult* result,
                    const DeltaOptions& options, Stream stream) noexcept {
  if (Status s = check_options(options, next.num_bytes); !s.ok()) return s;
  if (base.num_bytes != next.num_bytes)
    return usage("base and next differ in size", base.num_bytes, next.num_bytes);
  const std::size_t needed = delta_encode_workspace_bytes(next.num_bytes, options);
  if (Status s = check_memory(workspace, needed, result); !s.ok()) return s;
  for (const void* p : {base.data, next.data, const_cast<const void*>(out.data)})
    if (!is_aligned(p, 16)) return usage("base, next and delta must be 16-byte aligned");
  EncodeWork work{};
  work.base = static_cast<const std::uint8_t*>(base.data);
  work.next = static_cast<const std::uint8_t*>(next.data);
  work.delta = static_cast<std::uint8_t*>(out.data);
  work.capacity = out.num_bytes;
  work.header = make_header(next.num_bytes, options);
  work.rule = delta::class_rule(options.dtype);
  work.state = static_cast<CallState*>(workspace.data);
  work.offsets = reinterpret_cast<volatile std::uint64_t*>(
      static_cast<std::uint8_t*>(workspace.data) + kStateBytes);
  work.result = result;
  if (out.num_bytes < work.header.payload_start())
    return {Code::kDstTooSmall, "no room for the delta", kNowhere,
            kNowhere,           out.num_bytes,           work.header.payload_start()};
  const bool large_blocks = work.header.log2_block > 13;
  cudaError_t error = large_blocks ? choose_room<true>(work.header, work.room_bytes)
                                   : choose_room<false>(work.header, work.room_bytes);
  if (error == cudaSuccess && work.room_bytes == 0)
    return usage("blocks are too large for this GPU", log2_block_of(options));
  if (error == cudaSuccess) error = cudaMemsetAsync(workspace.data, 0, needed, stream);
  if (error == cudaSuccess)
    error = large_blocks ? launch_encode<true>(work, stream) : launch_encode<false>(work, stream);
  return copy_result(error, result, options.host_result, stream);
}

}  // namespace snug::cuda
