// A delta applied to a whole tensor, in place or not, or inverted; hashes.
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

constexpr std::size_t kHashChunkBytes = std::size_t{1} << 20;

Status check_base_size(const Header& header, std::size_t base_bytes) noexcept {
  if (base_bytes == header.raw_bytes()) return {};
  return failure(Code::kWrongBase, "the tensor has another size than the delta was made for",
                 base_bytes, header.raw_bytes());
}

Status check_target(const Header& header, std::uint64_t hash) noexcept {
  if (hash == header.target_hash) return {};
  return failure(Code::kCorrupt, "result differs from the target: hash does not match", hash,
                 header.target_hash);
}

// Decodes all blocks, to dst or only to compare hashes.
class Decoder {
 public:
  // dst may be null, and may be base.
  Decoder(const Header& header, const std::uint8_t* delta, const std::uint8_t* base,
          std::uint8_t* dst)
      : header_(header), delta_(delta), base_(base), dst_(dst) {}

  // All blocks are hashed whatever happens to one of them: an error in a block of another
  // base is an error of the base.
  Status check(int num_threads) noexcept {
    if (header_.num_blocks() == 0) {
      sums_.base = kernels().hash_terms(base_, header_.num_tail_bytes, 0);
      sums_.target = kernels().hash_terms(header_.tail, header_.num_tail_bytes, 0);
    }
    if (!run(num_threads)) return kNoMemory;
    std::uint64_t base_hash, target_hash;
    sums_.finish(header_.raw_bytes(), base_hash, target_hash);
    if (base_hash != header_.base_hash)
      return failure(Code::kWrongBase, "the tensor is another version than the delta was made for",
                     base_hash, header_.base_hash);
    return error_ ? error_.status() : check_target(header_, target_hash);
  }

  // After `check`: writes to dst, which may be the base.
  Status write(int num_threads) noexcept {
    hashing_ = false;
    return run(num_threads) ? error_.status() : kNoMemory;
  }

 private:
  // Does all blocks, or none if there is no memory.
  bool run(int num_threads) noexcept {
    next_idx_ = num_done_ = 0;
    codec::parallel(codec::thread_count(num_threads, header_.num_blocks()), [this] { work(); });
    return num_done_ == header_.num_blocks();
  }

  void work() noexcept {
    const auto scratch = make_scratch();
    if (scratch == nullptr) return;  // the other threads do its work
    for (std::uint64_t idx; (idx = next_idx_++) < header_.num_blocks(); ++num_done_)
      decode(idx, *scratch);
  }

  std::uint64_t payload_end(std::uint64_t idx) const noexcept {
    std::uint32_t end;
    std::memcpy(&end, delta_ + kHeaderBytes + idx * kEntryBytes, kEntryBytes);
    return std::uint64_t{end} * 4;
  }

  void decode(std::uint64_t idx, Scratch& scratch) noexcept {
    const BlockRange range(header_, idx);
    const std::uint64_t begin = idx == 0 ? header_.payload_start() : payload_end(idx - 1);
    const std::span payload(delta_ + begin, payload_end(idx) - begin);
    const std::uint8_t* base = base_ + range.first_byte;
    const std::size_t elem_part = range.num_elems * elem_bytes(header_.dtype);
    const bool apart = dst_ != nullptr && dst_ != base_;
    std::uint8_t* to = apart ? dst_ + range.first_byte : scratch.target;
    if (hashing_) sums_.base += range.hash(base);
    if (!hashing_ && payload.empty() && range.num_bytes == elem_part) return;
    const Status status =
        decode_block(payload, idx, base, range.num_elems, header_.dtype, to, scratch);
    if (!status.ok()) return error_.keep(idx, status);
    std::memcpy(to + elem_part, header_.tail, range.num_bytes - elem_part);
    if (hashing_)
      sums_.target += range.hash(to);
    else
      std::memcpy(dst_ + range.first_byte, to, range.num_bytes);
  }

  const Header& header_;
  const std::uint8_t *delta_, *base_;
  std::uint8_t* dst_;
  bool hashing_ = true;
  std::atomic<std::uint64_t> next_idx_{0}, num_done_{0};
  HashSums sums_;
  codec::FirstError<> error_;
};

// Reads the header and checks all that does not need the base's content.
Result<Header> open(std::span<const std::byte> delta) noexcept {
  auto header = read_header(delta);
  if (!header) return header;
  if (Status s = check_index(*header, delta); !s.ok()) return s;
  if (header->kind == Kind::kBlocks) return header;
  const auto info = snug::inspect(delta.subspan(kHeaderBytes));
  if (!info) return info.status();
  if (info->raw_bytes != header->raw_bytes() || info->dtype != header->dtype ||
      info->frame_bytes != header->delta_bytes - kHeaderBytes)
    return frame::corrupt("frame does not belong to this delta", kHeaderBytes, info->raw_bytes,
                          header->raw_bytes());
  return header;
}

std::span<const std::byte> frame_of(const Header& header, std::span<const std::byte> delta) {
  return delta.subspan(kHeaderBytes, header.delta_bytes - kHeaderBytes);
}

