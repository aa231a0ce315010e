#include "nccl/chunk_codec.h"

#include <algorithm>
#include <bit>
#include <new>

namespace snug::nccl {

EncodeOptions chunk_options(std::size_t chunk_bytes, DType dtype, Codec codec) noexcept {
  EncodeOptions options{dtype, codec};
  // Tables cost time per block, but two blocks at once decode faster.
  const std::size_t num_blocks = codec == Codec::kEntropy ? 2 : 1;
  const std::size_t block_elems = chunk_bytes / elem_bytes(dtype) / num_blocks;
  options.log2_block =
      std::clamp(static_cast<int>(std::bit_width(block_elems > 0 ? block_elems - 1 : 0)), 13, 17);
  return options;
}

std::size_t chunk_frame_bound(std::size_t chunk_bytes) noexcept {
  // The smallest block of the narrowest type has the longest index.
  return encode_bound(chunk_bytes, {DType::kBytes, Codec::kEntropy, 13});
}

std::span<std::byte> ChunkCodec::Memory::grow(std::size_t wanted) noexcept {
  if (size < wanted) {
    bytes.reset(new (std::nothrow) std::byte[wanted]);
    size = bytes != nullptr ? wanted : 0;
  }
  return {bytes.get(), std::min(size, wanted)};
}

std::span<std::byte> ChunkCodec::frame_buffer(std::size_t size) noexcept {
  return frame_.grow(size);
}

std::size_t ChunkCodec::encode(std::span<const std::byte> data, std::span<std::byte> dst,
                               DType dtype, Codec codec) noexcept {
  const auto frame_bytes = snug::encode(data, dst, chunk_options(data.size(), dtype, codec),
                                        workspace_.grow(workspace_bytes()));
  return frame_bytes && *frame_bytes < data.size() ? *frame_bytes : 0;
}

Status ChunkCodec::decode(std::span<const std::byte> frame, std::span<std::byte> dst) noexcept {
  const auto info = inspect(frame);  // the header alone
  if (!info) return info.status();
  if (info->frame_bytes != frame.size())
    return {Code::kCorrupt,    "frame of another size than announced",
            kNowhere,          kNowhere,
            info->frame_bytes, frame.size()};
  if (info->raw_bytes != dst.size())
    return {Code::kCorrupt,  "frame of another size than announced",
            kNowhere,        kNowhere,
            info->raw_bytes, dst.size()};
  const std::span<std::byte> workspace = workspace_.grow(workspace_bytes());
  if (workspace.empty()) return {Code::kInternal, "out of memory for the workspace"};
  return snug::decode(frame, dst, workspace).status();
}

}  // namespace snug::nccl
