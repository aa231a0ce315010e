// codec/cuda/encode_entropy_bf16/encode_palette.cuh - one warp codes one BF16 block: exponents as a
// palette stream, the other bits raw. The coded exponents wait in shared memory until their place
// in the frame is known; then the block is read again for the raw plane.
#pragma once
#include "codec/cuda/encode_entropy_bf16/pair_coder.cuh"
#include "codec/cuda/encode_entropy_bf16/palette_sample.cuh"

namespace snug::cuda {

inline constexpr u32 kSectionHeadBytes = codec::kTableOffset + 32;
inline constexpr u32 kNoRoom = ~0u;

// Room for words (3.5 bits a value and one more group), escapes (1/32 byte a value), both filled
// from the end down, and 16 bytes of zeros.
__host__ __device__ constexpr u32 words_room(u32 block_elems) { return block_elems / 16 * 7 + 256; }
__host__ __device__ constexpr u32 escapes_room(u32 block_elems) { return block_elems / 32; }
__host__ __device__ constexpr u32 coded_room(u32 block_elems) {
  return words_room(block_elems) + escapes_room(block_elems) + 16;
}

// Stores the escaped exponents of a group, in order, below `used` bytes from the end; returns how
// many. Stores none if they exceed `room`. Bit i of `flags`: the lane's value i is an escape.
inline __device__ __noinline__ u32 push_exponents(uint4 v, unsigned flags, u8* escapes_end,
                                                  u32 used, u32 room) {
  const unsigned lane = lane_id();
  const unsigned holders = __ballot_sync(kAllLanes, flags != 0);
  u32 before = __popc(holders & ((1u << lane) - 1)), total = __popc(holders);
  if (__any_sync(kAllLanes, (flags & (flags - 1)) != 0)) {
    const u32 count = __popc(flags);
    before = warp_inclusive_sum(count);
    total = __shfl_sync(kAllLanes, before, 31);
    before -= count;
  }
  if (used + total <= room) {
    u8* at = escapes_end - used - total + before;
#pragma unroll 1
    for (; flags != 0; flags &= flags - 1) {
      const int i = __ffs(static_cast<int>(flags)) - 1;
      const u32 word = i < 4 ? (i < 2 ? v.x : v.y) : (i < 6 ? v.z : v.w);
      *at++ = static_cast<u8>(word >> (i % 2 * 16 + 7));
    }
  }
  __syncwarp();
  return total;
}

// The last group of a block: values past the end get the commonest exponent.
template <class Access>
__device__ __noinline__ uint4 load_last_group(Access src, u64 at, i32 num_values, u32 commonest) {
  const uint4 v = load_upto16(src, at, 2 * num_values);
  u32 words[4] = {v.x, v.y, v.z, v.w};
  const u32 pad = commonest << 7 | commonest << 23;
#pragma unroll
  for (i32 i = 0; i < 4; ++i) {
    if (2 * i >= num_values)
      words[i] = pad;
    else if (2 * i + 1 >= num_values)
      words[i] = (words[i] & 0xFFFF) | (pad & 0xFFFF0000u);
  }
  return {words[0], words[1], words[2], words[3]};
}

// push_exponents for a group with num_values in the block. Rarely called: it reads the flags from
// the table again, which saves registers in the loop.
inline __device__ __noinline__ u32 push_escaped(uint4 v, i32 num_values, u32 lut, u8* escapes_end,
                                                u32 used, u32 room) {
  const u32 w[4] = {v.x, v.y, v.z, v.w};
  unsigned flags = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    flags |= (load_shared_b64(lut + (w[i] >> 4 & 0x7F8)).y >> 7 & 1) << 2 * i;
    flags |= (load_shared_b64(lut + (w[i] >> 20 & 0x7F8)).y >> 7 & 1) << (2 * i + 1);
  }
  const i32 here = num_values - 8 * static_cast<i32>(lane_id());
  if (here < 8) flags &= here > 0 ? (1u << here) - 1 : 0;
  return push_exponents(v, flags, escapes_end, used, room);
}

// The lanes that have an escape. In assembly: the compiler would use more instructions.
__device__ __forceinline__ unsigned escape_holders(u32 any_symbol) {
  unsigned holders;
  asm volatile(
      "{\n\t.reg .pred p;\n\t.reg .b32 flag;\n\t"
      "and.b32 flag, %1, 128;\n\tsetp.ne.u32 p, flag, 0;\n\t"
      "vote.sync.ballot.b32 %0, p, 0xFFFFFFFF;\n\t}"
      : "=r"(holders)
      : "r"(any_symbol));
  return holders;
}

// Prefetches the end of a block, which is coded first.
template <class Access>
__device__ __forceinline__ void prefetch_end(const Access& src, u64 pos, u32 n) {
  constexpr u32 kLines = 2;  // a lane
#pragma unroll
  for (u32 i = 0; i < kLines; ++i) {
    const i64 at = 2 * i64{n} - 128 * i64{i * kWarpSize + lane_id() + 1};
    if (at >= 0) src.prefetch(pos + static_cast<u64>(at));
  }
}

