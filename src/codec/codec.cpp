// The public codec API: frames out of blocks, threads over blocks.
#include "snug/codec.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>

#include "codec/frame_reader.h"
#include "codec/frame_writer.h"
#include "codec/parallel.h"

namespace snug {
namespace {

using codec::Workspace;
using frame::bytes_of;
using frame::Entry;
using frame::failure;
using frame::Header;

constexpr Status kNoMemory{Code::kInternal, "out of memory for the workspace"};

// Encodes a tensor to a frame in memory; threads share it.
class MemoryEncoder {
 public:
  MemoryEncoder(const Header& header, Codec codec, const std::uint8_t* raw,
                std::span<std::byte> dst) noexcept
      : writer_(header, codec, dst.first(header.payload_start())),
        codec_(codec),
        raw_(raw),
        dst_(dst),
        turn_(header.payload_start()) {}

  std::uint64_t num_pairs() const noexcept { return writer_.num_pairs(); }

  // Takes pairs until there are none left, or one does not fit.
  void work(Workspace& ws) noexcept {
    const std::size_t pair_bytes = 2 * writer_.header().block_bytes();
    for (std::uint64_t pair; (pair = turn_.take_ticket()) < num_pairs();) {
      const std::uint8_t* src = raw_ + pair * pair_bytes;
      const std::uint8_t* next = pair + 1 < num_pairs() ? src + pair_bytes : nullptr;
      codec::CodedPair coded = writer_.encode(pair, src, next, ws);
      std::uint64_t at;
      if (!turn_.wait_for(pair, at)) return;
      if (dst_.size() - at < coded.num_bytes()) return turn_.fail();
      turn_.pass(at + coded.num_bytes());
      copy_payloads(coded, at, ws);
      writer_.enter(coded, at);
    }
  }

  // 0 if it did not fit.
  std::uint64_t frame_bytes() const noexcept { return writer_.frame_bytes(); }

 private:
  void copy_payloads(codec::CodedPair& coded, std::uint64_t at, const Workspace& ws) noexcept {
    for (std::size_t i = 0; i < coded.num_blocks; ++i) {
      Entry& entry = coded.entries[i];
      const std::uint64_t sum =
          codec::kernels().copy_out(ws.payloads[i], entry.num_bytes, bytes_of(dst_) + at,
                                    next_input(coded.first_block + 2 + i));
      entry.checksum = frame::checksum_finish(sum, entry.num_bytes);
      at += entry.num_bytes;
    }
    codec::kernels().finish_writes();
  }
  // Elements to prefetch. Entropy coding fetches them while it computes; the other codecs have
  // nothing but the copy to hide that behind.
  std::span<const std::uint8_t> next_input(std::uint64_t block) const noexcept {
    const Header& header = writer_.header();
    if (codec_ == Codec::kEntropy || block >= header.num_blocks()) return {};
    return {raw_ + block * header.block_bytes(),
            static_cast<std::size_t>(header.elems_in_block(block)) * elem_bytes(header.dtype)};
  }

