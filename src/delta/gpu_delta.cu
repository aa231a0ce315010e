// Deltas on the GPU: kernels around one block each (delta_encode.cuh, delta_apply.cuh),
// headers, and the host side of snug/cuda_delta.h. Nothing here waits for the device.
#include <cuda_runtime.h>

#include <algorithm>

#include "delta/delta_apply.cuh"
#include "delta/delta_encode.cuh"
#include "snug/cuda_delta.h"

namespace snug::cuda {
namespace deltas {
namespace {

constexpr std::size_t kStateBytes = 256;
constexpr u32 kHashThreads = 512;
constexpr int kDefaultGpuLog2Block = 13, kMaxGpuLog2Block = 14;

__device__ u64 read_state(u64* value) { return atomicAdd(value, u64{0}); }

// ---- encode ----
// By the last thread block to finish: the header, whose hashes are known only now.
__device__ void finish_delta(const EncodeWork& work) {
  CallState& state = *work.state;
  const delta::Header& h = work.header;
  const u64 num_blocks = h.num_blocks(), payload_start = h.payload_start();
  const u64 raw_bytes = h.num_elems * width_of(h.dtype) + h.num_tail_bytes;
  const u64 delta_bytes =
      num_blocks == 0 ? payload_start : (work.offsets[num_blocks - 1] & ((u64{1} << 62) - 1)) * 4;
  const u64 base_hash = delta::hash_finish(read_state(&state.base_sum), raw_bytes);
  const u64 target_hash = delta::hash_finish(read_state(&state.target_sum), raw_bytes);
  const u64 num_changed = read_state(&state.num_changed);
  const u32 tail = h.num_tail_bytes == 0 ? 0 : work.next[raw_bytes - 1];  // elements have two bytes
  const u32 words[16] = {delta::kMagic,
                         delta::kVersion | static_cast<u32>(h.dtype) << 8 |
                             static_cast<u32>(h.log2_block) << 16 | u32{h.num_tail_bytes} << 24,
                         static_cast<u32>(h.num_elems),
                         static_cast<u32>(h.num_elems >> 32),
                         static_cast<u32>(delta_bytes),
                         static_cast<u32>(delta_bytes >> 32),
                         static_cast<u32>(base_hash),
                         static_cast<u32>(base_hash >> 32),
                         static_cast<u32>(target_hash),
                         static_cast<u32>(target_hash >> 32),
                         static_cast<u32>(num_changed),
                         static_cast<u32>(num_changed >> 32),
                         tail,
                         0,
                         0,
                         0};
  u64 sum = read_state(&state.head_sum);
  for (u32 i = 0; i < 16; ++i) sum += checksum_term(words[i], i);
  u32* to = reinterpret_cast<u32*>(work.delta);
  for (u32 i = 0; i < 16; ++i) to[i] = i == 14 ? checksum_finish(sum, payload_start) : words[i];
  write_result(work.result, read_state(&state.first_error), delta_bytes);
}

template <u32 kWidth, u32 kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) encode_kernel(const EncodeWork work) {
  extern __shared__ __align__(16) u8 memory[];
  auto& shared = *reinterpret_cast<EncodeShared<kThreads>*>(memory);
  const auto num_blocks = static_cast<u32>(work.header.num_blocks());
  if (threadIdx.x == 0) {
    shared.block = atomicAdd(&work.state->ticket, 1u);
    shared.base_sum = shared.target_sum = 0;
    shared.key_sum = 0;
  }
  __syncthreads();
  if (num_blocks > 0) {
    BlockEncoder<kWidth, kThreads>(work, shared).run(shared.block);
  } else if (threadIdx.x == 0 && work.header.num_tail_bytes > 0) {
    atomicAdd(&work.state->base_sum, delta::hash_term(work.base[0], 0, 0));
    atomicAdd(&work.state->target_sum, delta::hash_term(work.next[0], 0, 0));
  }
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&work.state->done, 1u) + 1 == gridDim.x) finish_delta(work);
}

// ---- apply ----
__device__ u64 word64(const u8* p) { return *reinterpret_cast<const u64*>(p); }

