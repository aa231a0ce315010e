// The encode kernel of BF16 tensors with the entropy codec.
#include <cuda_runtime.h>

#include <type_traits>

#include "cuda/encode_block.cuh"
#include "cuda/encode_palette.cuh"
#include "cuda/encode_verdict.cuh"
#include "cuda/kernels.cuh"
#include "cuda/prepared_launch.cuh"

namespace snug::cuda {
namespace {

constexpr int kMaxWarps = 16;  // of a multiprocessor

// What a block became: the coded exponents are in shared memory, or it took the general path.
struct CodedBlock {
  Encoded any;
  bool has_palette = false;
  DevicePalette palette;
  CodedStream coded;
};

// BF16 with the entropy codec: false where only the general path will do.
template <class Access>
__device__ __forceinline__ bool encode_block_bf16(const Work& work, const Access& src,
                                                  std::uint64_t pos, std::uint32_t n,
                                                  EncodeSmem& smem, CodedBlock& block) {
  Encoded& e = block.any;
  DevicePalette& palette = block.palette;
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
  palette = make_palette(smem.histogram, smem.list);
  if (!noisy_lows) return false;
  if (palette.cost >= palette.total * 5 * 256) {
    // Noise goes out raw from here; anything in between takes the general path.
    const std::uint32_t limit = palette.total * (8 * 256 - 8 * 256 / 32);
    if (palette.cost < limit ||
        make_byte_model(smem.histogram, *reinterpret_cast<ByteModel*>(smem.rest())) < limit)
      return false;
    set_raw(e, 2 * n);
    return true;
  }
  if (!fill_palette_lut<make_pair_symbol>(palette.freq, palette.value, palette.size, smem.lut))
    return false;
  const std::uint32_t commonest = __shfl_sync(kAll, palette.value, 0);
  block.coded = encode_palette_bf16(src, pos, n, 1u << work.log2_block, commonest, &smem);
  if (block.coded.num_words == kNoRoom) return false;
  e.entry.num_bytes = palette_payload_bytes(n, block.coded);
  if (e.entry.num_bytes >= align16(2 * n)) {
    set_raw(e, 2 * n);
    return true;
  }
  block.has_palette = true;
  e.entry.codec = static_cast<std::uint32_t>(Codec::kEntropy);
  e.entry.plane_modes = 3u << 2;
  return true;
}

// Codes the block at `pos` of src, finds its place and writes it. The entry's
// checksum is filled in; `written` is false where the payload did not fit.
template <class Access>
__device__ __forceinline__ DeviceEntry encode_and_write(const Work& work, const EncodeJob& job,
                                                        const Access& src, std::uint64_t pos,
                                                        std::uint8_t* shared, std::uint8_t* scratch,
                                                        bool& written) {
  CodedBlock block;
  DeviceEntry& entry = block.any.entry;
  auto& smem = *reinterpret_cast<EncodeSmem*>(shared);
  if (!encode_block_bf16(work, src, pos, job.n, smem, block))
    block.any =
        encode_block_any<2>(work, src, pos, job.n, reinterpret_cast<PlaneSmem*>(shared), scratch);
  if (!block.has_palette) fetch_raw_again<2>(src, pos, job.n, block.any);
  const std::uint64_t units = place_block(work.sizes + job.w.first_block, job.block,
                                          entry.num_bytes / 16, job.payload_start() / 16);
  entry.offset = units * 16;
  written = job.fits && entry.offset + entry.num_bytes <= job.w.item.frame_bytes;
  std::uint8_t* payload = static_cast<std::uint8_t*>(job.w.item.frame) + entry.offset;
  std::uint64_t sum = 0;
  if (!block.has_palette)
    sum = write_block_any<2>(work, src, pos, job.n, block.any, scratch, payload, written);
  else if (written)
    sum = write_low_plane(src, pos, job.n, payload) +
          write_palette_section(payload, job.n, 1u << work.log2_block, block.palette, block.coded,
                                &smem);
  entry.checksum = checksum_finish(warp_sum64(sum), entry.num_bytes);
  return entry;
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

template <class Access>
__global__ void __launch_bounds__(kWarp, kMaxWarps)
    encode_palette_kernel(const __grid_constant__ Work work, std::uint32_t smem_bytes,
                          StaggeredStart start) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  const unsigned lane = lane_id();
  if (work.items == nullptr) let_next_kernel_start();  // the verdict
  wait_for_preparation();
  start.wait();
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
    std::uint8_t* piece = in_one_piece(src, job.pos, 2 * std::uint64_t{job.n});
    DeviceEntry entry;
    bool written;
    if (std::is_same_v<Access, DirectAccess> || piece != nullptr)
      entry = encode_and_write(work, job, DirectAccess{piece}, 0, shared, scratch, written);
    else
      entry = encode_and_write(work, job, src, job.pos, shared, scratch, written);
    if (lane == 0) tally.add(work, job, entry, written);
    __syncwarp();
  }
}

std::uint32_t encode_smem_bytes(int log2_block) {
  const auto any = static_cast<std::uint32_t>(sizeof(PlaneSmem));
  return palette_smem_bytes(log2_block) > any ? palette_smem_bytes(log2_block) : any;
}

template <class Access>
cudaError_t launch_palette(const Work& work, std::uint64_t slots, StaggeredStart start,
                           cudaStream_t stream) {
  const std::uint32_t smem = encode_smem_bytes(static_cast<int>(work.log2_block));
  const std::uint32_t all = smem + static_cast<std::uint32_t>(sizeof(EncodeJob));
  const cudaError_t error =
      launch_prepared(encode_palette_kernel<Access>, slots, kWarp, all, stream, work, smem, start);
  return error == cudaSuccess ? launch_encode_verdict<Access>(work, slots, stream) : error;
}

}  // namespace

bool uses_palette_encode(DType dtype, Codec codec) {
  return dtype == DType::kBF16 && codec == Codec::kEntropy;
}

// What the shared memory of a multiprocessor holds, or few where each needs a large scratch.
int palette_warps_per_sm(int log2_block) {
  constexpr std::uint32_t kSharedBytes = 228 * 1024, kReserved = 1024 + sizeof(EncodeJob);
  const auto fit = static_cast<int>(kSharedBytes / (encode_smem_bytes(log2_block) + kReserved));
  const int most = log2_block > 14 ? 4 : kMaxWarps;
  return fit < most ? fit : most;
}

cudaError_t launch_encode_palette(const Work& work, bool direct, std::uint64_t num_blocks,
                                  int num_sms, cudaStream_t stream) {
  const std::uint64_t slots =
      encode_slots(work.dtype, work.codec, static_cast<int>(work.log2_block), num_blocks, num_sms);
  // At least two blocks a warp: less, and the wait at the start costs more than it gains.
  const StaggeredStart start{static_cast<std::uint32_t>(num_sms),
                             num_blocks >= 2 * slots ? 2000u : 0u};
  return direct ? launch_palette<DirectAccess>(work, slots, start, stream)
                : launch_palette<ScatteredAccess>(work, slots, start, stream);
}

}  // namespace snug::cuda
