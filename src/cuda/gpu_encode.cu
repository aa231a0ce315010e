// The encode kernels: one warp a block for the entropy codec and everything
// unusual, one thread block a block for `fixed`.
#include <cuda_runtime.h>

#include "cuda/encode_any.cuh"
#include "cuda/encode_fixed.cuh"
#include "cuda/encode_palette.cuh"
#include "cuda/kernels.cuh"

namespace snug::cuda {
namespace {

constexpr int kMaxWarpsPerSm = 16;

// Where the payload of a block comes from, once its size is known.
enum class Origin { kTensor, kShared, kScratch, kRegister };

struct Encoded {
  Origin origin = Origin::kTensor;
  DeviceEntry entry{};
  DevicePalette palette;
  CodedBlock coded;
};

template <class Access>
__device__ __noinline__ std::uint64_t copy_raw(Access src, std::uint64_t pos, std::uint64_t raw, std::uint8_t* payload,
                                               bool write) {
  uint4* out = reinterpret_cast<uint4*>(payload);
  std::uint64_t sum = 0;
  constexpr int kUnroll = 8;
  const auto full = static_cast<std::uint32_t>(raw / 16);
  std::uint32_t i = lane_id();
  for (; i + (kUnroll - 1) * kWarp < full; i += kUnroll * kWarp) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) v[u] = src.load16(pos + 16 * std::uint64_t{i + u * kWarp});
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (write) __stcs(out + i + u * kWarp, v[u]);
      sum += checksum_term(v[u], i + u * kWarp);
    }
  }
  for (; 16 * std::uint64_t{i} < raw; i += kWarp) {
    const uint4 v = load_upto16(src, pos + 16 * std::uint64_t{i}, static_cast<std::int64_t>(raw - 16 * std::uint64_t{i}));
    if (write) __stcs(out + i, v);
    sum += checksum_term(v, i);
  }
  return sum;
}

__device__ __noinline__ std::uint64_t copy_scratch(const std::uint8_t* scratch, std::uint32_t num_bytes, std::uint8_t* payload,
                                             bool write) {
  std::uint64_t sum = 0;
  for (std::uint32_t i = lane_id(); i < num_bytes / 16; i += kWarp) {
    const uint4 v = reinterpret_cast<const uint4*>(scratch)[i];
    if (write) reinterpret_cast<uint4*>(payload)[i] = v;
    sum += checksum_term(v, i);
  }
  return sum;
}

__device__ void set_raw(Encoded& e, std::uint32_t raw) {
  e.origin = Origin::kTensor;
  e.entry.codec = static_cast<std::uint32_t>(Codec::kRaw);
  e.entry.plane_modes = 0;
  e.entry.num_bytes = static_cast<std::uint32_t>(align16(raw));
}

template <class Access>
__device__ __noinline__ Encoded encode_block_any(const Work& work, Access src, std::uint64_t pos, std::uint32_t n,
                                                 AnySmem* smem, std::uint8_t* scratch) {
  Encoded e{};
  const unsigned width = width_of(work.dtype);
  const Elements<Access> elements{src, pos, n, width, is_float(work.dtype)};
  set_raw(e, n * width);
  if (work.codec == Codec::kRaw) return e;
  if (is_constant_block(elements)) {
    e.origin = Origin::kRegister;
    e.entry.codec = static_cast<std::uint32_t>(Codec::kConstant);
    e.entry.num_bytes = 16;
    return e;
  }
  const auto log2_block = static_cast<int>(work.log2_block);
  AnyOut out{scratch, scratch + any_payload_room(width, log2_block) + any_words_room(log2_block), 0,
             static_cast<std::uint32_t>(align16(std::uint64_t{n} * width))};
  std::uint32_t modes = 0;
  const bool coded = work.codec == Codec::kEntropy ? encode_entropy_any(elements, work.dtype, *smem, out, modes)
                     : work.codec == Codec::kFixed && encode_fixed_any(elements, work.dtype, *smem, out, modes);
  __syncwarp();
  if (!coded) return e;
  e.origin = Origin::kScratch;
  e.entry.codec = static_cast<std::uint32_t>(work.codec);
  e.entry.plane_modes = modes;
  e.entry.num_bytes = out.used;
  return e;
}

