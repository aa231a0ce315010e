// cuda/encode_palette.cuh - one warp codes one BF16 block: exponents as a
// palette stream, the other bits raw. The coded exponents wait in shared memory
// until their place in the frame is known; then the block is read again for the
// raw plane. Keeping that plane in shared memory too reads less, but leaves room
// for half as many warps: 0.66 against 0.72 TB/s (256 MiB, H200).
#pragma once
#include "cuda/palette_sample.cuh"
#include "cuda/symbol_coder.cuh"

namespace snug::cuda {

// Appends the escaped exponents of a group, in natural order, below `used`
// bytes from the end; returns how many. Writes none beyond `room`. Bit i of
// `flags` says that the lane's value i is an escape.
inline __device__ __noinline__ std::uint32_t push_exponents(uint4 v, unsigned flags,
                                                            std::uint8_t* escapes_end,
                                                            std::uint32_t used,
                                                            std::uint32_t room) {
  const unsigned lane = lane_id();
  const unsigned holders = __ballot_sync(kAll, flags != 0);
  std::uint32_t before = __popc(holders & ((1u << lane) - 1)), total = __popc(holders);
  if (__any_sync(kAll, (flags & (flags - 1)) != 0)) {
    const std::uint32_t count = __popc(flags);
    before = count;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const std::uint32_t below = __shfl_up_sync(kAll, before, d);
      if (lane >= static_cast<unsigned>(d)) before += below;
    }
    total = __shfl_sync(kAll, before, 31);
    before -= count;
  }
  if (used + total <= room) {
    std::uint8_t* at = escapes_end - used - total + before;
#pragma unroll 1
    for (; flags != 0; flags &= flags - 1) {
      const int i = __ffs(static_cast<int>(flags)) - 1;
      const std::uint32_t word = i < 4 ? (i < 2 ? v.x : v.y) : (i < 6 ? v.z : v.w);
      *at++ = static_cast<std::uint8_t>(word >> (i % 2 * 16 + 7));
    }
  }
  __syncwarp();
  return total;
}

// A group at the end of a block: values past it count as the commonest exponent.
template <class Access>
__device__ __noinline__ uint4 load_last_group(Access src, std::uint64_t at, std::int32_t num_values,
                                              std::uint32_t commonest) {
  const uint4 v = load_upto16(src, at, 2 * num_values);
  std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
  const std::uint32_t pad = commonest << 7 | commonest << 23;
#pragma unroll
  for (std::int32_t i = 0; i < 4; ++i) {
    if (2 * i >= num_values)
      words[i] = pad;
    else if (2 * i + 1 >= num_values)
      words[i] = (words[i] & 0xFFFF) | (pad & 0xFFFF0000u);
  }
  return {words[0], words[1], words[2], words[3]};
}

// Codes the exponents from the last group to the first. num_words is kNoRoom if the block needs
// more of it than there is.
inline constexpr std::uint32_t kNoRoom = ~0u;

