// snug/codec.h - compress and restore one tensor in memory.
//
// A frame is a compressed tensor: a header, an index, and blocks that are compressed and checked
// independently. docs/format.md is its format.
//
// Memory:  the caller owns raw and dst, which must not overlap. A call allocates one workspace of
//          `workspace_bytes()` per thread; the overloads that take a workspace allocate nothing.
// Threads: all functions are reentrant.
// Trust:   `frame` may be hostile; no access leaves the spans given.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "snug/status.h"
#include "snug/tensor.h"

namespace snug {

struct EncodeOptions {
  DType dtype = DType::kBF16;
  // The codec to try. Blocks that it does not make smaller are stored raw. Blocks of one repeated
  // value are stored as constant unless this is kRaw.
  Codec codec = Codec::kEntropy;
  // Elements of a block, as a power of two from 12 to 17 (12 counts as 13 for one-byte types).
  // 0 picks the best size for files: 256 KiB of data, at most 2^17 elements.
  int log2_block = 0;
  int num_threads = 1;  // 0: one per CPU
};

// The largest frame that `encode` produces: raw_bytes + 0.2 % + 128, and less than + 0.01 % with
// the default block. 0 if the options are not acceptable.
std::size_t encode_bound(std::size_t raw_bytes, const EncodeOptions& options = {}) noexcept;

// Writes one self-contained frame and returns its size. dst needs at most encode_bound() bytes.
// Equal input and options give equal frames on every CPU and GPU, with any number of threads.
// Any size is accepted: bytes after the last whole element are kept too.
Result<std::size_t> encode(std::span<const std::byte> raw, std::span<std::byte> dst,
                           const EncodeOptions& options = {}) noexcept;

// Restores the exact bytes given to `encode` and returns their number. On error, dst is
// unspecified. Errors: kBadMagic, kUnsupportedVersion, kCorrupt, kDstTooSmall.
Result<std::size_t> decode(std::span<const std::byte> frame, std::span<std::byte> dst,
                           int num_threads = 1) noexcept;

// Reads and checks the header only, the first 64 bytes. Sizes are claims until `decode` succeeds:
// check them against your own limit before you allocate.
Result<FrameInfo> inspect(std::span<const std::byte> frame) noexcept;

// Restores elements [first, first + count) into dst and returns their bytes. Reads and checks
// only the blocks that hold them.
Result<std::size_t> decode_range(std::span<const std::byte> frame, std::uint64_t first,
                                 std::uint64_t count, std::span<std::byte> dst) noexcept;

// Checks structure and every checksum without decoding, at memory speed.
Status verify(std::span<const std::byte> frame) noexcept;

// Blocks and payload bytes by codec.
struct FrameStats {
  std::uint64_t num_blocks[kNumCodecs] = {};
  std::uint64_t num_bytes[kNumCodecs] = {};
};
Result<FrameStats> frame_stats(std::span<const std::byte> frame) noexcept;

// On the calling thread, in the caller's workspace.
std::size_t workspace_bytes() noexcept;
Result<std::size_t> encode(std::span<const std::byte> raw, std::span<std::byte> dst,
                           const EncodeOptions& options, std::span<std::byte> workspace) noexcept;
Result<std::size_t> decode(std::span<const std::byte> frame, std::span<std::byte> dst,
                           std::span<std::byte> workspace) noexcept;

// The instruction set in use ("scalar", "avx2", "avx512", "neon", ...), and those that this CPU
// can run, best first. The environment variable SNUG_FORCE selects one of them.
const char* simd_target() noexcept;
std::span<const char* const> simd_targets() noexcept;

}  // namespace snug
