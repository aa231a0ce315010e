// snug/codec.h - compress and restore one tensor held in memory.
//
// Memory:  the caller owns src and dst. Each call allocates one workspace of
//          `workspace_bytes()` per thread, or none if it is given one.
// Threads: all functions are reentrant.
// Trust:   `frame` may be hostile; no access ever leaves the spans given.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "snug/status.h"
#include "snug/tensor.h"

namespace snug {

struct EncodeOptions {
  DType dtype = DType::kBF16;
  // The codec to try. Blocks that it cannot make smaller are stored raw, and
  // blocks of one repeated value as constant unless kRaw is asked for.
  Codec codec = Codec::kEntropy;
  // Elements of a block, as a power of two from 12 to 17 (12 counts as 13 for
  // one-byte types); 0 picks the size best for files (256 KiB of data, at most
  // 2^17 elements).
  int log2_block = 0;
  int num_threads = 1;  // 0: one per CPU
};

// Largest frame `encode` can produce from `raw_bytes` bytes, whatever the
// options: raw_bytes + 0.2 % + 128, and below +0.01 % with the default block. 0
// if the options are not acceptable.
std::size_t encode_bound(std::size_t raw_bytes, const EncodeOptions& options = {}) noexcept;

// Scratch memory one thread of `encode` or `decode` needs.
std::size_t workspace_bytes() noexcept;

// Writes one self-contained frame and returns its size. Never fails with
// kDstTooSmall if dst.size() >= encode_bound(raw.size(), options). Equal input
// and options give equal frames on every CPU and GPU, whatever the number of
// threads. Any size goes: bytes beyond the last whole element are kept too.
Result<std::size_t> encode(std::span<const std::byte> raw, std::span<std::byte> dst,
                           const EncodeOptions& options = {}) noexcept;

// The same on the calling thread alone, without allocating.
Result<std::size_t> encode(std::span<const std::byte> raw, std::span<std::byte> dst,
                           const EncodeOptions& options, std::span<std::byte> workspace) noexcept;

// Reads and checks the header only; `frame` may be just its first 64 bytes.
// Sizes are claims until `decode` succeeds: check them against your own limit
// before allocating.
Result<FrameInfo> inspect(std::span<const std::byte> frame) noexcept;

// Restores the exact bytes given to `encode`; returns their number. On error,
// `dst` is unspecified.
// Errors: kBadMagic, kUnsupportedVersion, kCorrupt, kDstTooSmall.
Result<std::size_t> decode(std::span<const std::byte> frame, std::span<std::byte> dst,
                           int num_threads = 1) noexcept;

// The same on the calling thread alone, without allocating.
Result<std::size_t> decode(std::span<const std::byte> frame, std::span<std::byte> dst,
                           std::span<std::byte> workspace) noexcept;

// Restores elements [first, first + count) into dst, reading and checking only
// the blocks that hold them. Returns count * elem_bytes.
Result<std::size_t> decode_range(std::span<const std::byte> frame, std::uint64_t first,
                                 std::uint64_t count, std::span<std::byte> dst) noexcept;

// Checks structure and every checksum without decoding: damage to stored bytes
// is found, at memory speed.
Status verify(std::span<const std::byte> frame) noexcept;

// Blocks and payload bytes of each codec in a frame.
struct FrameStats {
  std::uint64_t num_blocks[kNumCodecs] = {};
  std::uint64_t num_bytes[kNumCodecs] = {};
};
Result<FrameStats> frame_stats(std::span<const std::byte> frame) noexcept;

// The instruction set in use ("scalar", "avx2", "avx512", "neon", ...). The
// environment variable SNUG_FORCE chooses another one of `simd_targets()`.
const char* simd_target() noexcept;
std::span<const char* const> simd_targets() noexcept;  // what this CPU can run, best first

}  // namespace snug