// BF16 with the entropy codec: false where only the general path will do.
template <class Access>
__device__ __forceinline__ bool encode_block_bf16(const Work& work, const Access& src, std::uint64_t pos,
                                                  std::uint32_t n, EncodeSmem& smem, Encoded& e) {
#pragma unroll 1
  for (std::uint32_t line = lane_id(); line < n / 64; line += kWarp) src.prefetch(pos + 128 * std::uint64_t{line});
  if (sample_bf16(src, pos, n, &smem)) {
    if (n % 8 != 0) return false;  // the general path sees to it
    if (is_constant_bf16(src, pos, n)) {
      e.origin = Origin::kRegister;
      e.entry.codec = static_cast<std::uint32_t>(Codec::kConstant);
      e.entry.plane_modes = 0;
      e.entry.num_bytes = 16;
      return true;
    }
  }
  const bool noisy_lows = !worth_coding((&smem.nibbles[0][0])[lane_id()]);
  e.palette = make_palette(smem.histogram, smem.list);
  if (!noisy_lows) return false;
  if (e.palette.cost >= e.palette.total * 5 * 256) {
    // Noise goes out raw from here; anything in between takes the general path.
    const std::uint32_t limit = e.palette.total * (8 * 256 - 8 * 256 / 32);
    if (e.palette.cost < limit || make_byte_model(smem.histogram, *reinterpret_cast<ByteModel*>(smem.rest())) < limit)
      return false;
    set_raw(e, 2 * n);
    return true;
  }
  if (!fill_symbol_lut(e.palette.freq, e.palette.value, e.palette.size, &smem)) return false;
  const std::uint32_t commonest = __shfl_sync(kAll, e.palette.value, 0);
  e.coded = encode_palette_bf16(src, pos, n, 1u << work.log2_block, commonest, &smem);
  if (e.coded.num_words == kNoRoom) return false;
  e.entry.num_bytes = palette_payload_bytes(n, e.coded);
  if (e.entry.num_bytes >= align16(2 * n)) {
    set_raw(e, 2 * n);
    return true;
  }
  e.origin = Origin::kShared;
  e.entry.codec = static_cast<std::uint32_t>(Codec::kEntropy);
  e.entry.plane_modes = 3u << 2;
  return true;
}

template <class Access>
__global__ void __launch_bounds__(kWarp, kMaxWarpsPerSm) encode_kernel(const __grid_constant__ Work work) {
  extern __shared__ __align__(16) std::uint8_t shared[];
  const unsigned lane = lane_id();
  const unsigned width = width_of(work.dtype);
  const std::uint64_t total = num_tickets(work);
  std::uint8_t* scratch = work.scratch + blockIdx.x * work.scratch_bytes;
  const bool fast = work.dtype == DType::kBF16 && work.codec == Codec::kEntropy;
  for (std::uint64_t ticket; (ticket = warp_ticket(work.ticket)) < total;) {
    if (upstream_failed(work, ticket)) return;
    const EncodeJob job = make_encode_job(work, ticket);
    const Access src = access_item<Access>(work, job.w.item);
    if (job.num_blocks == 0) {
      if (lane == 0) finish_frame(work, job, src);
      continue;
    }
    Encoded e;
    auto& smem = *reinterpret_cast<EncodeSmem*>(shared);
    if (!fast || !encode_block_bf16(work, src, job.pos, job.n, smem, e))
      e = encode_block_any(work, src, job.pos, job.n, reinterpret_cast<AnySmem*>(shared), scratch);
    const std::uint64_t units =
        place_block(work.sizes + job.w.first_block, job.block, e.entry.num_bytes / 16, job.payload_start() / 16);
    e.entry.offset = units * 16;
    const bool written = job.fits && e.entry.offset + e.entry.num_bytes <= job.w.item.frame_bytes;
    std::uint8_t* payload = static_cast<std::uint8_t*>(job.w.item.frame) + e.entry.offset;
    std::uint64_t sum = 0;
    if (e.origin == Origin::kShared) {
      if (written)
        sum = write_low_plane(src, job.pos, job.n, payload) +
              write_palette_section(payload, job.n, 1u << work.log2_block, e.palette, e.coded, &smem);
    } else if (e.origin == Origin::kTensor) {
      sum = copy_raw(src, job.pos, std::uint64_t{job.n} * width, payload, written);
    } else if (e.origin == Origin::kScratch) {
      sum = copy_scratch(scratch, e.entry.num_bytes, payload, written);
    } else if (lane == 0) {
      const std::uint64_t v = load_elem(src, job.pos, width);
      const uint4 value = {static_cast<std::uint32_t>(v), static_cast<std::uint32_t>(v >> 32), 0, 0};
      if (written) *reinterpret_cast<uint4*>(payload) = value;
      sum = checksum_term(value, 0);
    }
    e.entry.checksum = checksum_finish(warp_sum64(sum), e.entry.num_bytes);
    if (lane == 0) finish_block(work, job, src, e.entry, written);
    __syncwarp();
  }
}

