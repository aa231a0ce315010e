// codec/cuda/decode_any_block/decode_planes.cuh - one warp restores one entropy block of any type
// and layout. Coded planes are decoded one after the other; the last one is merged with the others
// as it is decoded. The planes before it are parked at the end of the block's own place in the
// tensor, which the merge overwrites only after reading them.
#pragma once
#include "codec/cuda/decode_any_block/escape_patch.cuh"
#include "codec/cuda/decode_entropy_bytes/byte_rows.cuh"
#include "codec/cuda/decode_entropy_bytes/byte_tables.cuh"
#include "codec/cuda/decode_entropy_exponent/decode_palette.cuh"

namespace snug::cuda {

// Shared memory of one warp that decodes streams.
struct DecodeSmem {
  RowTables tables;
  alignas(16) u8 small[StreamRoom::kSmall];

  __device__ __forceinline__ StreamRoom room() const {
    return {shared_address(tables.first), shared_address(tables.rows), shared_address(small)};
  }
};

// Where a plane comes from. kOwn, the plane that is being decoded, loads nothing; so do planes that
// have not been checked yet.
enum class PlaneKind : u8 { kOwn, kRaw, kConstant, kParked };

// Merges the planes of one block into elements.
template <class Access, int kWidth>
struct PlaneMerger {
  Access dst;
  u64 pos;  // of the block in the tensor
  const u8* payload;
  u32 n;
  bool rotate;
  PlaneKind kind[kWidth];
  u32 at[kWidth];  // raw: offset; constant: the byte, four times; parked: number
  u32 num_parked;

  // Parked planes: groups of 256 values, the planes of a group side by side.
  __device__ __forceinline__ u64 parking(u32 number, u32 value) const {
    const u32 first = value & ~255u, size = n - first < 256 ? n - first : 256;
    return pos + u64{kWidth - num_parked} * n + u64{num_parked} * first + number * size +
           (value - first);
  }
  __device__ __forceinline__ bool is_even() const { return n % 16 == 0; }

  template <int kWords>
  __device__ __forceinline__ void park(u32 number, u32 value, const u32 (&bytes)[kWords]) const {
    if (value >= n) return;
    if (is_even())
      store_words<kWords>(dst, parking(number, value), bytes);
    else
      store_some<kWords>(dst, parking(number, value), by_value(bytes),
                         static_cast<i32>(min(n - value, 4u * kWords)));
  }

  // The planes of four values from `value` on, except the own one.
  __device__ __forceinline__ void fetch(u32 value, u32 (&planes)[kWidth]) const {
#pragma unroll
    for (int p = 0; p < kWidth; ++p) {
      planes[p] = at[p];
      if (value >= n) continue;
      if (kind[p] == PlaneKind::kRaw)
        planes[p] = __ldcs(reinterpret_cast<const u32*>(payload + at[p] + value));
      else if (kind[p] == PlaneKind::kParked)
        planes[p] = fetch_parked(p, value);
    }
  }
  __device__ __forceinline__ u32 fetch_parked(int p, u32 value) const {
    const u64 from = parking(at[p], value);
    if (is_even()) return dst.template peek<u32>(from);
    return load_some<1>(dst, from, static_cast<i32>(min(n - value, 4u))).w[0];
  }

  // Merges and stores 4 * kQuads values from `value` on.
  template <int kQuads>
  __device__ __forceinline__ void put(u32 value, const u32 (&planes)[kQuads][kWidth]) const {
    u32 words[kQuads * kWidth];
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      u32 out[kWidth];
      merge_planes<kWidth>(planes[q], out);
      if (rotate) rotate_back<kWidth>(out);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) words[q * kWidth + i] = out[i];
    }
    const u64 to = pos + u64{value} * kWidth;
    if (value + 4 * kQuads <= n)
      store_words<kQuads * kWidth>(dst, to, words);
    else if (value < n)
      store_some<kQuads * kWidth>(dst, to, by_value(words), static_cast<i32>((n - value) * kWidth));
  }
};

// Decodes a plane of bytes: parks it as `number`, or with kMergeNow merges it as plane `own`.
inline constexpr u32 kMergeNow = ~0u;

