// delta/delta_format.h - the bytes of a delta, and the integer rules that encoder and decoder
// share. docs/delta.md is the normative description. CUDA kernels use this file too.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "frame/container.h"
#include "snug/delta.h"
#include "snug/status.h"
#include "snug/tensor.h"

namespace snug::delta {

inline constexpr std::uint32_t kMagic = 0x44474E53;  // "SNGD"
inline constexpr std::uint8_t kVersion = 1;
using frame::kHeaderBytes;
using frame::kMinLog2Block;
inline constexpr std::size_t kEntryBytes = 4;
inline constexpr int kMaxLog2Block = 16;
inline constexpr int kDefaultLog2Block = 16;
inline constexpr std::size_t kMaxBlockElems = std::size_t{1} << kMaxLog2Block;
inline constexpr int kNumClasses = 8;

enum class Kind : std::uint8_t { kBlocks = 0, kFrame = 1 };
enum class BlockMode : std::uint8_t { kSparse = 1, kRaw = 2 };

inline constexpr std::size_t align4(std::size_t n) noexcept { return (n + 3) & ~std::size_t{3}; }

struct Header {
  DType dtype = DType::kBytes;
  Kind kind = Kind::kBlocks;
  int log2_block = kDefaultLog2Block;
  std::uint8_t num_tail_bytes = 0;  // bytes beyond the last whole element
  std::uint64_t num_elems = 0;
  std::uint64_t delta_bytes = 0;
  std::uint64_t base_hash = 0, target_hash = 0;
  std::uint64_t num_changed = 0;
  std::uint8_t tail[8] = {};   // of the target
  std::uint32_t checksum = 0;  // over header and index

  constexpr frame::BlockGrid grid() const noexcept { return {num_elems, log2_block}; }
  constexpr std::uint64_t block_elems() const noexcept { return grid().block_elems(); }
  constexpr std::uint64_t num_blocks() const noexcept {
    return kind == Kind::kFrame ? 0 : grid().num_blocks();
  }
  constexpr std::uint64_t elems_in_block(std::uint64_t block_idx) const noexcept {
    return grid().elems_in_block(block_idx);
  }
  std::uint64_t raw_bytes() const noexcept {
    return num_elems * elem_bytes(dtype) + num_tail_bytes;
  }
  // Where the first payload, or the frame, starts.
  constexpr std::uint64_t payload_start() const noexcept {
    return kHeaderBytes + num_blocks() * kEntryBytes;
  }
};

// A header for `target`; hashes, sizes and checksum are still open.
Result<Header> make_header(std::span<const std::byte> target, DType dtype, int log2_block) noexcept;

// Writes the header, with its checksum, to the start of `delta`, which has the index already.
// Returns delta_bytes.
std::size_t seal(Header header, std::span<std::byte> delta) noexcept;

// Checks every field that can be checked from the first 64 bytes alone.
Result<Header> read_header(std::span<const std::byte> delta) noexcept;

// The checksum over header and index, `head` being payload_start() bytes.
std::uint32_t head_checksum(const std::uint8_t* head, std::size_t num_bytes) noexcept;

// Checks `delta`, all of it: its size, the checksum and that blocks do not go backwards
// or beyond the end.
Status check_index(const Header& header, std::span<const std::byte> delta) noexcept;

// What a block of `num_elems` takes if stored as it is.
inline constexpr std::size_t raw_payload_bytes(std::size_t num_elems, std::size_t width) noexcept {
  return 4 + align4(num_elems * width);
}

// ---- classes ---------------------------------------------------------------
// A small value changes more often than a large one, because a step of the
// optimizer is larger than its last bit. So the elements of a block are divided by the
// exponent of the *base*, which both sides know, into classes that are coded
// apart: class 7 has exponents of class_top and above, class 6 those one below, and
// so on; class 0 has all the rest.
struct ClassRule {
  std::uint64_t key_mask;  // bits of an element that count: all but the sign, or none
  int key_shift;           // the key is (element & key_mask) >> key_shift

