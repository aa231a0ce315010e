// codec/cuda/decode_fixed_bf16/restore_rows.cuh - a warp's part of a fixed or raw block of BF16.
#pragma once
#include "codec/cuda/decode_any_block/decode_fixed_block.cuh"
#include "codec/cuda/decode_fixed_bf16/next_block.cuh"

namespace snug::cuda {

// Writes an escape if it is in the warp's part, values [from, from + count) of the block; false if
// it is outside of the block.
__device__ __forceinline__ bool patch_escape(u32 escape, u32 from, u32 count, u32 n, u8* place) {
  const u32 at = escape & 0xFFFFFF;
  if (at - from < count) place[2 * (at - from) + 1] = static_cast<u8>(escape >> 24);
  return at < n;
}

// The warp's part of a fixed block, kBatch rows at a time.
template <unsigned kBatch>
__device__ __forceinline__ BlockResult restore_fixed_rows(const NextBlock& b, const u8* frame,
                                                          const WarpGroup& group) {
  constexpr unsigned kEscapes = 4;  // a lane, loaded before they are needed
  const unsigned lane = lane_id();
  const u8* payload = frame + b.payload;
  const u32 n = b.n, count = n >> group.log2_warps, from = group.warp * count;
  const u32 unit = from / 8 + lane;
  const u32 head_vec = (n + n / 2) / 16, num_words = b.num_bytes / 4 - 4 * head_vec - 4;
  const uint2* lows = reinterpret_cast<const uint2*>(payload) + unit;
  const u32* words = reinterpret_cast<const u32*>(payload + n) + unit;
  const auto* list = reinterpret_cast<const u32*>(payload) + 4 * head_vec + 4;
  uint2 low[kBatch];
  u32 word[kBatch], escapes[kEscapes];
  const auto load_rows = [&] {
#pragma unroll
    for (unsigned i = 0; i < kBatch; ++i) {
      low[i] = load_read_only(lows + i * kWarpSize);
      word[i] = load_read_only(words + i * kWarpSize);
    }
    lows += kBatch * kWarpSize;
    words += kBatch * kWarpSize;
  };
  load_rows();
  const uint4 head = load_read_only(reinterpret_cast<const uint4*>(payload) + head_vec);
#pragma unroll
  for (unsigned i = 0; i < kEscapes; ++i) {
    escapes[i] = 0;
    if (i * kWarpSize + lane < num_words) escapes[i] = load_read_only(list + i * kWarpSize + lane);
  }
  FixedLayout layout;
  layout.escapes = 16 * head_vec + static_cast<u32>(codec::FixedHeader::kBytes);
  if (!read_fixed_header(head, b.num_bytes, n, layout)) return {kReasonPayload, 0};
  u8* place = b.place + 16 * lane;
  u32 low_factor = checksum_factor(2 * unit), word_factor = checksum_factor(n / 4 + unit);
  u64 sum = 0;
#pragma unroll 1
  for (u32 done = 0;;) {
#pragma unroll
    for (unsigned i = 0; i < kBatch; ++i) {
      store_global(place + i * 512,
                   merge_low_high(low[i], fixed_high_bytes(word[i], layout.palette)));
      sum += checksum_terms(low[i], low_factor) + u64{word[i]} * word_factor;
      low_factor += 2 * kWarpSize * frame::kChecksumStep;
      word_factor += kWarpSize * frame::kChecksumStep;
    }
    done += kBatch * kRowValues;
    if (done >= count) break;
    place += kBatch * 512;
    load_rows();
  }
  __syncwarp();  // escapes overwrite what other lanes stored
  Reason reason = kReasonNone;
  const auto take = [&](u32 escape, u32 i) {
    if ((i / kWarpSize & ((1u << group.log2_warps) - 1)) == group.warp)
      sum += checksum_term(escape, 4 * head_vec + 4 + i);
    if (i < layout.num_escapes && !patch_escape(escape, from, count, n, b.place))
      reason = kReasonPayload;
  };
#pragma unroll
  for (unsigned i = 0; i < kEscapes; ++i)
    if (i * kWarpSize < num_words) take(escapes[i], i * kWarpSize + lane);
#pragma unroll 4
  for (u32 i = kEscapes * kWarpSize + lane; i < num_words; i += kWarpSize) take(__ldg(list + i), i);
  if (group.warp == 0 && lane == 0) sum += checksum_term(head, head_vec);
  return {reason, sum};
}

// The same for a raw block.
template <unsigned kBatch>
__device__ __forceinline__ BlockResult restore_raw_rows(const NextBlock& b, const u8* frame,
                                                        const WarpGroup& group) {
  const u32 count = b.n >> group.log2_warps;
  const u32 first = group.warp * count / 8 + lane_id();
  const uint4* vecs = reinterpret_cast<const uint4*>(frame + b.payload) + first;
  u8* place = b.place + 16 * lane_id();
  u32 factor = checksum_factor(4 * first);
  u64 sum = 0;
#pragma unroll 1
  for (u32 done = 0; done < count; done += kBatch * kRowValues) {
    uint4 v[kBatch];
#pragma unroll
    for (unsigned i = 0; i < kBatch; ++i) v[i] = load_read_only(vecs + i * kWarpSize);
    vecs += kBatch * kWarpSize;
#pragma unroll
    for (unsigned i = 0; i < kBatch; ++i) {
      store_global(place + i * 512, v[i]);
      sum += checksum_terms(v[i], factor);
      factor += 4 * kWarpSize * frame::kChecksumStep;
    }
    place += kBatch * 512;
  }
  return {kReasonNone, sum};
}

}  // namespace snug::cuda
