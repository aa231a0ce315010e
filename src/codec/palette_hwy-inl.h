// Vector bodies of the palette and fixed codec kernels: byte tables of 16 as
// shuffles. Escapes are rare and put right one by one.
#if defined(SNUG_CODEC_PALETTE_HWY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SNUG_CODEC_PALETTE_HWY_INL_H_
#undef SNUG_CODEC_PALETTE_HWY_INL_H_
#else
#define SNUG_CODEC_PALETTE_HWY_INL_H_
#endif

#include <bit>
#include <cstring>
#include <type_traits>

#include "codec/kernels_hwy-inl.h"

HWY_BEFORE_NAMESPACE();
namespace snug::codec {
namespace HWY_NAMESPACE {

// Batches of 64 bytes: their escapes fit in one 64-bit mask.
constexpr std::size_t kBatch = 64;
constexpr std::size_t kVecsPerBatch = kBatch / kVecBytes;

// As many bits as a byte vector has lanes.
using ByteMaskBits = std::conditional_t<kVecBytes == 32, std::uint32_t, std::uint16_t>;

HWY_INLINE std::uint64_t byte_mask_bits(hn::Mask<D8> mask) {
  std::uint8_t bytes[8];
  hn::StoreMaskBits(D8(), mask, bytes);
  ByteMaskBits bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
}

// A byte table cut into rows of 16, without the rows that hold `fill` alone:
// neighbouring exponents leave two or three.
struct Rows {
  std::size_t count = 0;
  std::uint8_t high_nibbles[16];  // of the bytes a row is for, in place
  const std::uint8_t* values[16];
  std::uint8_t fill;

