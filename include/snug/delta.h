// snug/delta.h - what changed between two versions of one tensor.
//
// A delta restores `next` from `base`, bit by bit. Training steps with a small
// learning rate change a few percent of BF16 weights, most of them by one unit in the
// last place: such a delta is 1 to 2 % of the tensor. docs/delta.md is the format.
//
// Memory:  the caller owns base, next and dst. Each call allocates about 3 MiB
//          per thread; `invert` also a copy of the tensor.
// Threads: all functions are reentrant.
// Trust:   a delta may be hostile; no access ever leaves the spans given.
// Safety:  a delta names its base and its target by hash. Another base is
//          refused with kWrongBase; bytes that are not the target are never
//          reported as success.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "snug/status.h"
#include "snug/tensor.h"

namespace snug::delta {

struct Options {
  DType dtype = DType::kBF16;
  // Elements of a block, as a power of two from 12 to 16; 0 picks 16, which suits
  // files and networks. Blocks are independent of each other.
  int log2_block = 0;
  // Where most values changed, hold a Snug frame (snug/codec.h) of `next` if that is
  // smaller. Without it, blocks that changed too much are stored as they are.
  bool allow_frame = true;
  int num_threads = 1;  // 0: one per CPU
};

struct Info {
  DType dtype = DType::kBytes;
  // False: a full copy. It applies to any base, an empty one included.
  bool needs_base = true;
  std::uint64_t raw_bytes = 0;    // size of base and target
  std::uint64_t delta_bytes = 0;  // size of the whole delta
  std::uint64_t num_changed = 0;  // elements that differ
  std::uint64_t base_hash = 0;    // tensor_hash() of both versions
  std::uint64_t target_hash = 0;
  std::uint64_t num_blocks = 0;
  std::uint32_t block_elems = 0;  // elements in every block but the last
};

// Largest tensor a delta can describe.
inline constexpr std::uint64_t kMaxRawBytes = std::uint64_t{15} << 30;

// The name of a version of a tensor: 64 bits, the same on every CPU and GPU. It
// tells versions apart; it does not stop somebody who wants to cheat.
std::uint64_t tensor_hash(std::span<const std::byte> tensor, int num_threads = 1) noexcept;

// Largest delta `encode` can produce: raw_bytes + 0.3 % + 256. 0 if the options or the
// size are not acceptable.
std::size_t encode_bound(std::size_t raw_bytes, const Options& options = {}) noexcept;

// Writes the delta from `base` to `next`, which have the same size, and returns
// its size. Never fails with kDstTooSmall if dst.size() >= encode_bound(). Equal
// input and options give equal deltas on every CPU and GPU, whatever the number of
// threads.
Result<std::size_t> encode(std::span<const std::byte> base, std::span<const std::byte> next,
                           std::span<std::byte> dst, const Options& options = {}) noexcept;

// A delta that needs no base: for receivers that have none, or another one.
Result<std::size_t> encode_full(std::span<const std::byte> next, std::span<std::byte> dst,
                                const Options& options = {}) noexcept;

// Reads and checks the header only; `delta` may be just its first 64 bytes. Sizes are
// claims until `apply` succeeds: check them against your own limit before
// allocating.
Result<Info> inspect(std::span<const std::byte> delta) noexcept;

// Writes the target to dst and returns its size. `base` and dst must not overlap.
// On error, dst is unspecified.
// Errors: kUsage, kBadMagic, kUnsupportedVersion, kCorrupt, kDstTooSmall, kWrongBase.
Result<std::size_t> apply(std::span<const std::byte> delta, std::span<const std::byte> base,
                          std::span<std::byte> dst, int num_threads = 1) noexcept;

// Turns `tensor` from base to target where it stands: all of it or, on any error,
// none of it. The target's hash is checked before the first byte changes. Nobody
// else may read the tensor meanwhile.
Status apply_in_place(std::span<const std::byte> delta, std::span<std::byte> tensor,
                      int num_threads = 1) noexcept;

// Writes the delta from the target back to `base`, for a later rollback: call it
// before apply_in_place. dst takes at most encode_bound() bytes.
Result<std::size_t> invert(std::span<const std::byte> delta, std::span<const std::byte> base,
                           std::span<std::byte> dst, int num_threads = 1) noexcept;

}  // namespace snug::delta
