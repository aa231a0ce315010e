// nccl/cuda/worker_codec.cuh - one warp encodes or decodes one block of an order.
//
// Host memory is copied to and from device memory whole, with wide accesses: the codec's functions
// read a block twice and write single bytes, which PCIe would not forgive. They are those of
// codec/cuda, so the frames are those of the CPU.
#pragma once
#include "codec/cuda/decode_any_block/decode_any_block.cuh"
#include "codec/cuda/decode_entropy_bytes/decode_bytes.cuh"
#include "codec/cuda/decode_entropy_exponent/decode_palette.cuh"
#include "codec/cuda/encode_entropy_bf16/bf16_block.cuh"
#include "codec/cuda/frame/decode_frame.cuh"
#include "nccl/cuda/gpu_floor.cuh"
#include "nccl/cuda/gpu_team.cuh"
#include "nccl/cuda/workers.h"

namespace snug::nccl {

using namespace cuda;  // NOLINT: this is one of its kernels

inline constexpr u32 kBlockRoom = kWorkerBlockBytes + 64;

// Device memory of one warp. Payloads are never larger than their block.
struct alignas(256) WarpScratch {
  u8 in[kBlockRoom];
  u8 out[kBlockRoom];
  u8 coded[block_scratch(2, 13) > block_scratch(4, 12) ? block_scratch(2, 13)
                                                       : block_scratch(4, 12)];
};
static_assert(sizeof(WarpScratch::coded) >= block_scratch(1, 14));

// Shared memory of one warp.
struct ExponentRoom {
  SlotTable slots;
  union {
    PaletteRoom<2, true> bf16;
    PaletteRoom<4, false> f32;
    struct {
      u8 bytes[StreamRoom::kBytes];
      alignas(16) u8 ring[StreamRoom::kSmall];
    } stream;
  };
};
struct BytesRoom {
  RowTables tables;
  alignas(16) u8 ring[StreamRoom::kSmall];
};
constexpr u32 largest(u32 a, u32 b) { return a > b ? a : b; }
inline constexpr u32 kEncodeBf16Room = sizeof(EncodeSmem) + coded_block_bytes(13);
struct alignas(1024) WarpRoom {
  u8 bytes[largest(largest(kEncodeBf16Room, sizeof(PlaneSmem)),
                   largest(sizeof(ExponentRoom), sizeof(BytesRoom)))];
  Work work;
  Order order;
  EncodeJob job;
};

// What a warp works with.
struct Worker {
  WorkerBoard* board;
  GpuFloor* floor;
  WarpRoom* room;
  WarpScratch* scratch;
  u32 uniform;  // address of the uniform row in shared memory
};

// The compiler must not know what the memory held before: it is used again and again.
__device__ __forceinline__ u8* renewed(u8* p) {
  asm volatile("mov.b64 %0, %0;" : "+l"(p)::"memory");
  return p;
}
// Nor may the L1 cache, after other lanes have written there.
__device__ __forceinline__ u8* reloaded(u8* p) {
  __threadfence();
  __syncwarp();
  return renewed(p);
}

// By all lanes. Many loads are in flight, since one from the host takes long.
template <class Load, class Store>
__device__ __forceinline__ void copy_bytes(const u8* from, u8* to, u32 num_bytes, const Load& load,
                                           const Store& store) {
  constexpr u32 kUnroll = 16;
  const auto* wide_from = reinterpret_cast<const uint4*>(from);
  auto* wide_to = reinterpret_cast<uint4*>(to);
  const u32 full = num_bytes / 16;
  for (u32 i = lane_id(); i < full; i += kUnroll * kWarpSize) {
    uint4 v[kUnroll];
#pragma unroll
    for (u32 u = 0; u < kUnroll; ++u)
      if (i + u * kWarpSize < full) v[u] = load(wide_from + i + u * kWarpSize);
#pragma unroll
    for (u32 u = 0; u < kUnroll; ++u)
      if (i + u * kWarpSize < full) store(wide_to + i + u * kWarpSize, v[u]);
  }
  for (u32 i = full * 16 + lane_id(); i < num_bytes; i += kWarpSize) to[i] = load(from + i);
}

__device__ __noinline__ void copy_in(const u8* host, u8* device, u32 num_bytes) {
  copy_bytes(
      host, device, num_bytes, [](const auto* p) { return __ldcv(p); },
      [](uint4* p, uint4 v) { __stcg(p, v); });
}

__device__ __noinline__ void copy_out(const u8* device, u8* host, u32 num_bytes) {
  copy_bytes(
      device, host, num_bytes, [](const auto* p) { return __ldcg(p); },
      [](uint4* p, uint4 v) { __stcs(p, v); });
}

// By all lanes when a block is done: true on lane 0 of the warp that finishes the order, which then
// sees what the others wrote.
__device__ __forceinline__ bool finish_block(ItemState& state, u64 head_sum, u32 num_blocks) {
  __threadfence_system();
  __syncwarp();
  if (lane_id() != 0) return false;
  atomicAdd(&state.head_sum, static_cast<unsigned long long>(head_sum));
  return GpuTeam::add(&state.done, 1u) + 1 == num_blocks;
}

// ---- encode ------------------------------------------------------------------------

// Codes the block at scratch.in into scratch.out.
template <int kWidth>
__device__ __forceinline__ DeviceEntry encode_staged(const Worker& w, u32 n) {
  const Work& work = w.room->work;
  const DirectAccess src{reloaded(w.scratch->in)};
  u8* const coded = renewed(w.scratch->coded);
  u8* const out = w.scratch->out;
  Encoded e{};
  u64 sum;
  if (kWidth == 2 && work.dtype == DType::kBF16 && work.codec == Codec::kEntropy) {
    auto& smem = *reinterpret_cast<EncodeSmem*>(w.room->bytes);
    auto& block = *reinterpret_cast<CodedBlock*>(w.room->bytes + sizeof(EncodeSmem));
    if (lane_id() == 0) {
      block.job = w.room->job;
      block.job.w.item.frame = out;
      block.job.w.item.frame_bytes = kBlockRoom;
      block.job.fits = true;
    }
    __syncwarp();
    const bool in_room = code_bf16_block(work, src, 0, smem, block, coded, e);
    const Place place(block.job, e.entry, 0);
    sum = in_room ? write_coded(work, src, 0, block, e, coded, place)
                  : write_block_any<2>(work, src, 0, n, e, coded, out, true);
  } else {
    auto* smem = reinterpret_cast<PlaneSmem*>(w.room->bytes);
    e = encode_block_any<kWidth>(work, src, 0, n, smem, coded);
    sum = write_block_any<kWidth>(work, src, 0, n, e, coded, out, true);
  }
  e.entry.checksum = checksum_finish(warp_sum(sum), e.entry.num_bytes);
  __syncwarp();
  return e.entry;
}

template <int kWidth>
__device__ __noinline__ void encode_ticket(Worker w, u32 box, u32 block) {
  const EncodeJob& job = w.room->job;
  copy_in(static_cast<const u8*>(job.w.item.tensor) + job.pos, w.scratch->in, job.n * kWidth);
  DeviceEntry entry = encode_staged<kWidth>(w, job.n);
  const u64 units =
      place_block(w.floor->sizes[box], block, entry.num_bytes / 16, job.payload_start() / 16);
  entry.offset = units * 16;
  u8* const frame = static_cast<u8*>(job.w.item.frame);
  const bool fits = job.fits && entry.offset + entry.num_bytes <= job.w.item.frame_bytes;
  if (fits) copy_out(w.scratch->out, frame + entry.offset, entry.num_bytes);
  ItemState& state = w.floor->states[box];
  const uint4 packed = pack_entry(entry);
  if (lane_id() == 0) {
    if (job.fits) reinterpret_cast<uint4*>(frame + frame::kHeaderBytes)[block] = packed;
    if (!fits) report_error(&state, Code::kDstTooSmall, kReasonFrameRoom, kNowhere);
    if (block + 1 == job.num_blocks) atomicExch(&state.frame_end, entry.offset + entry.num_bytes);
  }
  const u64 term = checksum_term(packed, 4 + block);
  if (!finish_block(state, term, static_cast<u32>(job.num_blocks))) return;
  write_header(w.room->work, job, DirectAccess{nullptr}, atomicAdd(&state.head_sum, 0ull),
               atomicAdd(&state.frame_end, 0ull), atomicAdd(&state.first_error, 0ull));
  const DeviceResult& result = w.floor->results[box];
  report<GpuTeam>(*w.board, w.floor->queue, box, result.code, static_cast<u32>(result.num_bytes));
}

// ---- decode ------------------------------------------------------------------------

template <int kWidth>
__device__ __forceinline__ BlockResult decode_staged(const Worker& w, const DeviceEntry& e, u32 n,
                                                     DType dtype) {
  const u8* const payload = reloaded(w.scratch->in);
  const DirectAccess dst{w.scratch->out};
  if constexpr (kWidth <= 2)
    if (dtype != DType::kBF16) {
      auto& room = *reinterpret_cast<BytesRoom*>(w.room->bytes);
      const StreamRoom stream{shared_address(room.tables.first), shared_address(room.tables.rows),
                              shared_address(room.ring)};
      if (e.is(Codec::kEntropy) && e.plane_modes == mode_bits(PlaneMode::kBytes, kWidth - 1))
        return decode_byte_block<kWidth>(payload, e.num_bytes, n, has_sign_bit(dtype), dst, 0,
                                         stream, w.uniform);
      return decode_other<kWidth>(payload, e, n, dtype, dst, 0, stream);
    }
  auto& room = *reinterpret_cast<ExponentRoom*>(w.room->bytes);
  const u32 slots = kept_shared_address(&room);
  if constexpr (kWidth > 1)
    if (e.is(Codec::kEntropy) && has_exponent_plane(dtype) &&
        e.plane_modes == mode_bits(PlaneMode::kPalette, kWidth - 1))
      return decode_palette_block<kWidth, kWidth == 2>(payload, e.num_bytes, n, dst, 0, slots);
  if constexpr (kWidth == 2)
    if (e.is(Codec::kFixed) && e.plane_modes == 0) {
      BlockResult r{};
      r.reason = decode_fixed_bf16_block<WarpTeam>(payload, e, n, dst, 0, r.sum);
      return r;
    }
  return decode_other<kWidth>(
      payload, e, n, dtype, dst, 0,
      StreamRoom{slots, shared_address(room.stream.bytes), shared_address(room.stream.ring)});
}

__device__ __forceinline__ uint4 of_lane(uint4 v, int lane) {
  return {__shfl_sync(kAllLanes, v.x, lane), __shfl_sync(kAllLanes, v.y, lane),
          __shfl_sync(kAllLanes, v.z, lane), __shfl_sync(kAllLanes, v.w, lane)};
}

template <int kWidth>
__device__ __noinline__ void decode_ticket(Worker w, u32 box, u32 block) {
  const Order& order = w.room->order;
  const auto dtype = static_cast<DType>(order.dtype);
  const auto* frame = reinterpret_cast<const u8*>(order.frame);
  // Header and two entries in one round trip.
  uint4 mine{};
  const u32 vec = lane_id() < 4 ? lane_id() : block + lane_id();
  if (lane_id() < 6 && 16 * (vec + 1) <= order.frame_bytes)
    mine = __ldcv(reinterpret_cast<const uint4*>(frame) + vec);
  uint4 head[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) head[i] = of_lane(mine, i);
  const uint4 packed = of_lane(mine, 4), next = of_lane(mine, 5);
  const DeviceHeader h = parse_device_header(head[0], head[1], head[2], head[3], order.frame_bytes,
                                             order.tensor_bytes, dtype);
  const DeviceEntry entry = unpack_entry(packed);
  const u64 end = block + 1 < h.num_blocks ? unpack_entry(next).offset : h.frame_bytes;
  Reason reason = h.code != Code::kOk ? h.reason : kReasonNone;
  if (h.code == Code::kOk && (h.num_blocks != order.num_blocks ||
                              h.log2_block != order.log2_block || h.num_tail_bytes != 0))
    reason = kReasonHeader;
  const u32 n = reason == kReasonNone ? h.elems_in_block(block) : 0;
  if (reason == kReasonNone && !is_valid_entry(entry, block, end, n, kWidth, h))
    reason = kReasonIndex;
  if (reason == kReasonNone) {
    copy_in(frame + entry.offset, w.scratch->in, entry.num_bytes);
    const BlockResult r = decode_staged<kWidth>(w, entry, n, dtype);
    reason = check_sum(r.reason, warp_sum(r.sum), entry);
    __syncwarp();
  }
  if (reason == kReasonNone)
    copy_out(w.scratch->out,
             reinterpret_cast<u8*>(order.tensor) + (u64{block} << h.log2_block) * kWidth,
             n * kWidth);
  ItemState& state = w.floor->states[box];
  if (reason != kReasonNone && lane_id() == 0) report_error(&state, Code::kCorrupt, reason, block);
  if (!finish_block(state, checksum_term(packed, 4 + block), order.num_blocks)) return;
  u64 sum = atomicAdd(&state.head_sum, 0ull);
  head[2].x = 0;  // the checksum itself
#pragma unroll
  for (u32 i = 0; i < 4; ++i) sum += checksum_term(head[i], i);
  if (checksum_finish(sum, h.payload_start()) != h.checksum)
    report_error(&state, Code::kCorrupt, kReasonHeadChecksum, kNowhere);
  report<GpuTeam>(*w.board, w.floor->queue, box,
                  static_cast<u32>(atomicAdd(&state.first_error, 0ull) & 0xFF), order.tensor_bytes);
}

// ---- any ---------------------------------------------------------------------------

// By one lane: the order as the encoders want to see it.
__device__ __noinline__ void prepare_job(const Worker& w, u32 box, u32 block) {
  WarpRoom& room = *w.room;
  const Order order = w.floor->queue.orders[box];
  room.order = order;
  room.work = {};
  room.work.dtype = static_cast<DType>(order.dtype);
  room.work.codec = static_cast<Codec>(order.codec);
  room.work.log2_block = order.log2_block;
  room.work.single = {reinterpret_cast<void*>(order.tensor), order.tensor_bytes,
                      reinterpret_cast<void*>(order.frame), order.frame_bytes};
  room.job = make_encode_job(room.work, block);
  room.job.w.idx = box;
  room.work.results = w.floor->results;
}

__device__ __forceinline__ void work_on(const Worker& w, u32 box, u32 block) {
  if (lane_id() == 0) prepare_job(w, box, block);
  __syncwarp();
  const unsigned width = width_of(w.room->work.dtype);
  if (w.room->order.kind == OrderKind::kEncode) {
    if (width == 1)
      encode_ticket<1>(w, box, block);
    else if (width == 2)
      encode_ticket<2>(w, box, block);
    else
      encode_ticket<4>(w, box, block);
  } else {
    if (width == 1)
      decode_ticket<1>(w, box, block);
    else if (width == 2)
      decode_ticket<2>(w, box, block);
    else
      decode_ticket<4>(w, box, block);
  }
  __syncwarp();
}

}  // namespace snug::nccl
