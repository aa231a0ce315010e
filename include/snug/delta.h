// snug/delta.h - the difference between two versions of one tensor.
//
// A delta restores `next` from `base`, bit for bit. A training step with a small learning rate
// changes a few percent of BF16 weights, most of them by one unit in the last place: such a delta
// is 1.0 to 2.5 % of the tensor. docs/delta.md is its format.
//
// Memory:  the caller owns base, next and dst. Each call allocates about 3 MiB per thread;
//          `invert` also a copy of the tensor.
// Threads: all functions are reentrant.
// Trust:   a delta may be hostile; no access leaves the spans given.
// Safety:  a delta names its base and its target by hash. Another base is refused with
//          kWrongBase. Bytes that are not the target are never reported as success.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "snug/status.h"
#include "snug/tensor.h"

namespace snug::delta {

struct Options {
  DType dtype = DType::kBF16;
  // Elements of a block, as a power of two from 12 to 16. 0 picks 16, for files and networks.
  int log2_block = 0;
  // Where most values changed, store a frame (snug/codec.h) of `next` if that is smaller. If
  // false, blocks that changed too much are stored raw.
  bool allow_frame = true;
  int num_threads = 1;  // 0: one per CPU
};

struct Info {
  DType dtype = DType::kBytes;
  bool needs_base = true;         // false: a full copy, which applies to any base
  std::uint64_t raw_bytes = 0;    // size of base and target
  std::uint64_t delta_bytes = 0;  // size of the whole delta
  std::uint64_t num_changed = 0;  // elements that differ
  std::uint64_t base_hash = 0;    // tensor_hash() of both versions
  std::uint64_t target_hash = 0;
  std::uint64_t num_blocks = 0;
  std::uint32_t block_elems = 0;  // elements in every block but the last
};

// Largest tensor that a delta can describe.
inline constexpr std::uint64_t kMaxRawBytes = std::uint64_t{15} << 30;

// The largest delta that `encode` produces: raw_bytes + 0.3 % + 256. 0 if the options or the size
// are not acceptable.
std::size_t encode_bound(std::size_t raw_bytes, const Options& options = {}) noexcept;

// Writes the delta from `base` to `next`, which have the same size, and returns its size. dst
// needs at most encode_bound() bytes. Equal input and options give equal deltas on every CPU and
// GPU, with any number of threads.
Result<std::size_t> encode(std::span<const std::byte> base, std::span<const std::byte> next,
                           std::span<std::byte> dst, const Options& options = {}) noexcept;

// Writes a delta that needs no base: for receivers that have none, or another one.
Result<std::size_t> encode_full(std::span<const std::byte> next, std::span<std::byte> dst,
                                const Options& options = {}) noexcept;

// Writes the target to dst and returns its size. `base` and dst must not overlap. On error, dst
// is unspecified.
// Errors: kUsage, kBadMagic, kUnsupportedVersion, kCorrupt, kDstTooSmall, kWrongBase.
Result<std::size_t> apply(std::span<const std::byte> delta, std::span<const std::byte> base,
                          std::span<std::byte> dst, int num_threads = 1) noexcept;

// Turns `tensor` from base to target in place: all of it or, on any error, none of it. The
// target's hash is checked before the first byte changes. Nothing else may read the tensor
// meanwhile.
Status apply_in_place(std::span<const std::byte> delta, std::span<std::byte> tensor,
                      int num_threads = 1) noexcept;

// Reads and checks the header only, the first 64 bytes. Sizes are claims until `apply` succeeds.
Result<Info> inspect(std::span<const std::byte> delta) noexcept;

// Writes the delta from the target back to `base`, for a rollback. Call it before apply_in_place.
// dst needs at most encode_bound() bytes.
Result<std::size_t> invert(std::span<const std::byte> delta, std::span<const std::byte> base,
                           std::span<std::byte> dst, int num_threads = 1) noexcept;

// Identifies a version of a tensor: 64 bits, the same on every CPU and GPU. It tells versions
// apart; it does not protect against forgery.
std::uint64_t tensor_hash(std::span<const std::byte> tensor, int num_threads = 1) noexcept;

}  // namespace snug::delta