template <class Access, int kWidth>
__device__ __noinline__ bool decode_byte_plane(const PlaneMerger<Access, kWidth>& by_reference,
                                               ByteSection section, unsigned own, u32 number,
                                               StreamRoom room) {
  const PlaneMerger<Access, kWidth> merger = by_reference;  // in registers
  const unsigned lane = lane_id();
  WordRing<uint2> words(merger.payload, section.words_at / 8, section.end / 8);
  const unsigned lanes_below = lanes_below_mask();
  u32 x = stored_state(room.ring);
  u32 planes[1][kWidth], ahead[kWidth];
  merger.fetch(4 * lane, ahead);
  for (u32 value = 4 * lane; value - 4 * lane < merger.n; value += 128) {
#pragma unroll
    for (int p = 0; p < kWidth; ++p) planes[0][p] = ahead[p];
    if (number == kMergeNow) merger.fetch(value + 128, ahead);
    u32 next = words.refill(room.ring, [](uint2, u32) {});
    const u32 start = next;
    u32 bytes[1];
    bytes[0] = decode_byte(x, room, next, lanes_below);
    bytes[0] |= decode_byte(x, room, next, lanes_below) << 8;
    bytes[0] |= decode_byte(x, room, next, lanes_below) << 16;
    bytes[0] |= decode_byte(x, room, next, lanes_below) << 24;
    words.consumed += next - start;
    if (number == kMergeNow) {
#pragma unroll
      for (unsigned p = 0; p < kWidth; ++p) planes[0][p] = p == own ? bytes[0] : planes[0][p];
      merger.template put<1>(value, planes);
    } else {
      merger.template park<1>(number, value, bytes);
    }
  }
  return __all_sync(kAllLanes, x == kStateLow && words.consumed == 2 * section.num_words);
}

// The same for a palette plane.
template <class Access, int kWidth>
__device__ __noinline__ bool decode_palette_plane(const PlaneMerger<Access, kWidth>& by_reference,
                                                  PaletteSection section, unsigned own, u32 number,
                                                  StreamRoom room) {
  const PlaneMerger<Access, kWidth> merger = by_reference;
  const unsigned lane = lane_id();
  const u32 n = merger.n;
  WordRing<uint4> words(merger.payload, section.first_vec, section.end_vec);
  const unsigned lanes_below = lanes_below_mask();
  u32 x = section.state;
  const u8* escapes = merger.payload + section.escapes_at;
  EscapeWindow window{0, 0, lane < section.num_escapes ? __ldg(escapes + lane) : 0u};
  u32 ahead[2][kWidth];
  merger.fetch(8 * lane, ahead[0]);
  merger.fetch(8 * lane + 4, ahead[1]);
  for (u32 first = 0; first < n; first += kGroupElems) {
    const u32 value = first + 8 * lane;
    u32 planes[2][kWidth];
#pragma unroll
    for (int p = 0; p < 2 * kWidth; ++p)
      planes[p / kWidth][p % kWidth] = ahead[p / kWidth][p % kWidth];
    if (number == kMergeNow) {
      merger.fetch(value + kGroupElems, ahead[0]);
      merger.fetch(value + kGroupElems + 4, ahead[1]);
    }
    u32 next = words.refill(room.ring, [](uint4, u32) {});
    const u32 start = next;
    u32 p0 = decode_pair(x, room.slots, next, lanes_below);
    u32 p1 = decode_pair(x, room.slots, next, lanes_below);
    u32 p2 = decode_pair(x, room.slots, next, lanes_below);
    u32 p3 = decode_pair(x, room.slots, next, lanes_below);
    words.consumed += next - start;
    if (__any_sync(kAllLanes, (p0 | p1 | p2 | p3) & 0x00010001u)) {
      const Patched r =
          patch_escapes(p0, p1, p2, p3, escapes, section.num_escapes, n - first, window);
      window = r.window;
      p0 = r.pairs[0];
      p1 = r.pairs[1];
      p2 = r.pairs[2];
      p3 = r.pairs[3];
    }
    const u32 bytes[2] = {__byte_perm(p0, p1, 0x7531), __byte_perm(p2, p3, 0x7531)};
    if (number == kMergeNow) {
#pragma unroll
      for (unsigned p = 0; p < kWidth; ++p) {
        planes[0][p] = p == own ? bytes[0] : planes[0][p];
        planes[1][p] = p == own ? bytes[1] : planes[1][p];
      }
      merger.template put<2>(value, planes);
    } else {
      merger.template park<2>(number, value, bytes);
    }
  }
  const bool intact = words.consumed == 2 * section.num_words && window.used == section.num_escapes;
  return __all_sync(kAllLanes, intact && x == kStateLow);
}

