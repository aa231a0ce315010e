// cuda/decode_straight.cuh - BF16 frames of `fixed` and raw blocks: every warp takes its
// part of each block straight from memory through registers to memory. Blocks of other
// kinds or sizes are restored too.
#pragma once
#include <type_traits>

#include "cuda/decode_any.cuh"
#include "cuda/decode_fixed.cuh"
#include "cuda/decode_frame.cuh"
#include "cuda/prepared_launch.cuh"

namespace snug::cuda {

inline constexpr unsigned kStraightWarps = 16;  // a thread block
inline constexpr unsigned kStraightThreads = kStraightWarps * kWarp;
inline constexpr std::uint32_t kRowValues = 8 * kWarp;  // of a warp's step, 8 of them a lane
inline constexpr unsigned kMaxBatch = 8;                // rows that are under way together

// The thread block as a team.
struct BlockTeam {
  static constexpr unsigned kSize = kStraightThreads;
  __device__ static unsigned idx() { return threadIdx.x; }
  __device__ static void sync() { __syncthreads(); }
  __device__ static bool all(bool v) { return __syncthreads_and(v) != 0; }
};

// What becomes of a block.
enum class BlockKind : std::uint32_t { kEnd, kInvalid, kFixedRows, kRawRows, kOther };

// A block to come, as far as a warp needs to know.
struct ComingBlock {
  std::uint64_t payload = 0;      // offset in the frame
  std::uint8_t* place = nullptr;  // of the warp's part
  BlockKind kind = BlockKind::kEnd;
  std::uint32_t n = 0;
  std::uint32_t num_bytes = 0;
  std::uint32_t checksum = 0;
};

// Loads that stay where they are written: the compiler would let some wait for others.
__device__ __forceinline__ uint4 load_now(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ uint2 load_now(const uint2* p) {
  uint2 v;
  asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
__device__ __forceinline__ std::uint32_t load_now(const std::uint32_t* p) {
  std::uint32_t v;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

// Where the warp's part of a block is, if every warp's part is in one piece at a multiple
// of 16; else null.
__device__ __forceinline__ std::uint8_t* find_part(const DirectAccess& dst, std::uint64_t pos,
                                                   std::uint32_t part, unsigned warp) {
  return dst.data + pos + warp * part;
}
inline __device__ __noinline__ std::uint8_t* find_part(const ScatteredAccess& dst,
                                                       std::uint64_t pos, std::uint32_t part,
                                                       unsigned warp) {
  const std::uint32_t all = part * kStraightWarps;
  std::uint8_t* found = nullptr;
  for (std::uint32_t at = 0; at < all;) {
    const ScatteredAccess::Piece piece = dst.find(pos + at);
    const std::uint32_t here =
        piece.left < all - at ? static_cast<std::uint32_t>(piece.left) : all - at;
    if (reinterpret_cast<std::uintptr_t>(piece.at) % 16 != 0 || here % part != 0) return nullptr;
    if (warp * part - at < here) found = piece.at + (warp * part - at);
    at += here;
  }
  return found;
}

// Reads header and index entries at the same time, as far as the frame's room goes.
template <class Access>
__device__ __forceinline__ ComingBlock open_block(const Work& work, std::uint64_t block) {
  const auto* frame = static_cast<const std::uint8_t*>(work.single.frame);
  const std::uint64_t room = work.single.frame_bytes;
  if (room < frame::kHeaderBytes) return {};
  const uint4* vecs = reinterpret_cast<const uint4*>(frame);
  const uint4* entry = vecs + frame::kHeaderBytes / 16 + block;
  const std::uint64_t entry_end = frame::kHeaderBytes + (block + 1) * frame::kEntryBytes;
  uint4 packed{}, next{};
  if (entry_end <= room) packed = __ldg(entry);
  if (entry_end + frame::kEntryBytes <= room) next = __ldg(entry + 1);
  const uint4 a = load_now(vecs), b = load_now(vecs + 1), c = load_now(vecs + 2),
              d = load_now(vecs + 3);
  const DeviceHeader h =
      parse_device_header(a, b, c, d, room, work.single.tensor_bytes, DType::kBF16);
  if (block >= h.num_blocks) return {};
  const DeviceEntry e = unpack_entry(packed);
  const std::uint32_t n = h.elems_in_block(block), part = n / kStraightWarps * 2;
  ComingBlock coming{e.offset, nullptr, BlockKind::kInvalid, n, e.num_bytes, e.checksum};
  const std::uint64_t end = block + 1 < h.num_blocks ? unpack_entry(next).offset : h.frame_bytes;
  if (!is_valid_entry(e, block, end, n, 2, h)) return coming;
  coming.kind = BlockKind::kOther;
  if (n != 1u << h.log2_block || e.plane_modes != 0) return coming;
  coming.place = find_part(access_item<Access>(work, work.single), (block << h.log2_block) * 2,
                           part, threadIdx.x / kWarp);
  if (coming.place == nullptr) return coming;
  if (e.codec == static_cast<unsigned>(Codec::kFixed) &&
      e.num_bytes >= n + n / 2 + codec::FixedHeader::kBytes)
    coming.kind = BlockKind::kFixedRows;
  if (e.codec == static_cast<unsigned>(Codec::kRaw) && e.num_bytes == 2 * n)
    coming.kind = BlockKind::kRawRows;
  return coming;
}

// Puts an escape into the warp's part, values [from, from + count) of the block, if it
// belongs there; false if it belongs nowhere.
__device__ __forceinline__ bool patch_escape(std::uint32_t escape, std::uint32_t from,
                                             std::uint32_t count, std::uint32_t n,
                                             std::uint8_t* place) {
  const std::uint32_t at = escape & 0xFFFFFF;
  if (at - from < count) place[2 * (at - from) + 1] = static_cast<std::uint8_t>(escape >> 24);
  return at < n;
}

// kBatch rows of a warp's part of a fixed block, on their way.
template <unsigned kBatch>
struct FixedRows {
  uint2 low[kBatch];
  std::uint32_t word[kBatch];

  __device__ __forceinline__ void load(const uint2* lows, const std::uint32_t* words) {
#pragma unroll
    for (unsigned i = 0; i < kBatch; ++i) {
      low[i] = load_now(lows + i * kWarp);
      word[i] = load_now(words + i * kWarp);
    }
  }
};

// What a warp reads first of a block, all of it at once, before it looks at any.
template <unsigned kBatch>
struct BlockStart {
  static constexpr unsigned kEscapes = 4;  // times kWarp are read ahead

  FixedRows<kBatch> rows;
  uint4 head;
  std::uint32_t escapes[kEscapes];

  __device__ __forceinline__ void load(const ComingBlock& b, const std::uint8_t* frame) {
    const std::uint32_t n = b.n, unit = threadIdx.x / kWarp * (n / 8 / kStraightWarps) + lane_id();
    const std::uint8_t* payload = frame + b.payload;
    rows.load(reinterpret_cast<const uint2*>(payload) + unit,
              reinterpret_cast<const std::uint32_t*>(payload + n) + unit);
    const std::uint32_t at = n + n / 2;
    head = load_now(reinterpret_cast<const uint4*>(payload + at));
    const std::uint32_t num_words = (b.num_bytes - at) / 4 - 4;
    const auto* words = reinterpret_cast<const std::uint32_t*>(payload + at) + 4;
#pragma unroll
    for (unsigned i = 0; i < kEscapes; ++i) {
      escapes[i] = 0;
      if (i * kWarp + lane_id() < num_words) escapes[i] = load_now(words + i * kWarp + lane_id());
    }
  }
};

// The warp's part of a fixed block whose start has been asked for.
template <unsigned kBatch>
__device__ __forceinline__ BlockResult restore_fixed_rows(const ComingBlock& b,
                                                          const std::uint8_t* frame,
                                                          BlockStart<kBatch>& start) {
  const unsigned warp = threadIdx.x / kWarp, lane = lane_id();
  const std::uint32_t n = b.n, num_rows = n / (kRowValues * kStraightWarps);
  const std::uint32_t head_vec = (n + n / 2) / 16, num_words = b.num_bytes / 4 - 4 * head_vec - 4;
  const std::uint32_t first_unit = warp * num_rows * kWarp + lane;
  FixedLayout layout;
  layout.escapes = 16 * head_vec + static_cast<std::uint32_t>(codec::FixedHeader::kBytes);
  if (!read_fixed_header(start.head, b.num_bytes, n, layout)) return {kReasonPayload, 0};
  std::uint8_t* place = b.place + 16 * lane;
  std::uint32_t low_factor = checksum_factor(2 * first_unit),
                word_factor = checksum_factor(n / 4 + first_unit);
  std::uint64_t sum = 0;
#pragma unroll 1
  for (std::uint32_t row = 0;;) {
#pragma unroll
    for (unsigned i = 0; i < kBatch; ++i) {
      const uint2 low = start.rows.low[i];
      const std::uint32_t word = start.rows.word[i];
      const uint2 high = fixed_high_bytes(word, layout.palette);
      store_global(place + i * 512,
                   uint4{__byte_perm(low.x, high.x, 0x5140), __byte_perm(low.x, high.x, 0x7362),
                         __byte_perm(low.y, high.y, 0x5140), __byte_perm(low.y, high.y, 0x7362)});
      sum += checksum_terms(low, low_factor) + std::uint64_t{word} * word_factor;
      low_factor += 2 * kWarp * frame::kChecksumStep;
      word_factor += kWarp * frame::kChecksumStep;
    }
    row += kBatch;
    if (kBatch < kMaxBatch || row >= num_rows) break;
    place += kBatch * 512;
    const std::uint8_t* payload = frame + b.payload;
    start.rows.load(reinterpret_cast<const uint2*>(payload) + first_unit + row * kWarp,
                    reinterpret_cast<const std::uint32_t*>(payload + n) + first_unit + row * kWarp);
  }
  __syncwarp();  // other lanes' stores come before escapes
  Reason reason = kReasonNone;
  const std::uint32_t from = warp * num_rows * kRowValues, count = num_rows * kRowValues;
  const auto take = [&](std::uint32_t escape, std::uint32_t i) {
    if (i / kWarp % kStraightWarps == warp) sum += checksum_term(escape, 4 * head_vec + 4 + i);
    if (i < layout.num_escapes && !patch_escape(escape, from, count, n, b.place))
      reason = kReasonPayload;
  };
#pragma unroll
  for (unsigned i = 0; i < BlockStart<kBatch>::kEscapes; ++i)
    if (i * kWarp < num_words) take(start.escapes[i], i * kWarp + lane);
  const auto* words = reinterpret_cast<const std::uint32_t*>(frame + b.payload) + 4 * head_vec + 4;
#pragma unroll 4
  for (std::uint32_t i = BlockStart<kBatch>::kEscapes * kWarp + lane; i < num_words; i += kWarp)
    take(__ldg(words + i), i);
  if (threadIdx.x == 0) sum += checksum_term(start.head, head_vec);
  return {reason, sum};
}

// The same for a raw block.
template <unsigned kBatch>
__device__ __forceinline__ BlockResult restore_raw_rows(const ComingBlock& b,
                                                        const std::uint8_t* frame) {
  const std::uint32_t num_rows = b.n / (kRowValues * kStraightWarps);
  const std::uint32_t first = threadIdx.x / kWarp * num_rows * kWarp + lane_id();
  const uint4* from = reinterpret_cast<const uint4*>(frame + b.payload) + first;
  std::uint8_t* place = b.place + 16 * lane_id();
  std::uint32_t factor = checksum_factor(4 * first);
  std::uint64_t sum = 0;
#pragma unroll 1
  for (std::uint32_t row = 0; row < num_rows; row += kBatch) {
    uint4 v[kBatch];
#pragma unroll
    for (unsigned i = 0; i < kBatch; ++i) v[i] = load_now(from + i * kWarp);
    from += kBatch * kWarp;
#pragma unroll
    for (unsigned i = 0; i < kBatch; ++i) {
      store_global(place + i * 512, v[i]);
      sum += checksum_terms(v[i], factor);
      factor += 4 * kWarp * frame::kChecksumStep;
    }
    place += kBatch * 512;
  }
  return {kReasonNone, sum};
}

// All that is not in rows, by the whole thread block; entropy-coded ones are one warp's work.
template <class Access>
__device__ __noinline__ BlockResult restore_other(const Work& work, std::uint64_t block,
                                                  DecodeSmem* smem) {
  const DecodeJob job = open_decode_job(work, block, ~std::uint64_t{0});
  const Access dst = access_item<Access>(work, work.single);
  BlockResult r{};
  if (job.entry.codec == static_cast<unsigned>(Codec::kFixed) && job.entry.plane_modes == 0)
    r.reason = decode_fixed_bf16<BlockTeam>(job.payload, job.entry, job.n, dst, job.pos, r.sum);
  else if (job.entry.codec == static_cast<unsigned>(Codec::kRaw))
    r.reason = decode_raw<BlockTeam>(job.payload, job.entry, job.n, 2, dst, job.pos, r.sum);
  else if (job.entry.codec == static_cast<unsigned>(Codec::kConstant))
    r.reason = decode_constant<BlockTeam>(job.payload, job.entry, job.n, 2, dst, job.pos, r.sum);
  else if (threadIdx.x < kWarp)
    r = decode_any<2>(job.payload, job.entry, job.n, work.dtype, dst, job.pos,
                      shared_address(&smem->slots), &smem->stream);
  return r;
}

// What the warps found of a block. The last of them to come checks it.
struct BlockSums {
  std::uint64_t sums[kStraightWarps];
  Reason reasons[kStraightWarps];
  unsigned arrived;
  unsigned turn;  // how often this place has been used
};
inline constexpr unsigned kSumsAhead = 4;

struct StraightSmem {
  ComingBlock coming[kStraightWarps][kWarp];
  BlockSums blocks[kSumsAhead];
  unsigned long long first_error;
  DecodeSmem other;
};

// By a whole warp, `i` counting the thread block's blocks.
__device__ __forceinline__ void leave_sums(StraightSmem& smem, unsigned i, const ComingBlock& b,
                                           std::uint64_t block, BlockResult r) {
  BlockSums& place = smem.blocks[i % kSumsAhead];
  const unsigned warp = threadIdx.x / kWarp, lane = lane_id();
  const std::uint64_t sum = warp_sum64(r.sum);
  const auto reason = static_cast<Reason>(__reduce_max_sync(kAll, static_cast<unsigned>(r.reason)));
  unsigned arrived = 0;
  if (lane == 0) {
    // A warp may be faster than others, but not by more than there are places.
    while (*const_cast<volatile unsigned*>(&place.turn) != i / kSumsAhead) {
    }
    place.sums[warp] = sum;
    place.reasons[warp] = reason;
    __threadfence_block();
    arrived = atomicAdd(&place.arrived, 1u);
  }
  if (__shfl_sync(kAll, arrived, 0) != kStraightWarps - 1) return;
  __threadfence_block();
  const std::uint64_t all = warp_sum64(lane < kStraightWarps ? place.sums[lane] : 0);
  const auto worst = static_cast<Reason>(__reduce_max_sync(
      kAll, static_cast<unsigned>(lane < kStraightWarps ? place.reasons[lane] : kReasonNone)));
  __syncwarp();
  if (lane != 0) return;
  const DeviceEntry e{0, 0, 0, b.num_bytes, b.checksum};
  const Reason found = worst == kReasonIndex ? worst : check_sum(worst, all, e);
  if (found != kReasonNone) atomicMax(&smem.first_error, error_key(Code::kCorrupt, found, block));
  place.arrived = 0;
  __threadfence_block();
  *const_cast<volatile unsigned*>(&place.turn) = i / kSumsAhead + 1;
}

// Opens the thread block's next kWarp blocks.
template <class Access>
__device__ __forceinline__ void open_blocks(const Work& work, std::uint64_t block,
                                            ComingBlock* coming) {
  __syncwarp();
  coming[lane_id()] = open_block<Access>(work, block + std::uint64_t{lane_id()} * gridDim.x);
  __syncwarp();
}

// Asks the cache for the index entries of the blocks after the next kWarp ones.
__device__ __forceinline__ void prefetch_entries(const Work& work, std::uint64_t block) {
  const std::uint64_t at =
      frame::kHeaderBytes + (block + std::uint64_t{lane_id()} * gridDim.x) * frame::kEntryBytes;
  if (at < work.single.frame_bytes)
    asm volatile(
        "prefetch.global.L2 [%0];" ::"l"(static_cast<const std::uint8_t*>(work.single.frame) + at));
}

// The thread block's blocks that are in rows. `i` counts those restored so far. Returns
// whether some were left over.
template <class Access, unsigned kBatch>
__device__ __forceinline__ bool restore_rows(const Work& work, StraightSmem& smem, unsigned& i) {
  ComingBlock* coming = smem.coming[threadIdx.x / kWarp];
  const auto* frame = static_cast<const std::uint8_t*>(work.single.frame);
  bool left_over = false, started = false;
  BlockStart<kBatch> start;
  std::uint64_t block = blockIdx.x;
  for (unsigned turn = 0;; block += gridDim.x) {
    const ComingBlock b = coming[turn % kWarp];
    if (b.kind == BlockKind::kEnd) return left_over;
    BlockResult r{kReasonIndex, 0};
    if (b.kind == BlockKind::kFixedRows) {
      if (!started) start.load(b, frame);
      r = restore_fixed_rows<kBatch>(b, frame, start);
    } else if (b.kind == BlockKind::kRawRows) {
      r = restore_raw_rows<kBatch>(b, frame);
    }
    // Before this block's sums are seen to, the next one is asked for.
    if (++turn % kWarp == 0)
      open_blocks<Access>(work, block + gridDim.x, coming);
    else if (turn % kWarp == kWarp / 2)
      prefetch_entries(work, block + std::uint64_t{kWarp / 2 + 1} * gridDim.x);
    const ComingBlock& next = coming[turn % kWarp];
    started = next.kind == BlockKind::kFixedRows;
    if (started) start.load(next, frame);
    if (b.kind == BlockKind::kOther)
      left_over = true;
    else
      leave_sums(smem, i++, b, block, r);
  }
}

// All others. Out of line: they would cost the usual blocks registers.
template <class Access>
__device__ __noinline__ void restore_others(const Work& work, StraightSmem& smem, unsigned i) {
  ComingBlock* coming = smem.coming[threadIdx.x / kWarp];
  std::uint64_t block = blockIdx.x;
  for (unsigned turn = 0;; ++turn, block += gridDim.x) {
    if (turn % kWarp == 0) open_blocks<Access>(work, block, coming);
    const ComingBlock& b = coming[turn % kWarp];
    if (b.kind == BlockKind::kEnd) return;
    if (b.kind == BlockKind::kOther)
      leave_sums(smem, i++, b, block, restore_other<Access>(work, block, &smem.other));
  }
}

// Registers are left for the kernel that starts beside this one.
template <class Access>
__global__ void __launch_bounds__(kStraightThreads + 128, 1)
    decode_straight_kernel(const __grid_constant__ Work work) {
  __shared__ StraightSmem smem;
  let_next_kernel_start();
  if (threadIdx.x < kSumsAhead)
    smem.blocks[threadIdx.x].arrived = smem.blocks[threadIdx.x].turn = 0;
  if (threadIdx.x == 0) smem.first_error = 0;
  if constexpr (!std::is_same_v<Access, DirectAccess>) wait_for_kernel_before();
  ComingBlock* coming = smem.coming[threadIdx.x / kWarp];
  open_blocks<Access>(work, blockIdx.x, coming);
  __syncthreads();
  unsigned i = 0;
  bool left_over;
  switch (coming[0].n / (kRowValues * kStraightWarps)) {
    case 1: left_over = restore_rows<Access, 1>(work, smem, i); break;
    case 2: left_over = restore_rows<Access, 2>(work, smem, i); break;
    case 4: left_over = restore_rows<Access, 4>(work, smem, i); break;
    default: left_over = restore_rows<Access, kMaxBatch>(work, smem, i);
  }
  if (left_over) restore_others<Access>(work, smem, i);
  __syncthreads();
  if (threadIdx.x == 0) work.errors[blockIdx.x] = smem.first_error;
}

}  // namespace snug::cuda