std::uint32_t encode_smem_bytes(DType dtype, Codec codec, int log2_block) {
  const bool fast = dtype == DType::kBF16 && codec == Codec::kEntropy;
  const auto any = static_cast<std::uint32_t>(sizeof(AnySmem));
  return fast && palette_smem_bytes(log2_block) > any ? palette_smem_bytes(log2_block) : any;
}


bool uses_fixed_kernel(DType dtype, Codec codec, int log2_block) {
  return dtype == DType::kBF16 && codec == Codec::kFixed && log2_block <= kMaxFixedLog2;
}

// Warps of one multiprocessor: what its shared memory holds, or few where each
// needs a large scratch.
int warps_per_sm(DType dtype, Codec codec, int log2_block) {
  constexpr std::uint32_t kSharedBytes = 228 * 1024, kReserved = 1024;
  const auto fit = static_cast<int>(kSharedBytes / (encode_smem_bytes(dtype, codec, log2_block) + kReserved));
  const int most = log2_block <= 14 ? kMaxWarpsPerSm : 4;
  return fit < most ? fit : most;
}

template <class Access>
cudaError_t launch_warps(const Work& work, std::uint64_t slots, cudaStream_t stream) {
  const std::uint32_t smem = encode_smem_bytes(work.dtype, work.codec, static_cast<int>(work.log2_block));
  const cudaError_t error = cudaFuncSetAttribute(encode_kernel<Access>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 static_cast<int>(smem));
  if (error != cudaSuccess) return error;
  encode_kernel<Access><<<static_cast<unsigned>(slots), kWarp, smem, stream>>>(work);
  return cudaGetLastError();
}

template <class Access, int kThreads>
cudaError_t launch_fixed(const Work& work, std::uint64_t num_blocks, int num_sms, cudaStream_t stream) {
  const auto most = static_cast<std::uint64_t>(num_sms) * (1024 / kThreads);
  encode_fixed_kernel<Access, kThreads>
      <<<static_cast<unsigned>(num_blocks < most ? num_blocks : most), kThreads, 0, stream>>>(work);
  return cudaGetLastError();
}

template <class Access>
cudaError_t launch_any(const Work& work, std::uint64_t num_blocks, int num_sms, cudaStream_t stream) {
  const auto log2_block = static_cast<int>(work.log2_block);
  if (uses_fixed_kernel(work.dtype, work.codec, log2_block)) {
    switch (log2_block) {
      case 12: return launch_fixed<Access, 64>(work, num_blocks, num_sms, stream);
      case 13: return launch_fixed<Access, 128>(work, num_blocks, num_sms, stream);
      case 14: return launch_fixed<Access, 256>(work, num_blocks, num_sms, stream);
      default: return launch_fixed<Access, 512>(work, num_blocks, num_sms, stream);
    }
  }
  return launch_warps<Access>(work, encode_slots(work.dtype, work.codec, log2_block, num_blocks, num_sms), stream);
}

}  // namespace

std::uint64_t encode_slots(DType dtype, Codec codec, int log2_block, std::uint64_t num_blocks, int num_sms) {
  const auto most = static_cast<std::uint64_t>(num_sms) * static_cast<unsigned>(warps_per_sm(dtype, codec, log2_block));
  return num_blocks == 0 ? 1 : num_blocks < most ? num_blocks : most;
}

std::uint64_t encode_scratch_bytes(DType dtype, Codec codec, int log2_block) {
  if (codec == Codec::kRaw || uses_fixed_kernel(dtype, codec, log2_block)) return 0;
  return any_payload_room(width_of(dtype), log2_block) + any_words_room(log2_block);
}

cudaError_t launch_encode(const Work& work, bool direct, std::uint64_t num_blocks, int num_sms, cudaStream_t stream) {
  num_blocks = num_blocks == 0 ? 1 : num_blocks;
  return direct ? launch_any<DirectAccess>(work, num_blocks, num_sms, stream)
                : launch_any<ScatteredAccess>(work, num_blocks, num_sms, stream);
}

}  // namespace snug::cuda