__device__ delta::Header load_header(const u8* p) {
  delta::Header h;
  h.dtype = static_cast<DType>(p[5]);
  h.log2_block = p[6];
  h.num_tail_bytes = p[7];
  h.num_elems = word64(p + 8);
  h.delta_bytes = word64(p + 16);
  h.base_hash = word64(p + 24);
  h.target_hash = word64(p + 32);
  h.num_changed = word64(p + 40);
  for (u32 i = 0; i < 8; ++i) h.tail[i] = p[48 + i];
  h.checksum = *reinterpret_cast<const u32*>(p + 56);
  h.kind = static_cast<delta::Kind>(p[60]);
  return h;
}

// What read_header() of delta_format.cpp checks, and what this call adds.
__device__ u64 check_header(const ApplyWork& work) {
  const auto refuse = [](Code code, Reason reason) { return error_key(code, reason, kNowhere); };
  if (work.delta_room < delta::kHeaderBytes) return refuse(Code::kCorrupt, kReasonShortFrame);
  const u8* p = work.delta;
  if (*reinterpret_cast<const u32*>(p) != delta::kMagic)
    return refuse(Code::kBadMagic, kReasonMagic);
  if (p[4] != delta::kVersion) return refuse(Code::kUnsupportedVersion, kReasonVersion);
  const delta::Header h = load_header(p);
  if (h.dtype != work.dtype) return refuse(Code::kUsage, kReasonDType);
  const u32 width = width_of(h.dtype);
  bool bad = h.log2_block < delta::kMinLog2Block || h.log2_block > delta::kMaxLog2Block ||
             h.num_tail_bytes >= width || p[60] > 1 || (p[61] | p[62] | p[63]) != 0;
  for (u32 i = 0; i < 8; ++i) bad |= i >= h.num_tail_bytes && h.tail[i] != 0;
  if (bad || h.num_elems > delta::kMaxRawBytes / width || h.num_changed > h.num_elems)
    return refuse(Code::kCorrupt, kReasonHeader);
  if (h.delta_bytes < h.payload_start() || h.delta_bytes % 4 != 0)
    return refuse(Code::kCorrupt, kReasonHeader);
  if (h.delta_bytes > work.delta_room) return refuse(Code::kCorrupt, kReasonCutShort);
  if (h.kind == delta::Kind::kFrame) return refuse(Code::kUsage, kReasonNeedsFrame);
  if (h.log2_block > static_cast<int>(work.log2_block)) return refuse(Code::kUsage, kReasonHeader);
  if (h.num_elems * width + h.num_tail_bytes != work.tensor_bytes)
    return refuse(Code::kWrongBase, kReasonWrongBase);
  return 0;
}

// One thread block: header, index and their checksum. Leaves an error or none.
__global__ void __launch_bounds__(kHashThreads) check_index_kernel(const ApplyWork work) {
  __shared__ u64 error, sum;
  __shared__ delta::Header header;
  if (threadIdx.x == 0) {
    sum = 0;
    error = check_header(work);
    if (error == 0) header = load_header(work.delta);
  }
  __syncthreads();
  const bool readable = error == 0;
  __syncthreads();  // nobody adds an error before all have seen this
  if (readable) {
    const u64 num_words = header.payload_start() / 4, num_blocks = header.num_blocks();
    const u32* words = reinterpret_cast<const u32*>(work.delta);
    u64 own = 0;
    for (u64 i = threadIdx.x; i < num_words; i += kHashThreads)
      if (i != 14) own += checksum_term(words[i], static_cast<u32>(i));
    bool bad = false;
    for (u64 b = threadIdx.x; b < num_blocks; b += kHashThreads) {
      const u64 begin = b == 0 ? num_words : words[delta::kHeaderBytes / 4 + b - 1];
      const u64 end = words[delta::kHeaderBytes / 4 + b];
      const u64 most =
          delta::raw_payload_bytes(header.elems_in_block(b), width_of(header.dtype)) / 4;
      bad |= begin < num_words || end < begin || end > begin + most ||
             end * 4 > header.delta_bytes || (b + 1 == num_blocks && end * 4 != header.delta_bytes);
    }
    bad |= num_blocks == 0 && header.delta_bytes != num_words * 4;
    if (bad) atomicMax(&error, error_key(Code::kCorrupt, kReasonIndex, kNowhere));
    own = warp_sum(own);
    if (lane() == 0) atomicAdd(&sum, own);
    __syncthreads();
    // A damaged index is a damaged header first, as on the CPU.
    if (threadIdx.x == 0 && checksum_finish(sum, num_words * 4) != header.checksum)
      error = error_key(Code::kCorrupt, kReasonHeadChecksum, kNowhere);
  }
  if (threadIdx.x == 0) {
    work.state->first_error = error;
    write_result(work.result, error, work.tensor_bytes);
  }
}

