// cuda/encode_palette.cuh - one warp codes one BF16 block: exponents as a
// palette stream, the other bits raw. The coded exponents wait in shared memory
// until their place in the frame is known; then the block is read again for the
// raw plane.
#pragma once
#include "cuda/pair_coder.cuh"
#include "cuda/palette_sample.cuh"

namespace snug::cuda {

inline constexpr std::uint32_t kSectionHeadBytes = codec::kTableOffset + 32;
inline constexpr std::uint32_t kNoRoom = ~0u;

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

// The escapes of a group of which num_values are in the block; as push_exponents.
// Seldom called: it finds the flags in the table, so that the loop keeps its registers.
inline __device__ __noinline__ std::uint32_t push_escaped(uint4 v, std::int32_t num_values,
                                                          std::uint32_t lut,
                                                          std::uint8_t* escapes_end,
                                                          std::uint32_t used, std::uint32_t room) {
  const std::uint32_t w[4] = {v.x, v.y, v.z, v.w};
  unsigned flags = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    flags |= (load_shared8(lut + (w[i] >> 4 & 0x7F8)).y >> 7 & 1) << 2 * i;
    flags |= (load_shared8(lut + (w[i] >> 20 & 0x7F8)).y >> 7 & 1) << (2 * i + 1);
  }
  const std::int32_t here = num_values - 8 * static_cast<std::int32_t>(lane_id());
  if (here < 8) flags &= here > 0 ? (1u << here) - 1 : 0;
  return push_exponents(v, flags, escapes_end, used, room);
}

__device__ __forceinline__ DirectAccess kept(DirectAccess tensor) {
  asm volatile("mov.b64 %0, %0;" : "+l"(tensor.data));  // is worked out once
  return tensor;
}
__device__ __forceinline__ ScatteredAccess kept(const ScatteredAccess& tensor) { return tensor; }

// Codes the exponents from the last group to the first. num_words is kNoRoom if the
// block needs more of it than there is.
template <class Access>
__device__ __noinline__ CodedStream encode_palette_bf16(Access src, std::uint64_t pos,
                                                        std::uint32_t n, std::uint32_t block_elems,
                                                        std::uint32_t commonest, EncodeSmem* smem) {
  const unsigned lane = lane_id();
  const std::uint32_t lut = kept_shared_address(smem->lut);
  const std::uint32_t words_at = shared_address(smem->rest()),
                      words_end = words_at + words_room(block_elems);
  const std::uint32_t max_escapes = escapes_room(block_elems);
  std::uint8_t* const escapes_end = smem->rest() + words_room(block_elems) + max_escapes;
  std::uint32_t words_low = words_at + 512;  // what two groups may take
  PairCoder coder(words_end);
  std::uint32_t num_escapes = 0;
  const auto num_full = static_cast<std::int32_t>(n / 256);
  auto group = static_cast<std::int32_t>((n + 255) / 256) - 1;
  const Access mine = kept(advanced(src, pos + 16 * lane));
  const auto load = [&](std::int32_t g) {
    return mine.peek16(512 * static_cast<std::uint64_t>(static_cast<std::uint32_t>(g)));
  };
  // The lines of 8 groups down to this one.
  constexpr std::int32_t kAhead = 8;
  const auto prefetch = [&](std::int32_t g) {
    const std::int32_t at = 512 * g - 128 * static_cast<std::int32_t>(lane);
    if (at >= 0) src.prefetch(pos + static_cast<std::uint64_t>(at));
  };
  const auto look_up = [&](uint4 v, uint2(&symbols)[8]) {
    const std::uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t shifted = w[i] << 1;  // exponents are bytes 1 and 3
      symbols[2 * i] = load_shared8(__dp4a(shifted, 0x800u, lut));
      symbols[2 * i + 1] = load_shared8(__dp4a(shifted, 0x8000000u, lut));
    }
  };
  const auto push = [&](std::int32_t g, uint4 v, const uint2(&symbols)[8]) {
    unsigned any_escape = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) any_escape |= symbols[i].y;
    const unsigned holders = __ballot_sync(kAll, any_escape & 128);
    if (holders == 0) return;
    unsigned flags = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) flags |= (symbols[i].y >> 7 & 1) << i;
    if (g >= num_full || __any_sync(kAll, (flags & (flags - 1)) != 0)) {
      num_escapes += push_escaped(v, static_cast<std::int32_t>(n) - 256 * g, lut, escapes_end,
                                  num_escapes, max_escapes);
    } else {
      // Most often: no lane has more than one.
      const std::uint32_t pair =
          flags & 0x0F ? (flags & 0x03 ? v.x : v.y) : (flags & 0x30 ? v.z : v.w);
      const std::uint32_t exponent = pair >> (flags & 0x55 ? 7 : 23);
      num_escapes += static_cast<std::uint32_t>(__popc(holders));
      if (flags != 0 && num_escapes <= max_escapes)
        *(escapes_end - num_escapes + __popc(holders & ~coder.lanes_from)) =
            static_cast<std::uint8_t>(exponent);
    }
    if (num_escapes > max_escapes) words_low = kNoRoom;
  };
  prefetch(group);
  prefetch(group - kAhead);
  uint4 a, b, c;
  if (group >= num_full)
    a = load_last_group(
        src, pos + 16 * lane + 512 * static_cast<std::uint64_t>(group),
        static_cast<std::int32_t>(n) - 256 * group - 8 * static_cast<std::int32_t>(lane),
        commonest);
  else
    a = load(group);
  b = group > 0 ? load(group - 1) : a;
  c = group > 1 ? load(group - 2) : a;
  uint2 sa[8], sb[8];
  look_up(a, sa);
  // sa are the symbols of a, the values of `group`. While they are coded those of b, the
  // group below, are looked up; c is on its way, and what is below that is asked for.
