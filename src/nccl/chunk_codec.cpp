#include "nccl/chunk_codec.h"

#include <algorithm>
#include <bit>
#include <new>

namespace snug::nccl {
namespace {

// Workers answer within milliseconds. After this time they are taken for dead.
constexpr std::chrono::seconds kPatience{30};

}  // namespace

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

ChunkCodec::~ChunkCodec() { WorkerDesk::instance().give_buffer(shared_frame_); }

std::span<std::byte> ChunkCodec::frame_buffer(std::size_t size) noexcept {
  WorkerDesk& desk = WorkerDesk::instance();
  if (shared_frame_.empty() && desk.is_open()) shared_frame_ = desk.take_buffer();
  return size <= shared_frame_.size() ? shared_frame_.first(size) : frame_.grow(size);
}

bool ChunkCodec::is_for_workers(const std::byte* frame, const Region* region) const noexcept {
  return region != nullptr && frame == shared_frame_.data() &&
         region->is_reachable.load(std::memory_order_relaxed);
}

bool ChunkCodec::has_workers_for(std::span<const std::byte> data, std::span<const std::byte> frame,
                                 DType dtype, const Region* region) const noexcept {
  return is_for_workers(frame.data(), region) && worker_log2_block(data.size(), dtype) != 0 &&
         WorkerDesk::instance().is_manned();
}

std::optional<OrderResult> ChunkCodec::by_workers(const WorkerDesk::Job& job) noexcept {
  WorkerDesk& desk = WorkerDesk::instance();
  const auto posted = desk.post(job);
  if (!posted) return {};
  OrderResult result{};
  switch (desk.wait(*posted, result, kPatience)) {
    case WorkerDesk::Answer::kNotTaken: return {};
    case WorkerDesk::Answer::kPending:
      shared_frame_ = {};  // a worker may still write there
      result.code = static_cast<std::uint32_t>(Code::kTimeout);
      break;
    case WorkerDesk::Answer::kDone: break;
  }
  was_by_workers_ = result.code == static_cast<std::uint32_t>(Code::kOk);
  return result;
}

std::size_t ChunkCodec::encode(std::span<const std::byte> data, std::span<std::byte> dst,
                               DType dtype, Codec codec, const Region* region) noexcept {
  was_by_workers_ = false;
  if (is_for_workers(dst.data(), region)) {
    const std::span<std::byte> tensor(const_cast<std::byte*>(data.data()), data.size());
    const auto result = by_workers({OrderKind::kEncode, dtype, codec, tensor, dst});
    if (was_by_workers_) return result->num_bytes < data.size() ? result->num_bytes : 0;
    if (shared_frame_.empty()) return 0;  // dst is no longer ours
  } else if (region != nullptr) {
    WorkerDesk::instance().explain_cpu_codec();
  }
  const auto frame_bytes = snug::encode(data, dst, chunk_options(data.size(), dtype, codec),
                                        workspace_.grow(workspace_bytes()));
  return frame_bytes && *frame_bytes < data.size() ? *frame_bytes : 0;
}

Status ChunkCodec::decode(std::span<const std::byte> frame, std::span<std::byte> dst,
                          const Region* region) noexcept {
  was_by_workers_ = false;
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
  if (is_for_workers(frame.data(), region) &&
      info->block_elems == std::uint32_t{1} << worker_log2_block(dst.size(), info->dtype)) {
    const std::span<std::byte> place(const_cast<std::byte*>(frame.data()), frame.size());
    by_workers({OrderKind::kDecode, info->dtype, Codec::kEntropy, dst, place});
    if (was_by_workers_) return {};
    if (shared_frame_.empty()) return {Code::kTimeout, "the GPU's codec workers do not answer"};
    // What workers refuse is refused here, too, with a better message.
  }
  const std::span<std::byte> workspace = workspace_.grow(workspace_bytes());
  if (workspace.empty()) return {Code::kInternal, "out of memory for the workspace"};
  return snug::decode(frame, dst, workspace).status();
}

}  // namespace snug::nccl
