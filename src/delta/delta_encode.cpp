// Two tensors to one delta: blocks in parallel, hashes of both versions.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "codec/parallel.h"
#include "delta/delta_block.h"
#include "snug/codec.h"
#include "snug/delta.h"

namespace snug::delta {
namespace {

using frame::failure;

// A frame is tried once the blocks take more than a quarter of the tensor.
constexpr std::uint64_t kTryFrameFrom = 4;

class Encoder {
 public:
  Encoder(Header& header, const std::uint8_t* base, const std::uint8_t* next,
          std::span<std::byte> dst)
      : header_(header), base_(base), next_(next), dst_(dst), turn_(header.payload_start()) {}

  Status run(int num_threads) noexcept {
    if (dst_.size() < header_.payload_start())
      return failure(Code::kDstTooSmall, "no room for the delta", dst_.size(),
                     header_.payload_start());
    if (header_.num_blocks() == 0) {
      sums_.base = kernels().hash_terms(base_, header_.num_tail_bytes, 0);
      sums_.target = kernels().hash_terms(next_, header_.num_tail_bytes, 0);
    }
    codec::parallel(codec::thread_count(num_threads, header_.num_blocks()), [this] { work(); });
    if (error_) return error_.status();
    sums_.finish(header_.raw_bytes(), header_.base_hash, header_.target_hash);
    header_.num_changed = num_changed_;
    header_.delta_bytes = turn_.position();
    return {};
  }

 private:
  void work() noexcept {
    const auto scratch = make_scratch();
    if (scratch == nullptr) return fail(0, kNoMemory);
    for (std::uint64_t idx; (idx = turn_.take_ticket()) < header_.num_blocks();)
      if (!encode(idx, *scratch)) return;
  }

  bool encode(std::uint64_t idx, Scratch& scratch) noexcept {
    const BlockRange range(header_, idx);
    const std::uint8_t* base = base_ + range.first_byte;
    const std::uint8_t* next = next_ + range.first_byte;
    const BlockResult block = encode_block(base, next, range.num_elems, header_.dtype, scratch);
    sums_.base += range.hash(base);
    sums_.target += range.hash(next);
    num_changed_ += block.num_changed;
    std::uint64_t at;
    if (!turn_.wait_for(idx, at)) return false;
    if (block.num_bytes > dst_.size() - at) {
      fail(idx, {Code::kDstTooSmall, "no room for the delta", idx, kNowhere, dst_.size(),
                 at + block.num_bytes});
      return false;
    }
    turn_.pass(at + block.num_bytes);
    const auto end = static_cast<std::uint32_t>((at + block.num_bytes) / 4);
    std::memcpy(dst_.data() + kHeaderBytes + idx * kEntryBytes, &end, kEntryBytes);
    std::memcpy(dst_.data() + at, scratch.payload, block.num_bytes);
    return true;
  }

  void fail(std::uint64_t idx, const Status& status) noexcept {
    error_.keep(idx, status);
    turn_.fail();
  }

  Header& header_;
  const std::uint8_t *base_, *next_;
  const std::span<std::byte> dst_;
  codec::Turnstile turn_;
  HashSums sums_;
  std::atomic<std::uint64_t> num_changed_{0};
  codec::FirstError<> error_;
};

// Puts a frame of `next` where the blocks would be; header.delta_bytes is set on success.
Status put_frame(Header& header, std::span<const std::byte> next, std::span<std::byte> dst,
                 int num_threads) noexcept {
  header.kind = Kind::kFrame;
  if (dst.size() < kHeaderBytes) return {Code::kDstTooSmall, "no room for the delta"};
  const auto frame = snug::encode(next, dst.subspan(kHeaderBytes),
                                  {header.dtype, Codec::kEntropy, 0, num_threads});
  if (!frame) return frame.status();
  header.delta_bytes = kHeaderBytes + *frame;
  return {};
}

}  // namespace

std::size_t encode_bound(std::size_t raw_bytes, const Options& options) noexcept {
  const std::size_t width = elem_bytes(options.dtype);
  const int log2_block = options.log2_block == 0 ? kDefaultLog2Block : options.log2_block;
  if (width == 0 || log2_block < kMinLog2Block || log2_block > kMaxLog2Block ||
      raw_bytes > kMaxRawBytes)
    return 0;
  const std::size_t num_blocks = raw_bytes / (width << log2_block) + 1;
  const std::size_t blocks = kHeaderBytes + num_blocks * (kEntryBytes + 8) + raw_bytes;
  const std::size_t frame =
      kHeaderBytes + snug::encode_bound(raw_bytes, {options.dtype, Codec::kEntropy, 0, 1});
  return std::max(blocks, frame);
}

Result<std::size_t> encode(std::span<const std::byte> base, std::span<const std::byte> next,
                           std::span<std::byte> dst, const Options& options) noexcept {
  auto header = make_header(next, options.dtype, options.log2_block);
  if (!header) return header.status();
  if (base.size() != next.size())
    return failure(Code::kUsage, "base and next differ in size", base.size(), next.size());
  const auto encode_blocks = [&] {
    header->kind = Kind::kBlocks;
    return Encoder(*header, bytes_of(base), bytes_of(next), dst).run(options.num_threads);
  };
  const Status status = encode_blocks();
  // Without room for the blocks there may still be room for a frame.
  const bool no_room = status.code == Code::kDstTooSmall;
  if (!status.ok() && !no_room) return status;
  if (no_room || header->delta_bytes > next.size() / kTryFrameFrom) {
    if (!options.allow_frame) return no_room ? Result<std::size_t>(status) : seal(*header, dst);
    const std::uint64_t blocks_bytes = no_room ? ~std::uint64_t{0} : header->delta_bytes;
    const Status framed = put_frame(*header, next, dst, options.num_threads);
    if (!framed.ok() && no_room) return framed;
    if (framed.ok() && no_room) {
      header->base_hash = tensor_hash(base, options.num_threads);
      header->target_hash = tensor_hash(next, options.num_threads);
    }
    // The frame has overwritten the blocks; they are made again if they were smaller.
    if (!framed.ok() || header->delta_bytes >= blocks_bytes)
      if (const Status again = encode_blocks(); !again.ok()) return again;
  }
  return seal(*header, dst);
}

Result<std::size_t> encode_full(std::span<const std::byte> next, std::span<std::byte> dst,
                                const Options& options) noexcept {
  auto header = make_header(next, options.dtype, options.log2_block);
  if (!header) return header.status();
  if (Status s = put_frame(*header, next, dst, options.num_threads); !s.ok()) return s;
  header->target_hash = tensor_hash(next, options.num_threads);
  header->num_changed = header->num_elems;
  return seal(*header, dst);
}

}  // namespace snug::delta
