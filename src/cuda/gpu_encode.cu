// The encode kernel that gives each block a warp: the entropy codec, and blocks
// too large for the other one.
#include <cuda_runtime.h>

#include <type_traits>

#include "cuda/encode_any.cuh"
#include "cuda/encode_frame.cuh"
#include "cuda/encode_palette.cuh"
#include "cuda/encode_verdict.cuh"
#include "cuda/kernels.cuh"
#include "cuda/prepared_launch.cuh"

namespace snug::cuda {
namespace {

// Warps of a multiprocessor: more of them slow wide elements down, whose scratch
// memory then no longer stays in the cache.
constexpr int max_warps_per_sm(unsigned width, bool fast) { return fast || width > 2 ? 16 : 24; }

// Where the payload of a block comes from, once its size is known.
enum class Origin { kTensor, kShared, kScratch, kRegister };

struct Encoded {
  Origin origin = Origin::kTensor;
  DeviceEntry entry{};
  std::uint32_t raw_bytes;  // of planes that do not come from scratch
  DevicePalette palette;
  CodedStream coded;
};

template <class Access>
__device__ __noinline__ std::uint64_t copy_raw(Access src, std::uint64_t pos, std::uint64_t raw,
                                               std::uint8_t* payload, bool write) {
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
    const uint4 v = load_upto16(src, pos + 16 * std::uint64_t{i},
                                static_cast<std::int64_t>(raw - 16 * std::uint64_t{i}));
    if (write) __stcs(out + i, v);
    sum += checksum_term(v, i);
  }
  return sum;
}

// Coded planes, behind `first` bytes of raw ones.
__device__ __noinline__ std::uint64_t copy_scratch(const std::uint8_t* scratch, std::uint32_t first,
                                                   std::uint32_t num_bytes, std::uint8_t* payload) {
  std::uint64_t sum = 0;
  // All loads of a batch are under way before the first store.
  constexpr std::uint32_t kBatch = 4;
  const std::uint32_t end = num_bytes / 16;
#pragma unroll 1
  for (std::uint32_t base = first / 16 + lane_id(); base < end; base += kBatch * kWarp) {
    uint4 v[kBatch];
#pragma unroll
    for (std::uint32_t u = 0; u < kBatch; ++u)
      v[u] = reinterpret_cast<const uint4*>(scratch)[min(base + u * kWarp, end - 1) - first / 16];
#pragma unroll
    for (std::uint32_t u = 0; u < kBatch; ++u) {
      const std::uint32_t i = base + u * kWarp;
      if (i >= end) break;
      __stcs(reinterpret_cast<uint4*>(payload) + i, v[u]);
      sum += checksum_term(v[u], i);
    }
  }
  return sum;
}

__device__ void set_raw(Encoded& e, std::uint32_t raw) {
  e.origin = Origin::kTensor;
  e.entry.codec = static_cast<std::uint32_t>(Codec::kRaw);
  e.entry.plane_modes = 0;
  e.entry.num_bytes = static_cast<std::uint32_t>(align16(raw));
}

template <int kWidth, class Access>
__device__ __noinline__ Encoded encode_block_any(const Work& work, Access src, std::uint64_t pos,
                                                 std::uint32_t n, PlaneSmem* smem,
                                                 std::uint8_t* scratch) {
  Encoded e{};
  set_raw(e, n * kWidth);
  if (work.codec == Codec::kRaw) return e;
  if (is_constant_block(src, pos, n * kWidth, kWidth)) {
    e.origin = Origin::kRegister;
    e.entry.codec = static_cast<std::uint32_t>(Codec::kConstant);
    e.entry.num_bytes = 16;
    return e;
  }
  const auto log2_block = static_cast<int>(work.log2_block);
  std::uint8_t* words_end =
      scratch + sections_room(kWidth, log2_block) + words_scratch(kWidth, log2_block);
  PlaneOut out{scratch, words_end, words_end + escapes_scratch(kWidth, log2_block),
               0,       0,         static_cast<std::uint32_t>(align16(std::uint64_t{n} * kWidth))};
  const BlockValues<Access, kWidth> values{src, pos, n, is_float(work.dtype)};
  std::uint32_t modes = 0;
  bool coded = false;
  if (work.codec == Codec::kEntropy)
    coded = encode_entropy_planes(values, work.dtype, smem, out, modes);
  if constexpr (kWidth == 2 || kWidth == 4)
    if (work.codec == Codec::kFixed) coded = encode_fixed_any(values, work.dtype, smem, out, modes);
  __syncwarp();
  if (!coded) return e;
  e.origin = Origin::kScratch;
  e.entry.codec = static_cast<std::uint32_t>(work.codec);
  e.entry.plane_modes = modes;
  e.entry.num_bytes = out.used;
  e.raw_bytes = out.raw_bytes;
  return e;
}

// BF16 with the entropy codec: false where only the general path will do.
template <class Access>
__device__ __forceinline__ bool encode_block_bf16(const Work& work, const Access& src,
                                                  std::uint64_t pos, std::uint32_t n,
                                                  EncodeSmem& smem, Encoded& e) {
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
  const std::uint32_t nibbles = (&smem.nibbles[0][0])[lane_id()];
  const bool noisy_lows = is_surely_noise(nibbles) || !worth_coding(nibbles);
  e.palette = make_palette(smem.histogram, smem.list);
  if (!noisy_lows) return false;
  if (e.palette.cost >= e.palette.total * 5 * 256) {
    // Noise goes out raw from here; anything in between takes the general path.
    const std::uint32_t limit = e.palette.total * (8 * 256 - 8 * 256 / 32);
    if (e.palette.cost < limit ||
        make_byte_model(smem.histogram, *reinterpret_cast<ByteModel*>(smem.rest())) < limit)
      return false;
    set_raw(e, 2 * n);
    return true;
  }
  if (!fill_palette_lut<make_pair_symbol>(e.palette.freq, e.palette.value, e.palette.size,
                                          smem.lut))
    return false;
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

// Codes the block at `pos` of src, finds its place and writes it. The entry's
// checksum is filled in; `written` is false where the payload did not fit.
template <int kWidth, bool kFast, class Access>
__device__ __forceinline__ DeviceEntry encode_and_write(const Work& work, const EncodeJob& job,
                                                        const Access& src, std::uint64_t pos,
                                                        std::uint8_t* shared, std::uint8_t* scratch,
                                                        bool& written) {
  Encoded e;
  auto& smem = *reinterpret_cast<EncodeSmem*>(shared);
  bool done = false;
  if constexpr (kFast) done = encode_block_bf16(work, src, pos, job.n, smem, e);
  if (!done)
    e = encode_block_any<kWidth>(work, src, pos, job.n, reinterpret_cast<PlaneSmem*>(shared),
                                 scratch);
  // Raw planes are looked at again when the place is known; much of the block has left
  // the cache by now and can come back meanwhile.
  constexpr std::uint32_t kLinesBack = 128;
  if (e.origin == Origin::kTensor || (!done && e.raw_bytes != 0))
    for (std::uint32_t line = lane_id(); line < min(job.n * kWidth / 128, kLinesBack);
         line += kWarp)
      src.prefetch(pos + 128 * std::uint64_t{line});
  const std::uint64_t units = place_block(work.sizes + job.w.first_block, job.block,
                                          e.entry.num_bytes / 16, job.payload_start() / 16);
  e.entry.offset = units * 16;
  written = job.fits && e.entry.offset + e.entry.num_bytes <= job.w.item.frame_bytes;
  std::uint8_t* payload = static_cast<std::uint8_t*>(job.w.item.frame) + e.entry.offset;
  std::uint64_t sum = 0;
  if (e.origin == Origin::kShared) {
    if (written)
      sum = write_low_plane(src, pos, job.n, payload) +
            write_palette_section(payload, job.n, 1u << work.log2_block, e.palette, e.coded, &smem);
  } else if (e.origin == Origin::kTensor) {
    sum = copy_raw(src, pos, std::uint64_t{job.n} * kWidth, payload, written);
  } else if (e.origin == Origin::kScratch) {
    const BlockValues<Access, kWidth> values{src, pos, job.n, is_float(work.dtype)};
    if (written && e.raw_bytes != 0) sum = write_raw_planes(values, e.entry.plane_modes, payload);
    if (written) sum += copy_scratch(scratch, e.raw_bytes, e.entry.num_bytes, payload);
  } else if (lane_id() == 0) {
    const std::uint64_t v = load_elem(src, pos, kWidth);
    const uint4 value = {static_cast<std::uint32_t>(v), static_cast<std::uint32_t>(v >> 32), 0, 0};
    if (written) *reinterpret_cast<uint4*>(payload) = value;
    sum = checksum_term(value, 0);
  }
  e.entry.checksum = checksum_finish(warp_sum64(sum), e.entry.num_bytes);
  return e.entry;
}

// Warps that start together go on together: all load, then all code, then all write.
// Where they have many blocks, the waves of thread blocks start one after the other.
struct StaggeredStart {
  std::uint32_t wave_ctas, nanoseconds;

  __device__ __forceinline__ void wait() const {
    if (nanoseconds == 0) return;
    const auto now = [] {
      std::uint64_t t;
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
      return t;
    };
    const std::uint64_t start = now(), delay = std::uint64_t{blockIdx.x / wave_ctas} * nanoseconds;
    while (now() - start < delay) __nanosleep(200);
    __syncwarp();
  }
};

template <class Access, int kWidth, bool kFast>
__global__ void __launch_bounds__(kWarp, max_warps_per_sm(kWidth, kFast))
    encode_kernel(const __grid_constant__ Work work, std::uint32_t smem_bytes,
                  StaggeredStart start) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  const unsigned lane = lane_id();
  if (work.items == nullptr) let_next_kernel_start();  // the verdict
  wait_for_preparation();
  if constexpr (kFast) start.wait();
  const std::uint64_t total = num_tickets(work);
  std::uint8_t* scratch = work.scratch + blockIdx.x * work.scratch_bytes;
  EncodeJob& job = *reinterpret_cast<EncodeJob*>(shared + smem_bytes);
  Tally tally;
  for (;;) {
    const std::uint64_t ticket = warp_ticket(work.ticket);
    const bool ends = ticket >= total || upstream_failed(work);
    if (ends || tally.is_of_another_item(work, ticket)) {
      if (lane == 0 && tally.done != 0)
        tally.flush(work, job, access_item<Access>(work, job.w.item));
      __syncwarp();
    }
    if (ends) return;
    if (lane == 0) job = make_encode_job(work, ticket);
    __syncwarp();
    const Access src = access_item<Access>(work, job.w.item);
    if (job.num_blocks == 0) {
      if (lane == 0) finish_frame(work, job, src);
      __syncwarp();
      continue;
    }
    std::uint8_t* piece = in_one_piece(src, job.pos, std::uint64_t{job.n} * kWidth);
    DeviceEntry entry;
    bool written;
    if (std::is_same_v<Access, DirectAccess> || piece != nullptr)
      entry = encode_and_write<kWidth, kFast>(work, job, DirectAccess{piece}, 0, shared, scratch,
                                              written);
    else
      entry = encode_and_write<kWidth, kFast>(work, job, src, job.pos, shared, scratch, written);
    if (lane == 0) tally.add(work, job, entry, written);
    __syncwarp();
  }
}

bool is_fast(DType dtype, Codec codec) { return dtype == DType::kBF16 && codec == Codec::kEntropy; }

std::uint32_t encode_smem_bytes(DType dtype, Codec codec, int log2_block) {
  const auto any = static_cast<std::uint32_t>(sizeof(PlaneSmem));
  return is_fast(dtype, codec) && palette_smem_bytes(log2_block) > any
             ? palette_smem_bytes(log2_block)
             : any;
}

// Warps of one multiprocessor: what its shared memory holds, or few where each
// needs a large scratch.
int warps_per_sm(DType dtype, Codec codec, int log2_block) {
  constexpr std::uint32_t kSharedBytes = 228 * 1024, kReserved = 1024 + sizeof(EncodeJob);
  const auto fit =
      static_cast<int>(kSharedBytes / (encode_smem_bytes(dtype, codec, log2_block) + kReserved));
  const int most = log2_block > 14 ? 4 : max_warps_per_sm(width_of(dtype), is_fast(dtype, codec));
  return fit < most ? fit : most;
}

template <class Access>
cudaError_t launch_warps(const Work& work, std::uint64_t slots, StaggeredStart start,
                         cudaStream_t stream) {
  const std::uint32_t smem =
      encode_smem_bytes(work.dtype, work.codec, static_cast<int>(work.log2_block));
  const auto kernel = is_fast(work.dtype, work.codec) ? encode_kernel<Access, 2, true>
                      : width_of(work.dtype) == 1     ? encode_kernel<Access, 1, false>
                      : width_of(work.dtype) == 2     ? encode_kernel<Access, 2, false>
                      : width_of(work.dtype) == 4     ? encode_kernel<Access, 4, false>
                                                      : encode_kernel<Access, 8, false>;
  const std::uint32_t all = smem + static_cast<std::uint32_t>(sizeof(EncodeJob));
  const cudaError_t error = launch_prepared(kernel, slots, kWarp, all, stream, work, smem, start);
  return error == cudaSuccess ? launch_encode_verdict<Access>(work, slots, stream) : error;
}

}  // namespace