// Codes the exponents from the last group to the first into `room`. num_words is kNoRoom if they do
// not fit. kWhole: all groups are full, and their number is even.
template <bool kWhole, class Access>
__device__ __noinline__ CodedStream encode_palette_bf16(Access src, u64 pos, u32 n, u32 block_elems,
                                                        u32 commonest, EncodeSmem* smem, u8* room) {
  const unsigned lane = lane_id();
  const u32 lut = kept_shared_address(smem->lut);
  const u32 words_at = shared_address(room), words_end = words_at + words_room(block_elems);
  const u32 max_escapes = escapes_room(block_elems);
  u8* const escapes_end = room + words_room(block_elems) + max_escapes;
  u32 words_low = words_at + 512;  // two groups take at most this
  PairCoder coder(words_end);
  u32 num_escapes = 0;
  const auto num_full = static_cast<i32>(n / 256);
  auto group = static_cast<i32>((n + 255) / 256) - 1;
  const Access mine = keep_in_register(advanced(src, pos + 16 * lane));
  // Prefetches the lines of 8 groups down to this one.
  constexpr i32 kAhead = 8;
  const auto prefetch = [&](i32 g) {
    const i32 at = 512 * g + 384 - 128 * static_cast<i32>(lane);
    if (at >= 0) src.prefetch(pos + static_cast<u64>(at));
  };
  const auto look_up = [&](uint4 v, uint2(&symbols)[8]) {
    const u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 shifted = w[i] << 1;  // exponents are bytes 1 and 3
      symbols[2 * i] = load_shared_b64(__dp4a(shifted, 0x800u, lut));
      symbols[2 * i + 1] = load_shared_b64(__dp4a(shifted, 0x8000000u, lut));
    }
  };
  const auto push = [&](i32 g, uint4 v, const uint2(&symbols)[8]) {
    unsigned any_escape = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) any_escape |= symbols[i].y;
    const unsigned holders = escape_holders(any_escape);
    if (holders == 0) return;
    unsigned flags = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) flags |= (symbols[i].y >> 7 & 1) << i;
    if ((!kWhole && g >= num_full) || __any_sync(kAllLanes, (flags & (flags - 1)) != 0)) {
      num_escapes += push_escaped(v, static_cast<i32>(n) - 256 * g, lut, escapes_end, num_escapes,
                                  max_escapes);
    } else {
      // Common case: no lane has more than one.
      const u32 pair = flags & 0x0F ? (flags & 0x03 ? v.x : v.y) : (flags & 0x30 ? v.z : v.w);
      const u32 exponent = pair >> (flags & 0x55 ? 7 : 23);
      num_escapes += static_cast<u32>(__popc(holders));
      if (flags != 0 && num_escapes <= max_escapes)
        *(escapes_end - num_escapes + __popc(holders & ~coder.lanes_from)) =
            static_cast<u8>(exponent);
    }
    if (num_escapes > max_escapes) words_low = kNoRoom;
  };
  // Groups pass through a ring in shared memory.
  const u32 ring = shared_address(smem->ring) + 16 * lane;
  const auto ring_at = [&](i32 g) { return ring + 512 * (static_cast<unsigned>(g) % kRingGroups); };
  const auto fetch = [&](i32 g) {
    if (g >= 0 && (kWhole || g < num_full))
      mine.fetch16(512 * static_cast<u64>(static_cast<u32>(g)), ring_at(g));
    commit_copies();
  };
  const auto take = [&](i32 g) {
    wait_copies<kRingGroups - 1>();
    const uint4 v = load_shared_b128(ring_at(g));
    fetch(g - static_cast<i32>(kRingGroups));
    return v;
  };
#pragma unroll
  for (unsigned i = 0; i < kRingGroups; ++i) fetch(group - static_cast<i32>(i));
  uint4 a = take(group), b;
  if (!kWhole && group >= num_full)
    a = load_last_group(src, pos + 16 * lane + 512 * static_cast<u64>(group),
                        static_cast<i32>(n) - 256 * group - 8 * static_cast<i32>(lane), commonest);
  uint2 sa[8], sb[8];
  look_up(a, sa);
  // sa are the symbols of a, the values of `group`. While they are coded, those of b, the group
  // below, are looked up. Below the first group values are undefined.
#pragma unroll 1
  for (; group >= 1; group -= 2) {
    if ((group & 6) == 0) prefetch(group - kAhead - 2);
    push(group, a, sa);
    coder.code_group(sa, [&] {
      b = take(group - 1);
      look_up(b, sb);
    });
    push(group - 1, b, sb);
    coder.code_group(sb, [&] {
      a = take(group - 2);
      look_up(a, sa);
    });
    if (coder.end < words_low) return {kNoRoom, 0, 0};
  }
  if (!kWhole && group == 0) {
    push(group, a, sa);
    coder.code_group(sa, [] {});
  }
  if (coder.end < words_at + 256) return {kNoRoom, 0, 0};
  coder.put_words();
  __syncwarp();
  if (num_escapes > max_escapes) return {kNoRoom, 0, 0};
  return {(words_end - coder.end) / 2, num_escapes, coder.x};
}