#pragma unroll 1
  for (; group >= 4; group -= 2) {
    if ((group & 6) == 0) prefetch(group - kAhead - 2);
    push(group, a, sa);
    a = load(group - 3);
    coder.code_group(sa, [&] { look_up(b, sb); });
    push(group - 1, b, sb);
    const uint4 below = load(group - 4);
    coder.code_group(sb, [&] { look_up(c, sa); });
    b = a;
    a = c;
    c = below;
    if (coder.end < words_low) return {kNoRoom, 0, 0};
  }
#pragma unroll 1
  for (; group >= 0; --group) {
    if (coder.end < words_at + 256) return {kNoRoom, 0, 0};
    if (group > 0) look_up(b, sb);
    push(group, a, sa);
    coder.code_group(sa, [] {});
    a = b;
    b = c;
    if (group >= 3) c = load(group - 3);
#pragma unroll
    for (int i = 0; i < 8; ++i) sa[i] = sb[i];
  }
  if (coder.end < words_at + 256) return {kNoRoom, 0, 0};
  coder.put_words();
  __syncwarp();
  if (num_escapes > max_escapes) return {kNoRoom, 0, 0};
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
    CodedStream coded, EncodeSmem* smem) {
  const unsigned lane = lane_id();
  uint4* out = reinterpret_cast<uint4*>(payload);
  std::uint64_t sum = 0;
  const auto low_vecs = static_cast<std::uint32_t>(align16(n) / 16);
  // Header, states and table take shape where the histogram was.
  std::uint32_t* head = smem->histogram;
  if (lane == 0) {
    head[0] = coded.num_words;
    head[1] = coded.num_escapes;
    head[2] = 32 | palette.size << 16;
    head[3] = 0;
  }
  head[4 + lane] = coded.state;
  auto* table = reinterpret_cast<std::uint8_t*>(head) + codec::kTableOffset;
  if (lane < 16) {
    table[lane] = static_cast<std::uint8_t>(palette.value);
    table[16 + lane] = static_cast<std::uint8_t>(palette.freq);
  }
  __syncwarp();
  constexpr unsigned kHeadVecs = kSectionHeadBytes / 16;
  if (lane < kHeadVecs) {
    const uint4 v = load_shared16(shared_address(head) + 16 * lane);
    __stcs(out + low_vecs + lane, v);
    sum += checksum_term(v, low_vecs + lane);
  }
  // The escapes move to the words, and zeros behind them.
  std::uint8_t* words_end = smem->rest() + words_room(block_elems);
  const std::uint8_t* escapes = words_end + escapes_room(block_elems) - coded.num_escapes;
#pragma unroll 1
  for (std::uint32_t base = 0; base < coded.num_escapes + 16; base += kWarp) {
    const std::uint32_t i = base + lane;
    const std::uint8_t byte = i < coded.num_escapes ? escapes[i] : 0;
    __syncwarp();
    if (i < coded.num_escapes + 16) words_end[i] = byte;
    __syncwarp();
  }
  const std::uint32_t word_bytes = 2 * coded.num_words, all_bytes = word_bytes + coded.num_escapes;
  const std::uint32_t first_vec = low_vecs + kHeadVecs;
  // Words are at even addresses: whole registers, or registers shifted by half.
  const std::uint32_t start = shared_address(words_end) - word_bytes, odd = (start & 2) * 8;
#pragma unroll 2
  for (std::uint32_t i = lane; 16 * i < all_bytes; i += kWarp) {
    std::uint32_t w[5];
#pragma unroll
    for (unsigned k = 0; k < 5; ++k) w[k] = load_shared_u32((start & ~3u) + 16 * i + 4 * k);
    const uint4 v = {__funnelshift_r(w[0], w[1], odd), __funnelshift_r(w[1], w[2], odd),
                     __funnelshift_r(w[2], w[3], odd), __funnelshift_r(w[3], w[4], odd)};
    __stcs(out + first_vec + i, v);
    sum += checksum_term(v, first_vec + i);
  }
  return sum;
}

}  // namespace snug::cuda