  constexpr std::uint64_t key(std::uint64_t element) const noexcept {
    return (element & key_mask) >> key_shift;
  }
  constexpr std::uint64_t max_key() const noexcept { return key_mask >> key_shift; }
  // Elements whose masked bits reach this are in class `c` or above.
  constexpr std::uint64_t threshold(int class_top, int c) const noexcept {
    const int first = class_top - (kNumClasses - 1) + c;
    return first <= 0 ? 0 : static_cast<std::uint64_t>(first) << key_shift;
  }
};

constexpr ClassRule class_rule(DType dtype) noexcept {
  const DTypeInfo& info = dtype_info(dtype);
  if (info.exponent_bits == 0) return {0, 0};  // one class, the last
  const int key_bits = info.exponent_bits + info.mantissa_bits;
  // Keys fit a byte: of larger exponents the upper 8 bits count.
  const int key_shift = info.exponent_bits > 8 ? key_bits - 8 : info.mantissa_bits;
  return {(std::uint64_t{1} << key_bits) - 1, key_shift};
}

// An encoder's class_top is the rounded mean key of this sample: kSampleRuns runs of
// kSampleRun neighbours, or the whole block if it is not larger.
inline constexpr std::size_t kSampleRuns = 16, kSampleRun = 32;

constexpr std::size_t sample_start(std::size_t run, std::size_t num_elems) noexcept {
  return run * num_elems / kSampleRuns / kSampleRun * kSampleRun;
}

// ---- subsets ---------------------------------------------------------------
constexpr int bit_width(std::uint32_t v) noexcept {
#ifdef __CUDA_ARCH__
  return 32 - __clz(static_cast<int>(v));
#else
  return std::bit_width(v);
#endif
}

// A subset of n things, `size` of which are in it, is held as gaps between its
// members, or between the others if these are fewer. A gap is a Rice code.
struct Subset {
  std::uint32_t num_listed;
  bool inverted;
  int rice_k;
};

constexpr Subset subset_rule(std::uint32_t n, std::uint32_t size) noexcept {
  Subset s{size, false, 0};
  if (2 * std::uint64_t{size} > n) s = {n - size, true, 0};
  if (s.num_listed == 0) return s;
  // Geometric gaps: k + 1 costs less than k once the mean gap passes about 2.08 * 2^k - 0.5.
  // The smallest k that brings `unit` to `mean`; both are below 2^23.
  const std::uint32_t mean = (n - s.num_listed) * 64 + s.num_listed * 32, unit = s.num_listed * 133;
  s.rice_k = bit_width(mean) - bit_width(unit);
  if (s.rice_k < 0) s.rice_k = 0;
  if (unit << s.rice_k < mean) ++s.rice_k;
  return s;
}

// Values beyond 1 are coded by exponential Golomb codes. An encoder takes the order from
// the mean width of the values: unlike their mean, a few large ones hardly move it.
constexpr int golomb_order(std::uint32_t sum_of_widths, std::uint32_t count) noexcept {
  const std::uint32_t mean = (2 * sum_of_widths + count) / (2 * count);
  return mean == 0 ? 0 : static_cast<int>(mean) - 1;
}

// ---- hash ------------------------------------------------------------------
// Of pairs of 32-bit words (a, b), zeros behind the end: a sum, so that threads may
// add in any order. Keys make it depend on the position; the product mixes the pair; the
// pair itself is added so that no factor can hide it.
inline constexpr std::uint32_t kHashKeyA = 0x9E3779B1u, kHashKeyB = 0x85EBCA77u;

constexpr std::uint64_t hash_term(std::uint32_t a, std::uint32_t b,
                                  std::uint64_t pair_idx) noexcept {
  const auto i = static_cast<std::uint32_t>(pair_idx);
  const std::uint32_t x = a + i * kHashKeyA, y = b + i * kHashKeyB + kHashKeyA;
  return std::uint64_t{x} * y + (std::uint64_t{a} << 32 | b);
}

constexpr std::uint64_t hash_finish(std::uint64_t sum, std::uint64_t num_bytes) noexcept {
  std::uint64_t h = sum + num_bytes * 0xC2B2AE3D27D4EB4Full;
  h = (h ^ h >> 32) * 0x9FB21C651E98DF25ull;
  h = (h ^ h >> 29) * 0x9E3779B185EBCA87ull;
  return h ^ h >> 32;
}

}  // namespace snug::delta
