// cuda/encode_block.cuh - one warp codes one block of any kind and writes it where it
// belongs: raw, constant, or with planes that wait in scratch memory for their place.
#pragma once
#include "cuda/encode_any.cuh"
#include "cuda/encode_frame.cuh"

namespace snug::cuda {

// Where the payload of a block comes from, once its size is known.
enum class Origin { kTensor, kScratch, kRegister };

struct Encoded {
  Origin origin = Origin::kTensor;
  DeviceEntry entry{};
  std::uint32_t raw_bytes = 0;  // of planes that do not come from scratch
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
inline __device__ __noinline__ std::uint64_t copy_scratch(const std::uint8_t* scratch,
                                                          std::uint32_t first,
                                                          std::uint32_t num_bytes,
                                                          std::uint8_t* payload) {
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

__device__ inline void set_raw(Encoded& e, std::uint32_t raw) {
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

// Raw planes are looked at again when the place is known; much of the block has left
// the cache by now and can come back meanwhile.
template <int kWidth, class Access>
__device__ __forceinline__ void fetch_raw_again(const Access& src, std::uint64_t pos,
                                                std::uint32_t n, const Encoded& e) {
  constexpr std::uint32_t kLinesBack = 128;
  if (e.origin != Origin::kTensor && e.raw_bytes == 0) return;
  for (std::uint32_t line = lane_id(); line < min(n * kWidth / 128, kLinesBack); line += kWarp)
    src.prefetch(pos + 128 * std::uint64_t{line});
}

// Writes the payload, unless `written` is false; returns this lane's checksum terms.
template <int kWidth, class Access>
__device__ __forceinline__ std::uint64_t write_block_any(const Work& work, const Access& src,
                                                         std::uint64_t pos, std::uint32_t n,
                                                         const Encoded& e,
                                                         const std::uint8_t* scratch,
                                                         std::uint8_t* payload, bool written) {
  if (e.origin == Origin::kTensor)
    return copy_raw(src, pos, std::uint64_t{n} * kWidth, payload, written);
  std::uint64_t sum = 0;
  if (e.origin == Origin::kScratch) {
    const BlockValues<Access, kWidth> values{src, pos, n, is_float(work.dtype)};
    if (written && e.raw_bytes != 0) sum = write_raw_planes(values, e.entry.plane_modes, payload);
    if (written) sum += copy_scratch(scratch, e.raw_bytes, e.entry.num_bytes, payload);
  } else if (lane_id() == 0) {
    const std::uint64_t v = load_elem(src, pos, kWidth);
    const uint4 value = {static_cast<std::uint32_t>(v), static_cast<std::uint32_t>(v >> 32), 0, 0};
    if (written) *reinterpret_cast<uint4*>(payload) = value;
    sum = checksum_term(value, 0);
  }
  return sum;
}

}  // namespace snug::cuda