std::uint64_t encode_slots(DType dtype, Codec codec, int log2_block, std::uint64_t num_blocks,
                           int num_sms) {
  const auto most = static_cast<std::uint64_t>(num_sms) *
                    static_cast<unsigned>(warps_per_sm(dtype, codec, log2_block));
  return num_blocks == 0 ? 1 : num_blocks < most ? num_blocks : most;
}

std::uint64_t encode_scratch_bytes(DType dtype, Codec codec, int log2_block) {
  if (codec == Codec::kRaw || uses_wide_encode(dtype, codec, log2_block)) return 0;
  return sections_room(width_of(dtype), log2_block) + words_scratch(width_of(dtype), log2_block) +
         escapes_scratch(width_of(dtype), log2_block);
}

cudaError_t launch_encode(const Work& work, bool direct, std::uint64_t num_blocks, int num_sms,
                          cudaStream_t stream) {
  num_blocks = num_blocks == 0 ? 1 : num_blocks;
  const auto log2_block = static_cast<int>(work.log2_block);
  if (uses_wide_encode(work.dtype, work.codec, log2_block))
    return launch_encode_wide(work, direct, num_blocks, num_sms, stream);
  const std::uint64_t slots = encode_slots(work.dtype, work.codec, log2_block, num_blocks, num_sms);
  // At least two blocks a warp: less, and the wait at the start costs more than it gains.
  const StaggeredStart start{static_cast<std::uint32_t>(num_sms),
                             num_blocks >= 2 * slots ? 2000u : 0u};
  return direct ? launch_warps<DirectAccess>(work, slots, start, stream)
                : launch_warps<ScatteredAccess>(work, slots, start, stream);
}

}  // namespace snug::cuda