template <class Access>
__device__ __noinline__ CodedStream encode_palette_bf16(Access src, std::uint64_t pos,
                                                        std::uint32_t n, std::uint32_t block_elems,
                                                        std::uint32_t commonest, EncodeSmem* smem) {
  const unsigned lane = lane_id();
  const std::uint32_t max_escapes = escapes_room(block_elems);
  std::uint8_t* const escapes_end = smem->rest() + words_room(block_elems) + max_escapes;
  const auto lut = shared_address(smem->lut);
  const std::uint32_t words_end = shared_address(smem->rest()) + words_room(block_elems);
  const std::uint32_t words_low = words_end - words_room(block_elems) + 512;  // two groups

  Coder coder(words_end);
  std::uint32_t num_escapes = 0;
  const auto num_full = static_cast<std::int32_t>(n / 256);
  auto group = static_cast<std::int32_t>((n + 255) / 256) - 1;
  const std::uint64_t lane_pos = pos + 16 * lane;
  // Loaded one group ahead: it is in the cache.
  const Access mine = advanced(src, lane_pos);
  uint4 v{};
  if (num_full > 0) v = mine.peek16(512 * static_cast<std::uint64_t>(min(group, num_full - 1)));
#pragma unroll 1
  for (; group >= 0; --group) {
    if (coder.end < words_low) return {kNoRoom, 0, 0};
    if (group >= num_full)
      v = load_last_group(
          src, lane_pos + 512 * static_cast<std::uint64_t>(group),
          static_cast<std::int32_t>(n) - 256 * group - 8 * static_cast<std::int32_t>(lane),
          commonest);
    const std::uint32_t w[4] = {v.x, v.y, v.z, v.w};
    uint2 symbols[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      symbols[2 * i] = load_shared8(lut + (w[i] >> 4 & 0x7F8));
      symbols[2 * i + 1] = load_shared8(lut + (w[i] >> 20 & 0x7F8));
    }
    unsigned any_escape = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) any_escape |= symbols[i].y;
    if (__any_sync(kAll, any_escape & 128)) {
      unsigned flags = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) flags |= (symbols[i].y >> 7 & 1) << i;
      const std::int32_t here =
          static_cast<std::int32_t>(n) - 256 * group - 8 * static_cast<std::int32_t>(lane);
      if (here < 8) flags &= here > 0 ? (1u << here) - 1 : 0;
      num_escapes += push_exponents(v, flags, escapes_end, num_escapes, max_escapes);
      if (num_escapes > max_escapes) return {kNoRoom, 0, 0};
    }
    if (group > 0) v = mine.peek16(512 * static_cast<std::uint64_t>(group - 1));
    coder.code_group<true>(symbols);
  }
  coder.put_words();
  __syncwarp();
  return {(words_end - coder.end) / 2, num_escapes, coder.x};
}

__device__ inline std::uint32_t palette_payload_bytes(std::uint32_t n, const CodedStream& coded) {
  return static_cast<std::uint32_t>(
      align16(n) + align16(codec::kTableOffset + 32 + 2 * coded.num_words + coded.num_escapes));
}

// The raw plane: low bytes of all values. Returns this lane's checksum terms.
template <class Access>
__device__ __noinline__ std::uint64_t write_low_plane(Access src, std::uint64_t pos,
                                                      std::uint32_t n, std::uint8_t* payload) {
  std::uint64_t sum = 0;
  std::uint32_t i = lane_id();
  // Batches of vectors; each is loaded when the one a batch before it is through.
  constexpr unsigned kBatch = 8;
  const auto has_batch = [&](std::uint32_t first) { return first + (kBatch - 1) * kWarp < n / 8; };
  if (has_batch(i)) {
    uint4 v[kBatch];
#pragma unroll
    for (unsigned u = 0; u < kBatch; ++u)
      v[u] = src.load16(pos + 16 * std::uint64_t{i + u * kWarp});
    // Of an even word: odd as it is.
    std::uint32_t factor = 2 * i * frame::kChecksumStep + frame::kChecksumStart;
    bool more;
#pragma unroll 1
    do {
      const std::uint32_t next = i + kBatch * kWarp;
      more = has_batch(next);
#pragma unroll
      for (unsigned u = 0; u < kBatch; ++u) {
        const uint2 low = low_bytes(v[u]);
        if (more) v[u] = src.load16(pos + 16 * std::uint64_t{next + u * kWarp});
        __stcs(reinterpret_cast<uint2*>(payload) + i + u * kWarp, low);
        sum = mad_wide(low.x, factor, sum);
        sum = mad_wide(low.y, factor + frame::kChecksumStep + 1, sum);
        factor += 2 * kWarp * frame::kChecksumStep;
      }
      i = next;
    } while (more);
  }
#pragma unroll 1
  for (; 8 * i < align16(n); i += kWarp) {
    const uint2 low =
        low_bytes(load_upto16(src, pos + 16 * std::uint64_t{i},
                              2 * (static_cast<std::int64_t>(n) - 8 * std::int64_t{i})));
    __stcs(reinterpret_cast<uint2*>(payload) + i, low);
    sum += checksum_term(low.x, 2 * i) + checksum_term(low.y, 2 * i + 1);
  }
  return sum;
}

