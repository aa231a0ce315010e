// codec/cuda/decode_entropy_exponent/decode_palette.cuh - one warp restores one block whose top
// plane is a palette stream (codec/entropy/rans.h) and whose other planes are raw: BF16 and F32 as
// encoders mostly write them.
#pragma once
#include "codec/cuda/decode_entropy_exponent/palette_escapes.cuh"
#include "codec/cuda/decode_entropy_exponent/palette_stream.cuh"
#include "codec/cuda/frame/decode_frame.cuh"
#include "codec/cuda/frame/plane_merge.cuh"

namespace snug::cuda {

// The raw bytes of the 8 values that a lane merges, plane by plane.
template <int kWidth>
struct LowBytes {
  uint2 plane[kWidth - 1];
};

// The first of those values. BF16: a lane merges the values that it decodes. F32: two lanes
// exchange halves, so that each store fills whole sectors: four values from the first one on, and
// four from kSecondMerged values later on.
template <int kWidth>
__device__ __forceinline__ u32 first_merged() {
  const unsigned lane = lane_id();
  return kWidth == 2 ? 8 * lane : 8 * (lane & ~1u) + 4 * (lane & 1u);
}
template <int kWidth>
inline constexpr u32 kSecondMerged = kWidth == 2 ? 4 : 8;

// Shared memory of one warp, behind its SlotTable. Raw bytes are loaded in pieces of two groups;
// all pieces but one are in flight.
template <int kWidth, bool kAhead>
struct alignas(16) PaletteRoom {
  static constexpr u32 kPiece = 2 * kGroupElems, kPieceBytes = (kWidth - 1) * kPiece;
  static constexpr unsigned kPieces = kWidth == 2 ? 4 : 2;

  u8 ring[PaletteStream<kAhead>::kRoom];
  u8 lows[kPieces][kPieceBytes];
  u8 escapes[EscapeBytes<true>::kRoom];
  u32 num_words, num_escapes, escapes_at;  // used at the end: saves registers
};

// Two values: the bits of the low plane, mantissas with the sign lowest, go to both sides of the
// exponents, which are in place. `bytes` is m0 s0 m1 s1 with stray bits.
__device__ __forceinline__ u32 merge_bf16(u32 pair, u32 bytes) {
  u32 merged;  // one step; the compiler takes two
  asm("lop3.b32 %0, %1, %2, 0x807F807F, 0xD8;" : "=r"(merged) : "r"(pair), "r"(bytes));
  return merged;
}

// The 8 values that a lane stores.
template <int kWidth>
__device__ __forceinline__ void merge_group(const u32 (&pairs)[4], const LowBytes<kWidth>& lows,
                                            uint4 (&out)[kWidth / 2]) {
  if constexpr (kWidth == 2) {
    const uint2 low = lows.plane[0];
    const auto first_two = [](u32 v) { return __byte_perm(v << 7, 0, 0x1201); };
    const auto last_two = [](u32 v) { return __byte_perm(v >> 1, 0, 0x2312); };
    out[0] = {merge_bf16(pairs[0], first_two(low.x)), merge_bf16(pairs[1], last_two(low.x)),
              merge_bf16(pairs[2], first_two(low.y)), merge_bf16(pairs[3], last_two(low.y))};
  } else {
    const bool is_odd = (lane_id() & 1) != 0;
    const u32 own[2] = {__byte_perm(pairs[0], pairs[1], 0x7531),
                        __byte_perm(pairs[2], pairs[3], 0x7531)};
    const u32 other = __shfl_xor_sync(kAllLanes, is_odd ? own[0] : own[1], 1);
    const u32 top[2] = {is_odd ? other : own[0], is_odd ? own[1] : other};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      u32 planes[4], words[4];
#pragma unroll
      for (int p = 0; p < 3; ++p) planes[p] = half == 0 ? lows.plane[p].x : lows.plane[p].y;
      planes[3] = top[half];
      merge_planes<4>(planes, words);
      rotate_back<4>(words);
      out[half] = {words[0], words[1], words[2], words[3]};
    }
  }
}

