// fuzz/fuzz_frame.h - what the frame targets do with a frame.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "snug/codec.h"

namespace snug::test {

// Constant blocks make small frames of large tensors: above this, only a part
// is decoded.
inline constexpr std::uint64_t kMaxDecodedBytes = 1 << 22;

inline void require(bool condition) {
  if (!condition) std::abort();
}

inline void read_frame(std::span<const std::byte> frame) {
  static std::vector<std::byte> workspace(workspace_bytes());
  const auto info = inspect(frame);
  const Status verified = verify(frame);
  const auto stats = frame_stats(frame);
  if (!info.ok()) return require(!verified.ok() && !stats.ok());

  if (info->num_elems > 0) {
    std::byte one[8];
    (void)decode_range(frame, info->num_elems - 1, 1, one);
  }
  if (info->raw_bytes > kMaxDecodedBytes) return;
  std::vector<std::byte> decoded(info->raw_bytes);
  const auto size = decode(frame, decoded, workspace);
  if (!size.ok()) return;
  require(verified.ok() && stats.ok() && *size == info->raw_bytes);

  // What decodes can be encoded again and comes back the same.
  const EncodeOptions options{info->dtype, Codec::kEntropy, 12, 1};
  std::vector<std::byte> again(encode_bound(decoded.size(), options)), restored(decoded.size());
  const auto again_size = encode(decoded, again, options, workspace);
  require(again_size.ok());
  require(decode(std::span(again).first(*again_size), restored, workspace).ok());
  require(restored == decoded);
}

}  // namespace snug::test