__device__ inline u32 palette_section_bytes(u32 num_words, u32 num_escapes) {
  return static_cast<u32>(align16(kSectionHeadBytes + 2 * num_words + num_escapes));
}

// The raw plane: low bytes of all values. Returns this lane's checksum terms.
template <class Access>
__device__ __noinline__ u64 write_low_plane(Access src, u64 pos, u32 n, u8* payload) {
  u64 sum = 0;
  u32 i = lane_id();
  // Batches of vectors; each vector is loaded when that of the previous batch is used.
  constexpr unsigned kBatch = 8;
  const auto has_batch = [&](u32 first) { return first + (kBatch - 1) * kWarpSize < n / 8; };
  if (has_batch(i)) {
    uint4 v[kBatch];
#pragma unroll
    for (unsigned u = 0; u < kBatch; ++u) v[u] = src.load16(pos + 16 * u64{i + u * kWarpSize});
    // The factor of an even word is odd without | 1.
    u32 factor = 2 * i * frame::kChecksumStep + frame::kChecksumStart;
    bool more;
#pragma unroll 1
    do {
      const u32 next = i + kBatch * kWarpSize;
      more = has_batch(next);
#pragma unroll
      for (unsigned u = 0; u < kBatch; ++u) {
        const uint2 low = low_bytes(v[u]);
        if (more) v[u] = src.load16(pos + 16 * u64{next + u * kWarpSize});
        __stcs(reinterpret_cast<uint2*>(payload) + i + u * kWarpSize, low);
        sum = mad_wide(low.x, factor, sum);
        sum = mad_wide(low.y, factor + frame::kChecksumStep + 1, sum);
        factor += 2 * kWarpSize * frame::kChecksumStep;
      }
      i = next;
    } while (more);
  }
#pragma unroll 1
  for (; 8 * i < align16(n); i += kWarpSize) {
    const uint2 low =
        low_bytes(load_upto16(src, pos + 16 * u64{i}, 2 * (static_cast<i64>(n) - 8 * i64{i})));
    __stcs(reinterpret_cast<uint2*>(payload) + i, low);
    sum += checksum_term(low.x, 2 * i) + checksum_term(low.y, 2 * i + 1);
  }
  return sum;
}

// Header, states and table of a section.
struct alignas(16) SectionHead {
  u32 num_words, num_escapes, sizes, zero;
  u32 states[kWarpSize];
  u8 values[16], freqs[16];

  __device__ __forceinline__ u32 section_bytes() const {
    return palette_section_bytes(num_words, num_escapes);
  }
  __device__ __forceinline__ void fill(const DevicePalette& palette, const CodedStream& coded) {
    const unsigned lane = lane_id();
    if (lane == 0) {
      num_words = coded.num_words;
      num_escapes = coded.num_escapes;
      sizes = 32 | palette.size << 16;
      zero = 0;
    }
    states[lane] = coded.state;
    if (lane < 16) {
      values[lane] = static_cast<u8>(palette.value);
      freqs[lane] = static_cast<u8>(palette.freq);
    }
    __syncwarp();
  }
};
static_assert(sizeof(SectionHead) == kSectionHeadBytes);

// Head, words and escapes behind `done` bytes of the payload.
inline __device__ __noinline__ u64 write_palette_section(u8* payload, u32 done, u32 block_elems,
                                                         const SectionHead* head, u8* room) {
  const unsigned lane = lane_id();
  uint4* out = reinterpret_cast<uint4*>(payload);
  u64 sum = 0;
  const u32 num_words = head->num_words, num_escapes = head->num_escapes;
  const u32 low_vecs = done / 16;
  constexpr unsigned kHeadVecs = kSectionHeadBytes / 16;
  if (lane < kHeadVecs) {
    const uint4 v = load_shared_b128(shared_address(head) + 16 * lane);
    __stcs(out + low_vecs + lane, v);
    sum += checksum_term(v, low_vecs + lane);
  }
  // Moves the escapes to the end of the words, and appends zeros.
  u8* words_end = room + words_room(block_elems);
  const u8* escapes = words_end + escapes_room(block_elems) - num_escapes;
#pragma unroll 1
  for (u32 base = 0; base < num_escapes + 16; base += kWarpSize) {
    const u32 i = base + lane;
    const u8 byte = i < num_escapes ? escapes[i] : 0;
    __syncwarp();
    if (i < num_escapes + 16) words_end[i] = byte;
    __syncwarp();
  }
  const u32 word_bytes = 2 * num_words, all_bytes = word_bytes + num_escapes;
  const u32 first_vec = low_vecs + kHeadVecs;
  // Words are 2-byte aligned: registers are shifted by 0 or 16 bits.
  const u32 start = shared_address(words_end) - word_bytes, odd = (start & 2) * 8;
#pragma unroll 2
  for (u32 i = lane; 16 * i < all_bytes; i += kWarpSize) {
    u32 w[5];
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