// Raw planes, prefetched through shared memory: for loads into registers the compiler would add
// moves, which wait for them.
template <int kWidth, bool kAhead>
struct LowPlanes {
  using Room = PaletteRoom<kWidth, kAhead>;
  const u8* payload;
  u32 part;        // bytes of a plane
  u32 room;        // address
  u32 piece = 0;   // offset in the room of the piece to read next
  u32 next = 0;    // first value of the next piece to copy
  u32 multiplier;  // checksum factor of a lane's first word

  __device__ __forceinline__ LowPlanes(const u8* block, u32 plane_bytes, u32 room_at)
      : payload(block),
        part(plane_bytes),
        room(room_at),
        multiplier(checksum_factor(first_merged<kWidth>() / 4)) {
#pragma unroll
    for (unsigned i = 0; i + 1 < Room::kPieces; ++i) copy_next(i * Room::kPieceBytes);
  }
  // Starts copying the next piece, up to the end. Evict-first for small tensors: the rest may then
  // stay in L2 (2 % of a call of 16 MiB; large ones would take 1 % longer).
  __device__ __forceinline__ void copy_next(u32 to) {
    const u32 mine = next + 16 * lane_id();
    if (mine < part) {
#pragma unroll
      for (int p = 0; p < kWidth - 1; ++p)
        copy_async_b128<kAhead>(room + to + p * Room::kPiece + 16 * lane_id(),
                                payload + (p * part + mine));
    }
    commit_copies();
    next += Room::kPiece;
  }
  // Waits for the next piece and returns the address of this lane's bytes in it; starts a copy to
  // where the previous piece was.
  __device__ __forceinline__ u32 take_piece() {
    constexpr u32 kEnd = Room::kPieces * Room::kPieceBytes;
    wait_copies<Room::kPieces - 2>();
    __syncwarp();
    const u32 here = room + piece + first_merged<kWidth>();
    copy_next(piece == 0 ? kEnd - Room::kPieceBytes : piece - Room::kPieceBytes);
    piece = piece + Room::kPieceBytes == kEnd ? 0 : piece + Room::kPieceBytes;
    return here;
  }
  __device__ __forceinline__ static LowBytes<kWidth> read(u32 at) {
    LowBytes<kWidth> lows;
#pragma unroll
    for (int p = 0; p < kWidth - 1; ++p) {
      const u32 here = at + p * Room::kPiece;
      if constexpr (kWidth == 2)
        lows.plane[p] = load_shared_b64(here);
      else
        lows.plane[p] = {load_shared_u32(here), load_shared_u32(here + kSecondMerged<kWidth>)};
    }
    return lows;
  }
  __device__ __forceinline__ void add_terms(const LowBytes<kWidth>& lows, u64& sum) {
    constexpr u32 kSecond =
        kWidth == 2 ? kNextFactor : kSecondMerged<kWidth> / 4 * frame::kChecksumStep;
#pragma unroll
    for (int p = 0; p < kWidth - 1; ++p) {
      const u32 m = multiplier + p * (part / 4) * frame::kChecksumStep;
      sum = mad_wide(lows.plane[p].x, m, sum);
      sum = mad_wide(lows.plane[p].y, m + kSecond, sum);
    }
    multiplier += kGroupElems / 4 * frame::kChecksumStep;
  }
};