// By the last thread block of the first pass. All blocks were hashed whatever happened to
// one of them: an error in a block of another base is an error of the base.
__device__ void finish_check(const ApplyWork& work, const delta::Header& h) {
  CallState& state = *work.state;
  u64 error = read_state(&state.first_error);
  if (delta::hash_finish(read_state(&state.base_sum), work.tensor_bytes) != h.base_hash)
    error = error_key(Code::kWrongBase, kReasonWrongBase, kNowhere);
  else if (error == 0 &&
           delta::hash_finish(read_state(&state.target_sum), work.tensor_bytes) != h.target_hash)
    error = error_key(Code::kCorrupt, kReasonTargetHash, kNowhere);
  write_result(work.result, error, work.tensor_bytes);
}

__device__ void apply_tail_alone(const ApplyWork& work, const delta::Header& h, bool write) {
  if (blockIdx.x != 0 || threadIdx.x != 0 || h.num_tail_bytes == 0) return;
  if (write) {
    work.tensor[0] = h.tail[0];
    return;
  }
  atomicAdd(&work.state->base_sum, delta::hash_term(work.tensor[0], 0, 0));
  atomicAdd(&work.state->target_sum, delta::hash_term(h.tail[0], 0, 0));
}

template <u32 kWidth, u32 kThreads, bool kWrite>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) apply_kernel(const ApplyWork work) {
  extern __shared__ __align__(16) u8 memory[];
  auto& shared = *reinterpret_cast<ApplyShared<kThreads>*>(memory);
  if (work.result->code != 0) return;  // of the kernel before this one
  if (threadIdx.x == 0) {
    shared.header = load_header(work.delta);
    shared.base_sum = shared.target_sum = 0;
  }
  __syncthreads();
  const auto num_blocks = static_cast<u32>(shared.header.num_blocks());
  if (num_blocks == 0) apply_tail_alone(work, shared.header, kWrite);
  for (u32 block = blockIdx.x; block < num_blocks; block += gridDim.x) {
    const bool good =
        BlockApplier<kWidth, kThreads>(work, shared.header, shared).template run<kWrite>(block);
    if (!good && threadIdx.x == 0)
      atomicMax(&work.state->first_error, error_key(Code::kCorrupt, kReasonPayload, block));
    __syncthreads();
  }
  if (kWrite || threadIdx.x != 0) return;
  atomicAdd(&work.state->base_sum, shared.base_sum);
  atomicAdd(&work.state->target_sum, shared.target_sum);
  __threadfence();
  if (atomicAdd(&work.state->done, 1u) + 1 == gridDim.x) finish_check(work, shared.header);
}

// ---- hash of a tensor ----
__global__ void __launch_bounds__(kHashThreads)
    hash_kernel(Source tensor, CallState* state, std::uint64_t* hash) {
  const u8* bytes = static_cast<const u8*>(tensor.data);
  const u64 num_pairs = (tensor.num_bytes + 7) / 8;
  u64 sum = 0;
  for (u64 i = u64{blockIdx.x} * kHashThreads + threadIdx.x; i < num_pairs;
       i += u64{gridDim.x} * kHashThreads) {
    uint2 pair = {0, 0};
    if (8 * i + 8 <= tensor.num_bytes) {
      pair = reinterpret_cast<const uint2*>(bytes)[i];
    } else {
      for (u64 k = 8 * i; k < tensor.num_bytes; ++k)
        (k % 8 < 4 ? pair.x : pair.y) |= u32{bytes[k]} << 8 * (k % 4);
    }
    sum += delta::hash_term(pair.x, pair.y, i);
  }
  sum = warp_sum(sum);
  if (lane() == 0) atomicAdd(&state->base_sum, sum);
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&state->done, 1u) + 1 == gridDim.x)
    *hash = delta::hash_finish(read_state(&state->base_sum), tensor.num_bytes);
}

// ---- host ----
Status usage(const char* what, std::uint64_t found = kNowhere, std::uint64_t expected = kNowhere) {
  return {Code::kUsage, what, kNowhere, kNowhere, found, expected};
}