// Decodes the section at `at`, and moves `at` to its end.
template <class Access, int kWidth>
__device__ Reason decode_section(const PlaneMerger<Access, kWidth>& merger, u32 num_bytes,
                                 bool is_palette, unsigned own, u32 number, StreamRoom room,
                                 u32& at) {
  const u8* payload = merger.payload;
  const u32 n = merger.n;
  u64 unused_sum = 0;
  __syncwarp();
  if (is_palette) {
    PaletteSection section;
    if (!open_palette_section(payload, at, num_bytes, n, room.slots, room.ring, unused_sum,
                              section))
      return kReasonPayload;
    at = section.end_vec * 16;
    return decode_palette_plane(merger, section, own, number, room) ? kReasonNone : kReasonStream;
  }
  ByteSection section;
  if (!open_byte_section(payload, at, num_bytes, n, room.ring, unused_sum, section) ||
      !read_byte_tables(section.table_bytes, room))
    return kReasonPayload;
  at = section.end;
  return decode_byte_plane(merger, section, own, number, room) ? kReasonNone : kReasonStream;
}

template <int kWidth, class Access>
__device__ __noinline__ Reason decode_entropy_planes(const u8* payload, DeviceEntry e, u32 n,
                                                     DType dtype, Access dst, u64 pos,
                                                     StreamRoom room) {
  if (kWidth < 8 && e.plane_modes >> (2 * kWidth) != 0) return kReasonPayload;
  PlaneMerger<Access, kWidth> merger{dst, pos, payload, n, has_sign_bit(dtype), {}, {}, 0};
  u32 at = 0, num_coded = 0, last = kWidth;
  for (unsigned p = 0; p < kWidth; ++p) {
    if (e.codes(p)) {
      ++num_coded;
      last = p;
    }
    if (!e.has(p, PlaneMode::kRaw)) continue;
    merger.kind[p] = PlaneKind::kRaw;
    merger.at[p] = at;
    if (align16(n) > e.num_bytes - at) return kReasonPayload;
    at += static_cast<u32>(align16(n));
  }
  merger.num_parked = num_coded == 0 ? 0 : num_coded - 1;
  u32 number = 0;
  for (unsigned p = 0; p < kWidth; ++p) {
    if (e.has(p, PlaneMode::kConstant)) {
      if (e.num_bytes - at < 16) return kReasonPayload;
      merger.kind[p] = PlaneKind::kConstant;
      merger.at[p] = payload[at] * 0x01010101u;
      at += 16;
    } else if (e.codes(p)) {
      merger.kind[p] = PlaneKind::kOwn;
      // Constants may follow the last coded plane: the merge needs them.
      u32 after = at;
      if (p == last) {
        if (e.num_bytes - at < codec::kTableOffset) return kReasonPayload;
        u32 tail = 0;
        for (unsigned q = p + 1; q < kWidth; ++q) tail += e.has(q, PlaneMode::kConstant) ? 16 : 0;
        if (tail > e.num_bytes) return kReasonPayload;
        u32 from = e.num_bytes - tail;
        for (unsigned q = p + 1; q < kWidth; ++q) {
          if (!e.has(q, PlaneMode::kConstant)) continue;
          merger.kind[q] = PlaneKind::kConstant;
          merger.at[q] = payload[from] * 0x01010101u;
          from += 16;
        }
      }
      const Reason reason = decode_section(merger, e.num_bytes, e.has(p, PlaneMode::kPalette), p,
                                           p == last ? kMergeNow : number, room, after);
      if (reason != kReasonNone) return reason;
      at = after;
      merger.kind[p] = PlaneKind::kParked;
      merger.at[p] = number++;
      __syncwarp();
    }
  }
  if (at != e.num_bytes) return kReasonPayload;
  if (num_coded != 0) return kReasonNone;
  for (u32 value = 4 * lane_id(); value < n; value += 128) {
    u32 planes[1][kWidth];
    merger.fetch(value, planes[0]);
    merger.template put<1>(value, planes);
  }
  return kReasonNone;
}

}  // namespace snug::cuda