  Rows(const std::uint8_t* lut, std::size_t num_rows, std::uint8_t fill_value) : fill(fill_value) {
    for (std::size_t row = 0; row < num_rows; ++row) {
      bool needed = false;
      for (std::size_t i = 0; i < 16; ++i) needed |= lut[16 * row + i] != fill;
      if (!needed) continue;
      high_nibbles[count] = static_cast<std::uint8_t>(row << 4);
      values[count++] = lut + 16 * row;
    }
  }
};

HWY_INLINE void look_up(const Rows& rows, const V8 (&in)[kVecsPerBatch], V8 (&out)[kVecsPerBatch]) {
  const D8 d8;
  const V8 low_nibble = hn::Set(d8, 0x0F);
  V8 low[kVecsPerBatch], high[kVecsPerBatch];
  for (std::size_t v = 0; v < kVecsPerBatch; ++v) {
    low[v] = hn::And(in[v], low_nibble);
    high[v] = hn::AndNot(low_nibble, in[v]);
    out[v] = hn::Set(d8, rows.fill);
  }
  for (std::size_t row = 0; row < rows.count; ++row) {
    const V8 values = hn::LoadDup128(d8, rows.values[row]);
    const V8 here = hn::Set(d8, rows.high_nibbles[row]);
    for (std::size_t v = 0; v < kVecsPerBatch; ++v)
      out[v] = hn::IfThenElse(hn::Eq(high[v], here), hn::TableLookupBytes(values, low[v]), out[v]);
  }
}

// Bit i: byte i of the batch equals `value`.
HWY_INLINE std::uint64_t equal_bits(const V8 (&batch)[kVecsPerBatch], V8 value) {
  std::uint64_t bits = 0;
  for (std::size_t v = 0; v < kVecsPerBatch; ++v)
    bits |= byte_mask_bits(hn::Eq(batch[v], value)) << (v * kVecBytes);
  return bits;
}

std::size_t map_palette(const std::uint8_t* plane, std::size_t n, const std::uint8_t lut[256],
                        std::uint8_t escape, std::uint8_t* nibbles, std::uint8_t* escapes) {
  const D8 d8;
  const D16 d16;
  const Rows rows(lut, 16, escape);
  std::size_t num_escapes = 0, i = 0;
  for (; i + kBatch <= n; i += kBatch) {
    V8 bytes[kVecsPerBatch], idx[kVecsPerBatch];
    for (std::size_t v = 0; v < kVecsPerBatch; ++v)
      bytes[v] = hn::LoadU(d8, plane + i + v * kVecBytes);
    look_up(rows, bytes, idx);
    for (std::size_t v = 0; v < kVecsPerBatch; v += 2) {
      const V16 a = hn::BitCast(d16, idx[v]), b = hn::BitCast(d16, idx[v + 1]);
      const V8 pairs_a = hn::BitCast(d8, hn::Or(a, hn::ShiftRight<4>(a)));
      const V8 pairs_b = hn::BitCast(d8, hn::Or(b, hn::ShiftRight<4>(b)));
      hn::StoreU(hn::ConcatEven(d8, pairs_b, pairs_a), d8, nibbles + i / 2 + v / 2 * kVecBytes);
    }
    std::uint64_t bits = equal_bits(idx, hn::Set(d8, escape));
    if (bits == 0) continue;
    // Always four at a time: `escapes` has slack, and a branch that is mispredicted costs more than
    // the spare copies.
    const auto count = static_cast<std::size_t>(std::popcount(bits));
    for (std::size_t done = 0; done < count; done += 4) {
      for (std::size_t k = 0; k < 4; ++k) {
        escapes[num_escapes + done + k] = plane[i + (std::countr_zero(bits) & 63)];
        bits &= bits - 1;
      }
    }
    num_escapes += count;
  }
  return num_escapes + kScalarKernels.map_palette(plane + i, n - i, lut, escape, nibbles + i / 2,
                                                  escapes + num_escapes);
}

std::size_t unmap_palette(const std::uint8_t* nibbles, std::size_t n,
                          const std::uint8_t palette[16], std::uint8_t escape,
                          const std::uint8_t* escapes, std::size_t num_escapes,
                          std::uint8_t* plane) {
  const D8 d8;
  const D16 d16;
  const hn::Half<D8> half;
  const V8 values = hn::LoadDup128(d8, palette);
  std::size_t used = 0, i = 0;
  for (; i + kBatch <= n; i += kBatch) {
    V8 idx[kVecsPerBatch];
    for (std::size_t v = 0; v < kVecsPerBatch; ++v) {
      const V16 pair = hn::PromoteTo(d16, hn::LoadU(half, nibbles + (i + v * kVecBytes) / 2));
      idx[v] = hn::BitCast(d8, hn::And(hn::Or(pair, hn::ShiftLeft<4>(pair)), hn::Set(d16, 0x0F0F)));
      hn::StoreU(hn::TableLookupBytes(values, idx[v]), d8, plane + i + v * kVecBytes);
    }
    for (std::uint64_t bits = equal_bits(idx, hn::Set(d8, escape)); bits != 0; bits &= bits - 1) {
      plane[i + static_cast<std::size_t>(std::countr_zero(bits))] =
          used < num_escapes ? escapes[used] : std::uint8_t{0};
      ++used;
    }
  }
  const std::size_t left = used < num_escapes ? num_escapes - used : 0;
  return used + kScalarKernels.unmap_palette(nibbles + i / 2, n - i, palette, escape,
                                             escapes + (num_escapes - left), left, plane + i);
}

// The last values of fixed_pack, fewer than a batch: the scalar kernel counts
// positions from its own start.
inline std::size_t fixed_pack_tail(const std::uint8_t* high, std::size_t first, std::size_t n,
                                   const std::uint8_t lut[128], std::uint8_t* nibbles,
                                   std::uint8_t* escapes, std::size_t max_escapes) {
  std::uint8_t found[4 * kBatch];
  const std::size_t count =
      kScalarKernels.fixed_pack(high + first, n - first, lut, nibbles + first / 2, found, kBatch);
  for (std::size_t k = 0; k < count && k < max_escapes; ++k) {
    std::uint32_t escape;
    std::memcpy(&escape, found + 4 * k, 4);
    escape += static_cast<std::uint32_t>(first);
    std::memcpy(escapes + 4 * k, &escape, 4);
  }
  return count;
}

std::size_t fixed_pack(const std::uint8_t* high, std::size_t n, const std::uint8_t lut[128],
                       std::uint8_t* nibbles, std::uint8_t* escapes, std::size_t max_escapes) {
  const D8 d8;
  const D16 d16;
  const D32 d32;
  const D64 d64;
  constexpr std::uint8_t kEscape = 7;
  // In every 8 bytes: the even ones first.
  alignas(16) static constexpr std::uint8_t kEvenBytes[16] = {0, 2,  4,  6,  1, 3,  5,  7,
                                                              8, 10, 12, 14, 9, 11, 13, 15};
  const Rows rows(lut, 8, kEscape);
  std::size_t num_escapes = 0, i = 0;
  for (; i + kBatch <= n; i += kBatch) {
    V8 bytes[kVecsPerBatch], exponents[kVecsPerBatch], idx[kVecsPerBatch];
    for (std::size_t v = 0; v < kVecsPerBatch; ++v) {
      bytes[v] = hn::LoadU(d8, high + i + v * kVecBytes);
      exponents[v] = hn::And(bytes[v], hn::Set(d8, 0x7F));
    }
    look_up(rows, exponents, idx);
    V32 words[kVecsPerBatch];  // of a group's two 32-bit lanes the lower counts
    for (std::size_t v = 0; v < kVecsPerBatch; ++v) {
      const V16 pair = hn::BitCast(d16, idx[v]);
      const V8 nibble_pairs = hn::TableLookupBytes(
          hn::BitCast(d8, hn::Or(pair, hn::ShiftRight<4>(pair))), hn::LoadDup128(d8, kEvenBytes));
      const V64 sign = hn::BitCast(d64, hn::AndNot(hn::Set(d8, 0x7F), bytes[v]));
      words[v] = hn::BitCast(
          d32, hn::Or(hn::BitCast(d64, nibble_pairs), hn::Or(sign, hn::ShiftRight<36>(sign))));
    }
    for (std::size_t v = 0; v < kVecsPerBatch; v += 2)
      hn::StoreU(hn::BitCast(d8, hn::ConcatEven(d32, words[v + 1], words[v])), d8,
                 nibbles + i / 2 + v / 2 * kVecBytes);
    for (std::uint64_t bits = equal_bits(idx, hn::Set(d8, kEscape)); bits != 0; bits &= bits - 1) {
      const std::size_t pos = i + static_cast<std::size_t>(std::countr_zero(bits));
      const std::uint32_t escape = static_cast<std::uint32_t>(pos) | std::uint32_t{high[pos]} << 24;
      if (num_escapes < max_escapes) std::memcpy(escapes + 4 * num_escapes, &escape, 4);
      ++num_escapes;
    }
  }
  const std::size_t room = num_escapes < max_escapes ? max_escapes - num_escapes : 0;
  return num_escapes +
         fixed_pack_tail(high, i, n, lut, nibbles, escapes + 4 * (max_escapes - room), room);
}

void fixed_unpack(const std::uint8_t* nibbles, std::size_t n, const std::uint8_t palette[8],
                  std::uint8_t* high) {
  const D8 d8;
  const D16 d16;
  const D64 d64;
  const hn::Half<D8> half;
  const hn::Half<D32> half32;
  alignas(16) std::uint8_t palette_twice[16];
  std::memcpy(palette_twice, palette, 8);
  std::memcpy(palette_twice + 8, palette, 8);
  const V8 values = hn::LoadDup128(d8, palette_twice);
  std::size_t i = 0;
  for (; i + kVecBytes <= n; i += kVecBytes) {
    const auto packed = hn::LoadU(half, nibbles + i / 2);
    const V16 pair = hn::PromoteTo(d16, packed);
    const V16 idx = hn::And(hn::Or(pair, hn::ShiftLeft<4>(pair)), hn::Set(d16, 0x0707));
    const V64 word = hn::PromoteTo(d64, hn::BitCast(half32, packed));
    const V8 sign =
        hn::And(hn::BitCast(d8, hn::Or(word, hn::ShiftLeft<36>(word))), hn::Set(d8, 0x80));
    hn::StoreU(hn::Or(hn::TableLookupBytes(values, hn::BitCast(d8, idx)), sign), d8, high + i);
  }
  kScalarKernels.fixed_unpack(nibbles + i / 2, n - i, palette, high + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace snug::codec
HWY_AFTER_NAMESPACE();

#endif  // target toggle