Status from_cuda(cudaError_t error) {
  if (error == cudaSuccess) return {};
  return {Code::kNoDevice, cudaGetErrorString(error), kNowhere, kNowhere,
          static_cast<std::uint64_t>(error)};
}

bool is_aligned(const void* p, std::uintptr_t to) {
  return reinterpret_cast<std::uintptr_t>(p) % to == 0;
}

int log2_block_of(const DeltaOptions& options) {
  return options.log2_block == 0 ? kDefaultGpuLog2Block : options.log2_block;
}

Status check_options(const DeltaOptions& options, std::size_t raw_bytes) {
  if (elem_bytes(options.dtype) == 0)
    return usage("not a dtype", static_cast<std::uint64_t>(options.dtype));
  if (elem_bytes(options.dtype) > 2)
    return usage("deltas on the GPU are for elements of one or two bytes",
                 elem_bytes(options.dtype), 2);
  const int log2_block = log2_block_of(options);
  if (log2_block < delta::kMinLog2Block || log2_block > kMaxGpuLog2Block)
    return usage("log2_block must be 0 or 12 to 14", static_cast<std::uint64_t>(log2_block));
  if (raw_bytes > delta::kMaxRawBytes)
    return usage("tensor too large for a delta", raw_bytes, delta::kMaxRawBytes);
  return {};
}

Status check_memory(Target workspace, std::size_t needed, const DeviceResult* result) {
  if (workspace.num_bytes < needed)
    return usage("workspace too small", workspace.num_bytes, needed);
  if (!is_aligned(workspace.data, 256)) return usage("workspace is not 256-byte aligned");
  if (result == nullptr) return usage("no place for the result");
  return {};
}

delta::Header make_header(std::size_t raw_bytes, const DeltaOptions& options) {
  delta::Header header;
  header.dtype = options.dtype;
  header.log2_block = log2_block_of(options);
  header.num_elems = raw_bytes / elem_bytes(options.dtype);
  header.num_tail_bytes = static_cast<std::uint8_t>(raw_bytes % elem_bytes(options.dtype));
  return header;
}

template <class Kernel, class Work>
cudaError_t launch(Kernel kernel, const Work& work, u32 grid, u32 threads, std::size_t shared_bytes,
                   cudaStream_t stream) {
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(shared_bytes));
  if (error != cudaSuccess) return error;
  kernel<<<grid, threads, shared_bytes, stream>>>(work);
  return cudaGetLastError();
}

template <u32 kWidth, u32 kThreads>
cudaError_t launch_encode(const EncodeWork& work, cudaStream_t stream) {
  const auto grid = static_cast<u32>(std::max<std::uint64_t>(1, work.header.num_blocks()));
  return launch(encode_kernel<kWidth, kThreads>, work, grid, kThreads,
                sizeof(EncodeShared<kThreads>), stream);
}

template <u32 kWidth, u32 kThreads>
cudaError_t launch_apply(const ApplyWork& work, int num_sms, cudaStream_t stream) {
  const std::uint64_t num_blocks = work.tensor_bytes / (kWidth * kThreads * kPerThread) + 1;
  const auto grid = static_cast<u32>(
      std::min<std::uint64_t>(num_blocks, static_cast<std::uint64_t>(num_sms) * (1024 / kThreads)));
  constexpr std::size_t kShared = sizeof(ApplyShared<kThreads>);
  cudaError_t error =
      launch(apply_kernel<kWidth, kThreads, false>, work, grid, kThreads, kShared, stream);
  if (error == cudaSuccess)
    error = launch(apply_kernel<kWidth, kThreads, true>, work, grid, kThreads, kShared, stream);
  return error;
}

// Calls body with the element width and the threads of a block as constants.
template <class Body>
cudaError_t with_shape(DType dtype, int log2_block, Body body) {
  const auto of_width = [&](auto width) {
    switch (log2_block) {
      case 12: return body(width, std::integral_constant<u32, 128>());
      case 13: return body(width, std::integral_constant<u32, 256>());
      default: return body(width, std::integral_constant<u32, 512>());
    }
  };
  return elem_bytes(dtype) == 1 ? of_width(std::integral_constant<u32, 1>())
                                : of_width(std::integral_constant<u32, 2>());
}