// Decodes the frame twice: to know its hash, then to write it. By then nothing can fail,
// not even for lack of memory.
Status replace_by_frame(const Header& header, std::span<const std::byte> frame,
                        std::span<std::byte> tensor) noexcept {
  const auto scratch = make_scratch();
  const std::unique_ptr<std::byte[]> workspace(new (std::nothrow) std::byte[workspace_bytes()]);
  if (scratch == nullptr || workspace == nullptr) return kNoMemory;
  const std::size_t width = elem_bytes(header.dtype);
  const std::span<std::byte> target(reinterpret_cast<std::byte*>(scratch->target),
                                    sizeof scratch->target);
  std::uint64_t sum = 0;
  for (std::uint64_t first = 0; first < header.num_elems; first += kMaxBlockElems) {
    const std::uint64_t count = std::min<std::uint64_t>(kMaxBlockElems, header.num_elems - first);
    const auto part = snug::decode_range(frame, first, count, target);
    if (!part) return part.status();
    std::size_t num_bytes = *part;
    if (first + count == header.num_elems) {
      std::memcpy(scratch->target + num_bytes, header.tail, header.num_tail_bytes);
      num_bytes += header.num_tail_bytes;
    }
    sum += kernels().hash_terms(scratch->target, num_bytes, first * width / 8);
  }
  if (header.num_elems == 0) sum = kernels().hash_terms(header.tail, header.num_tail_bytes, 0);
  if (Status s = check_target(header, hash_finish(sum, header.raw_bytes())); !s.ok()) return s;
  return snug::decode(frame, tensor, {workspace.get(), workspace_bytes()}).status();
}

}  // namespace

std::uint64_t tensor_hash(std::span<const std::byte> tensor, int num_threads) noexcept {
  const std::uint8_t* bytes = bytes_of(tensor);
  const std::size_t num_chunks = (tensor.size() + kHashChunkBytes - 1) / kHashChunkBytes;
  std::atomic<std::size_t> next{0};
  std::atomic<std::uint64_t> sum{0};
  codec::parallel(codec::thread_count(num_threads, num_chunks), [&] {
    for (std::size_t i; (i = next++) < num_chunks;) {
      const std::size_t at = i * kHashChunkBytes;
      sum +=
          kernels().hash_terms(bytes + at, std::min(kHashChunkBytes, tensor.size() - at), at / 8);
    }
  });
  return hash_finish(sum, tensor.size());
}

Result<Info> inspect(std::span<const std::byte> delta) noexcept {
  const auto header = read_header(delta);
  if (!header) return header.status();
  Info info;
  info.dtype = header->dtype;
  info.needs_base = header->kind == Kind::kBlocks;
  info.raw_bytes = header->raw_bytes();
  info.delta_bytes = header->delta_bytes;
  info.num_changed = header->num_changed;
  info.base_hash = header->base_hash;
  info.target_hash = header->target_hash;
  info.num_blocks = header->num_blocks();
  info.block_elems = static_cast<std::uint32_t>(header->block_elems());
  return info;
}

Result<std::size_t> apply(std::span<const std::byte> delta, std::span<const std::byte> base,
                          std::span<std::byte> dst, int num_threads) noexcept {
  const auto header = open(delta);
  if (!header) return header.status();
  const auto raw_bytes = static_cast<std::size_t>(header->raw_bytes());
  if (dst.size() < raw_bytes)
    return failure(Code::kDstTooSmall, "no room for the tensor", dst.size(), raw_bytes);
  if (header->kind == Kind::kFrame) {
    const auto done = snug::decode(frame_of(*header, delta), dst, num_threads);
    if (!done) return done;
    if (Status s = check_target(*header, tensor_hash(dst.first(raw_bytes), num_threads)); !s.ok())
      return s;
    return raw_bytes;
  }
  if (Status s = check_base_size(*header, base.size()); !s.ok()) return s;
  // The decoder would take this for a wish to compare only.
  if (raw_bytes > 0 && dst.data() == base.data())
    return Status{Code::kUsage, "base and dst are the same memory: use apply_in_place"};
  if (header->num_blocks() == 0 && raw_bytes > 0) std::memcpy(dst.data(), header->tail, raw_bytes);
  Decoder decoder(*header, bytes_of(delta), bytes_of(base), bytes_of(dst));
  if (Status s = decoder.check(num_threads); !s.ok()) return s;
  return raw_bytes;
}

Status apply_in_place(std::span<const std::byte> delta, std::span<std::byte> tensor,
                      int num_threads) noexcept {
  const auto header = open(delta);
  if (!header) return header.status();
  if (Status s = check_base_size(*header, tensor.size()); !s.ok()) return s;
  if (header->kind == Kind::kFrame)
    return replace_by_frame(*header, frame_of(*header, delta), tensor);
  std::uint8_t* bytes = bytes_of(tensor);
  Decoder decoder(*header, bytes_of(delta), bytes, bytes);
  if (Status s = decoder.check(num_threads); !s.ok()) return s;
  if (header->num_blocks() == 0) {
    if (!tensor.empty()) std::memcpy(bytes, header->tail, tensor.size());
    return {};
  }
  return decoder.write(num_threads);
}

Result<std::size_t> invert(std::span<const std::byte> delta, std::span<const std::byte> base,
                           std::span<std::byte> dst, int num_threads) noexcept {
  const auto header = read_header(delta);
  if (!header) return header.status();
  // The sizes must agree before memory is taken for what a header claims.
  if (Status s = check_base_size(*header, base.size()); !s.ok()) return s;
  const std::unique_ptr<std::byte[]> target(new (std::nothrow) std::byte[base.size()]);
  if (target == nullptr) return kNoMemory;
  const std::span<std::byte> next(target.get(), base.size());
  if (const auto done = apply(delta, base, next, num_threads); !done) return done;
  return encode(next, base, dst, {header->dtype, header->log2_block, true, num_threads});
}

}  // namespace snug::delta