// `slots` is the address of a SlotTable with a PaletteRoom behind it. Inline: in a called function,
// 64-bit values end up in unaligned register pairs, and the loop moves them around.
template <int kWidth, bool kAhead, class Access>
__device__ __forceinline__ BlockResult decode_palette_block(const u8* payload, u32 num_bytes, u32 n,
                                                            Access dst, u64 pos, u32 slots) {
  using Room = PaletteRoom<kWidth, kAhead>;
  using Stream = PaletteStream<kAhead>;
  constexpr bool kInPlace = kWidth == 2;
  const unsigned lane = lane_id();
  const u32 room = slots + static_cast<u32>(sizeof(SlotTable));
  const u32 ring = room + offsetof(Room, ring);
  const auto part = static_cast<u32>(align16(n));
  const u32 section_at = (kWidth - 1) * part;
  const u32 words_at = section_at + codec::kTableOffset + 32;
  u64 sum = 0;
  if (num_bytes < words_at) return {kReasonPayload, 0};
  Stream stream(payload, words_at, num_bytes, slots, ring);
  LowPlanes<kWidth, kAhead> planes(payload, part, room + offsetof(Room, lows));
  PaletteSection section;
  constexpr unsigned kStepsAtOnce = kAhead ? 8 : 2;  // fewer warps have more registers
  if (!open_palette_section<kInPlace, kStepsAtOnce>(payload, section_at, num_bytes, n, slots, ring,
                                                    sum, section) ||
      section.end_vec * 16 != num_bytes) {
    wait_copies<0>();
    return {kReasonPayload, 0};
  }
  EscapeBytes<kInPlace> escapes(payload, num_bytes, room + offsetof(Room, escapes),
                                section.escapes_at);
  if (lane == 0) {
    store_shared(room + offsetof(Room, num_words), section.num_words);
    store_shared(room + offsetof(Room, num_escapes), section.num_escapes);
    store_shared(room + offsetof(Room, escapes_at), section.escapes_at);
  }
  stream.start(section.state);
  Access mine = advanced(dst, pos + kWidth * first_merged<kWidth>());
  constexpr u32 kSecondStore = kWidth * kSecondMerged<kWidth>;  // if there is one

  u32 a[4], b[4];
  uint4 out[kWidth / 2];
  // Merges and stores the group `before`, whose raw bytes are at low_at, while the next one is
  // decoded into `now`.
  const auto turn = [&](const u32(&before)[4], u32 low_at, u32(&now)[4], u32 at) {
    const LowBytes<kWidth> lows = planes.read(low_at);
    now[0] = stream.decode_two();
    planes.add_terms(lows, sum);
    merge_group<kWidth>(before, lows, out);
    now[1] = stream.decode_two();
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) mine.store16(at + kSecondStore * i, out[i]);
    now[2] = stream.decode_two();
    now[3] = stream.decode_two();
  };
  const auto patch = [&](u32(&pairs)[4], u32 num_values) {
    if (escapes.any(pairs)) escapes.patch(pairs, num_values, stream.lanes_below);
  };

  stream.refill(sum);
#pragma unroll
  for (int k = 0; k < 4; ++k) a[k] = stream.decode_two();
  wait_copies<0>();  // escapes, too
  u32 low_at = planes.take_piece();
  patch(a, n);
  u32 first = 0;
#pragma unroll 1
  while (first + 2 * kGroupElems < n) {
    stream.refill(sum);
    turn(a, low_at, b, 0);
    patch(b, kGroupElems);
    if constexpr (Stream::kGroups == 1) stream.refill(sum);
    turn(b, low_at + kGroupElems, a, kWidth * kGroupElems);
    first += 2 * kGroupElems;
    patch(a, n - first);
    low_at = planes.take_piece();
    mine = advanced(mine, 2 * kWidth * kGroupElems);
  }
  if (first + kGroupElems < n) {
    stream.refill(sum);
    turn(a, low_at, b, 0);
    first += kGroupElems;
    patch(b, n - first);
    low_at += kGroupElems;
    mine = advanced(mine, kWidth * kGroupElems);
#pragma unroll
    for (int k = 0; k < 4; ++k) a[k] = b[k];
  }
  const LowBytes<kWidth> lows = planes.read(low_at);
  if (first + first_merged<kWidth>() < part) planes.add_terms(lows, sum);
  merge_group<kWidth>(a, lows, out);
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) {
    const auto at = static_cast<i32>(kWidth * (first + first_merged<kWidth>()) + kSecondStore * i);
    const i32 left = static_cast<i32>(kWidth * n) - at;
    if (left >= 16)
      mine.store16(kSecondStore * i, out[i]);
    else if (left > 0)
      store_end(mine, kSecondStore * i, out[i], left);
  }
  wait_copies<0>();
  __syncwarp();
  const bool intact = stream.ends_well(load_shared_u32(room + offsetof(Room, num_words))) &&
                      escapes.next - load_shared_u32(room + offsetof(Room, escapes_at)) ==
                          load_shared_u32(room + offsetof(Room, num_escapes));
  sum += stream.terms_left();
  return {__all_sync(kAllLanes, intact) ? kReasonNone : kReasonStream, sum};
}

}  // namespace snug::cuda