  codec::FrameWriter writer_;
  const Codec codec_;
  const std::uint8_t* const raw_;
  const std::span<std::byte> dst_;
  codec::Turnstile turn_;
};

// Runs work(workspace): here in the caller's workspace, or on several threads in new ones. Threads
// that get none leave the work to the others; false if none got any.
template <class Work>
bool run(Workspace* ws, int num_threads, Work work) noexcept {
  if (ws != nullptr) return work(*ws), true;
  std::atomic<bool> any{false};
  codec::parallel(num_threads, [&] {
    const std::unique_ptr<Workspace> own(new (std::nothrow) Workspace);
    if (!own) return;
    any = true;
    work(*own);
  });
  return any;
}

Result<std::size_t> encode_with(std::span<const std::byte> raw, std::span<std::byte> dst,
                                const EncodeOptions& options, Workspace* ws) noexcept {
  if (static_cast<int>(options.codec) >= kNumCodecs)
    return failure(Code::kUsage, "not a codec", static_cast<std::uint64_t>(options.codec));
  const auto header = frame::make_header(frame::tail_of(raw, options.dtype), raw.size(),
                                         options.dtype, options.log2_block);
  if (!header) return header.status();
  const Status too_small = failure(Code::kDstTooSmall, "frame does not fit", dst.size(),
                                   encode_bound(raw.size(), options));
  if (dst.size() < header->payload_start()) return too_small;
  MemoryEncoder encoder(*header, options.codec, bytes_of(raw), dst);
  const int num_threads = codec::thread_count(options.num_threads, encoder.num_pairs());
  if (!run(ws, num_threads, [&](Workspace& own) { encoder.work(own); })) return kNoMemory;
  const std::uint64_t frame_bytes = encoder.frame_bytes();
  return frame_bytes == 0 ? Result<std::size_t>(too_small) : frame_bytes;
}

// A frame whose header and index were checked and that is all there.
Result<Header> open_frame(std::span<const std::byte> frame) noexcept {
  auto header = frame::read_header(frame);
  if (!header) return header;
  if (header->frame_bytes > frame.size())
    return frame::corrupt("frame is cut short", frame.size(), frame.size(), header->frame_bytes);
  if (Status s = frame::check_index(*header, frame.first(header->payload_start())); !s.ok())
    return s;
  return header;
}

// Decodes blocks [first, first + count) of an opened frame.
Status decode_some(const Header& header, std::span<const std::byte> frame, std::uint64_t first,
                   std::uint64_t count, std::uint8_t* dst, Workspace& ws) noexcept {
  const codec::FrameReader reader(header, frame);
  return reader.decode(first, count, bytes_of(frame) + reader.entry(first).offset, dst, ws);
}

Result<std::size_t> decode_with(std::span<const std::byte> frame, std::span<std::byte> dst,
                                int num_threads, Workspace* ws) noexcept {
  const auto header = open_frame(frame);
  if (!header) return header.status();
  if (dst.size() < header->raw_bytes())
    return failure(Code::kDstTooSmall, "tensor does not fit", dst.size(), header->raw_bytes());
  const std::uint64_t num_blocks = header->num_blocks(), num_pairs = (num_blocks + 1) / 2;
  std::atomic<std::uint64_t> next{0};
  codec::FirstError<> error;
  const auto work = [&](Workspace& space) {
    for (std::uint64_t pair; !error && (pair = next.fetch_add(1)) < num_pairs;) {
      const std::uint64_t first = 2 * pair, count = first + 1 < num_blocks ? 2 : 1;
      std::uint8_t* to = bytes_of(dst) + first * header->block_bytes();
      error.keep(first, decode_some(*header, frame, first, count, to, space));
    }
  };
  if (!run(ws, codec::thread_count(num_threads, num_pairs), work)) return kNoMemory;
  if (error) return error.status();
  if (header->num_tail_bytes != 0)  // dst may be null where there is nothing
    std::memcpy(bytes_of(dst) + header->raw_bytes() - header->num_tail_bytes, header->tail,
                header->num_tail_bytes);
  return header->raw_bytes();
}

// Runs call(workspace) with the workspace that lies in a caller's buffer.
template <class Call>
Result<std::size_t> with_workspace(std::span<std::byte> buffer, Call call) noexcept {
  void* at = buffer.data();
  std::size_t room = buffer.size();
  at = std::align(alignof(Workspace), sizeof(Workspace), at, room);
  if (at == nullptr)
    return failure(Code::kUsage, "workspace too small", buffer.size(), workspace_bytes());
  return call(static_cast<Workspace*>(at));
}

}  // namespace

std::size_t encode_bound(std::size_t raw_bytes, const EncodeOptions& options) noexcept {
  auto header = frame::make_header({}, raw_bytes, options.dtype, options.log2_block);
  if (!header) return 0;
  return header->payload_start() + frame::align_up(raw_bytes);
}

std::size_t workspace_bytes() noexcept { return sizeof(Workspace) + alignof(Workspace); }

Result<std::size_t> encode(std::span<const std::byte> raw, std::span<std::byte> dst,
                           const EncodeOptions& options) noexcept {
  return encode_with(raw, dst, options, nullptr);
}

Result<std::size_t> encode(std::span<const std::byte> raw, std::span<std::byte> dst,
                           const EncodeOptions& options, std::span<std::byte> workspace) noexcept {
  return with_workspace(workspace,
                        [&](Workspace* ws) { return encode_with(raw, dst, options, ws); });
}

Result<FrameInfo> inspect(std::span<const std::byte> frame) noexcept {
  auto header = frame::read_header(frame);
  if (!header) return header.status();
  return FrameInfo{header->dtype,        header->raw_bytes(),
                   header->frame_bytes,  header->num_elems,
                   header->num_blocks(), static_cast<std::uint32_t>(header->block_elems())};
}

Result<std::size_t> decode(std::span<const std::byte> frame, std::span<std::byte> dst,
                           int num_threads) noexcept {
  return decode_with(frame, dst, num_threads, nullptr);
}

Result<std::size_t> decode(std::span<const std::byte> frame, std::span<std::byte> dst,
                           std::span<std::byte> workspace) noexcept {
  return with_workspace(workspace, [&](Workspace* ws) { return decode_with(frame, dst, 1, ws); });
}

Result<std::size_t> decode_range(std::span<const std::byte> frame, std::uint64_t first,
                                 std::uint64_t count, std::span<std::byte> dst) noexcept {
  const auto header = open_frame(frame);
  if (!header) return header.status();
  if (first > header->num_elems || count > header->num_elems - first)
    return failure(Code::kUsage, "range outside the tensor", first, header->num_elems);
  const std::size_t width = elem_bytes(header->dtype);
  if (dst.size() / width < count)
    return failure(Code::kDstTooSmall, "range does not fit", dst.size(), count * width);
  struct Local {
    Workspace ws;
    std::uint8_t block[frame::kMaxBlockElems * 8];
  };
  const std::unique_ptr<Local> local(new (std::nothrow) Local);
  if (!local) return kNoMemory;
  std::uint8_t* out = bytes_of(dst);
  while (count > 0) {
    const std::uint64_t i = first >> header->log2_block;
    const std::uint64_t skip = first - (i << header->log2_block);
    const std::uint64_t here = std::min(count, header->elems_in_block(i) - skip);
    if (Status s = decode_some(*header, frame, i, 1, local->block, local->ws); !s.ok()) return s;
    std::memcpy(out, local->block + skip * width, here * width);
    out += here * width;
    first += here;
    count -= here;
  }
  return static_cast<std::size_t>(out - bytes_of(dst));
}

Status verify(std::span<const std::byte> frame) noexcept {
  const auto header = open_frame(frame);
  if (!header) return header.status();
  const codec::FrameReader reader(*header, frame);
  for (std::uint64_t i = 0; i < header->num_blocks(); ++i) {
    const Entry entry = reader.entry(i);
    if (Status s = codec::check_payload(entry, i, bytes_of(frame) + entry.offset); !s.ok())
      return s;
  }
  return {};
}

Result<FrameStats> frame_stats(std::span<const std::byte> frame) noexcept {
  const auto header = open_frame(frame);
  if (!header) return header.status();
  return codec::FrameReader(*header, frame).stats();
}

}  // namespace snug