// Header, states, table, words and escapes behind the raw plane.
inline __device__ __noinline__ std::uint64_t write_palette_section(
    std::uint8_t* payload, std::uint32_t n, std::uint32_t block_elems, DevicePalette palette,
    CodedStream coded, EncodeSmem* smem_at) {
  EncodeSmem& smem = *smem_at;
  const unsigned lane = lane_id();
  uint4* out = reinterpret_cast<uint4*>(payload);
  std::uint64_t sum = 0;
  const std::uint32_t low_vecs = static_cast<std::uint32_t>(align16(n) / 16);
  // Header, states and table take shape where the histogram was.
  std::uint32_t* head = smem.histogram;
  __syncwarp();
  if (lane == 0) {
    head[0] = coded.num_words;
    head[1] = coded.num_escapes;
    head[2] = 32 | palette.size << 16;
    head[3] = 0;
  }
  head[4 + lane] = coded.state;
  auto* table = reinterpret_cast<std::uint8_t*>(head + 36);
  if (lane < 16) {
    table[lane] = static_cast<std::uint8_t>(palette.value);
    table[16 + lane] = static_cast<std::uint8_t>(palette.freq);
  }
  __syncwarp();
  constexpr unsigned kHeadVecs = (codec::kTableOffset + 32) / 16;
  if (lane < kHeadVecs) {
    const uint4 v = reinterpret_cast<const uint4*>(head)[lane];
    __stcs(out + low_vecs + lane, v);
    sum += checksum_term(v, low_vecs + lane);
  }
  const std::uint32_t word_bytes = 2 * coded.num_words, tail_bytes = word_bytes + coded.num_escapes;
  const std::uint8_t* words_end = smem.rest() + words_room(block_elems);
  const std::uint8_t* words = words_end - word_bytes;
  const std::uint8_t* escapes = words_end + escapes_room(block_elems) - coded.num_escapes;
  const std::uint32_t first_vec = low_vecs + kHeadVecs;
  // Words are at even addresses: whole registers, or registers shifted by half.
  const std::uint32_t odd =
      static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(words) & 2) * 8;
  const std::uint32_t* aligned = reinterpret_cast<const std::uint32_t*>(words - odd / 8);
#pragma unroll 1
  for (std::uint32_t i = lane; 16 * i < tail_bytes; i += kWarp) {
    std::uint32_t w[4] = {};
    if (16 * i + 16 <= word_bytes) {
      std::uint32_t next = aligned[4 * i];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const std::uint32_t low = next;
        next = aligned[4 * i + k + 1];  // at worst the bytes after the words
        w[k] = __funnelshift_r(low, next, odd);
      }
    } else {
      std::uint64_t half[2] = {};
#pragma unroll 1
      for (unsigned k = 0; k < 16; ++k) {
        const std::uint32_t at = 16 * i + k;
        const std::uint64_t byte = at < word_bytes   ? words[at]
                                   : at < tail_bytes ? escapes[at - word_bytes]
                                                     : 0;
        half[0] |= k < 8 ? byte << (8 * k) : 0;
        half[1] |= k < 8 ? 0 : byte << (8 * (k - 8));
      }
#pragma unroll
      for (unsigned k = 0; k < 4; ++k)
        w[k] = static_cast<std::uint32_t>(half[k / 2] >> (k % 2 * 32));
    }
    const uint4 v = {w[0], w[1], w[2], w[3]};
    __stcs(out + first_vec + i, v);
    sum += checksum_term(v, first_vec + i);
  }
  return sum;
}

}  // namespace snug::cuda