Status copy_result(cudaError_t error, const DeviceResult* result, DeviceResult* host_result,
                   Stream stream) {
  if (error == cudaSuccess && host_result != nullptr)
    error = cudaMemcpyAsync(host_result, result, sizeof *result, cudaMemcpyDeviceToHost, stream);
  return from_cuda(error);
}

}  // namespace
}  // namespace deltas

using namespace deltas;

std::size_t delta_encode_workspace_bytes(std::size_t raw_bytes,
                                         const DeltaOptions& options) noexcept {
  if (!check_options(options, raw_bytes).ok()) return 0;
  return kStateBytes + (make_header(raw_bytes, options).num_blocks() + 1) * sizeof(u64);
}

std::size_t delta_apply_workspace_bytes(std::size_t, const DeltaOptions&) noexcept {
  return kStateBytes;
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
  work.base = static_cast<const u8*>(base.data);
  work.next = static_cast<const u8*>(next.data);
  work.delta = static_cast<u8*>(out.data);
  work.capacity = out.num_bytes;
  work.header = make_header(next.num_bytes, options);
  work.rule = delta::class_rule(options.dtype);
  work.state = static_cast<CallState*>(workspace.data);
  work.offsets = reinterpret_cast<volatile u64*>(static_cast<u8*>(workspace.data) + kStateBytes);
  work.result = result;
  if (out.num_bytes < work.header.payload_start())
    return {Code::kDstTooSmall, "no room for the delta", kNowhere,
            kNowhere,           out.num_bytes,           work.header.payload_start()};
  cudaError_t error = cudaMemsetAsync(workspace.data, 0, needed, stream);
  if (error == cudaSuccess)
    error = with_shape(options.dtype, work.header.log2_block, [&](auto width, auto threads) {
      return launch_encode<width(), threads()>(work, stream);
    });
  return copy_result(error, result, options.host_result, stream);
}

Status delta_apply(Source update, Target tensor, Target workspace, DeviceResult* result,
                   const DeltaOptions& options, Stream stream) noexcept {
  if (Status s = check_options(options, tensor.num_bytes); !s.ok()) return s;
  if (Status s = check_memory(workspace, kStateBytes, result); !s.ok()) return s;
  if (!is_aligned(update.data, 16) || !is_aligned(tensor.data, 16))
    return usage("delta and tensor must be 16-byte aligned");
  int device = 0, num_sms = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return from_cuda(error);
  ApplyWork work{};
  work.delta = static_cast<const u8*>(update.data);
  work.delta_room = update.num_bytes;
  work.tensor = static_cast<u8*>(tensor.data);
  work.tensor_bytes = tensor.num_bytes;
  work.dtype = options.dtype;
  work.log2_block = static_cast<u32>(log2_block_of(options));
  work.rule = delta::class_rule(options.dtype);
  work.state = static_cast<CallState*>(workspace.data);
  work.result = result;
  error = cudaMemsetAsync(workspace.data, 0, kStateBytes, stream);
  if (error == cudaSuccess) {
    check_index_kernel<<<1, kHashThreads, 0, stream>>>(work);
    error = cudaGetLastError();
  }
  if (error == cudaSuccess)
    error = with_shape(options.dtype, log2_block_of(options), [&](auto width, auto threads) {
      return launch_apply<width(), threads()>(work, num_sms, stream);
    });
  return copy_result(error, result, options.host_result, stream);
}

Status tensor_hash(Source tensor, std::uint64_t* hash, Target workspace, Stream stream) noexcept {
  if (workspace.num_bytes < kStateBytes)
    return usage("workspace too small", workspace.num_bytes, kStateBytes);
  if (!is_aligned(workspace.data, 256)) return usage("workspace is not 256-byte aligned");
  if (!is_aligned(tensor.data, 8)) return usage("tensor is not 8-byte aligned");
  cudaError_t error = cudaMemsetAsync(workspace.data, 0, kStateBytes, stream);
  if (error != cudaSuccess) return from_cuda(error);
  const std::uint64_t num_blocks = tensor.num_bytes / (8 * kHashThreads * 8) + 1;
  const auto grid = static_cast<u32>(std::min<std::uint64_t>(num_blocks, 1024));
  hash_kernel<<<grid, kHashThreads, 0, stream>>>(tensor, static_cast<CallState*>(workspace.data),
                                                 hash);
  return from_cuda(cudaGetLastError());
}

}  // namespace snug::cuda
