// The public codec API: frames out of blocks, threads over blocks.
#include "snug/codec.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <new>

#include "codec/block.h"
#include "codec/parallel.h"
#include "frame/checksum.h"
#include "frame/frame.h"

namespace snug {
namespace {

using codec::BlockJob;
using codec::Workspace;
using frame::Entry;
using frame::Header;

const std::uint8_t* bytes_of(std::span<const std::byte> span) noexcept {
  return reinterpret_cast<const std::uint8_t*>(span.data());
}
std::uint8_t* bytes_of(std::span<std::byte> span) noexcept {
  return reinterpret_cast<std::uint8_t*>(span.data());
}

constexpr Status kNoMemory{Code::kInternal, "out of memory for the workspace"};

// The workspace inside a caller's buffer, or nullptr if that is too small.
Workspace* place_workspace(std::span<std::byte> buffer) noexcept {
  void* at = buffer.data();
  std::size_t room = buffer.size();
  return static_cast<Workspace*>(std::align(alignof(Workspace), sizeof(Workspace), at, room));
}

// What all threads of one encode share. Blocks are coded in any order and
// committed in theirs, so that the bytes do not depend on the threads.
struct FrameEncoder {
  Header header;
  const std::uint8_t* raw;
  std::uint8_t* dst;
  std::size_t dst_bytes;
  Codec codec;

  codec::BlockInput block_input(std::uint64_t i) const noexcept {
    const std::size_t block_bytes = elem_bytes(header.dtype) << header.log2_block;
    const std::uint8_t* src = raw + i * block_bytes;
    return {src, header.elems_in_block(i), header.dtype,
            i + 1 < header.num_blocks() ? src + block_bytes : nullptr};
  }
  std::uint64_t num_pairs() const noexcept { return (header.num_blocks() + 1) / 2; }

  // Blocks 2 * pair and the one after it, if there is one: coded in `ws`.
  struct Coded {
    std::uint64_t first_block;
    int num_blocks;
    Entry entries[2];
    std::uint64_t num_bytes() const noexcept { return entries[0].num_bytes + entries[1].num_bytes; }
  };
  Coded encode_pair(std::uint64_t pair, Workspace& ws) const noexcept {
    Coded coded{2 * pair, 2 * pair + 1 < header.num_blocks() ? 2 : 1, {}};
    codec::BlockInput inputs[2];
    for (int i = 0; i < coded.num_blocks; ++i)
      inputs[i] = block_input(coded.first_block + static_cast<unsigned>(i));
    codec::encode_blocks({inputs, static_cast<std::size_t>(coded.num_blocks)}, codec, coded.entries,
                         ws);
    return coded;
  }
  // What the block two further on starts with. Entropy coding fetches it while
  // it computes; the other codecs have nothing else to hide it behind.
  std::span<const std::uint8_t> next_input(const Coded& coded, int i) const noexcept {
    const std::uint64_t block = coded.first_block + 2 + static_cast<unsigned>(i);
    if (codec == Codec::kEntropy || block >= header.num_blocks()) return {};
    const codec::BlockInput input = block_input(block);
    return {input.src, input.num_elems * elem_bytes(input.dtype)};
  }
  void place(const Coded& coded, std::uint64_t at, const Workspace& ws) const noexcept {
    for (int i = 0; i < coded.num_blocks; ++i) {
      Entry entry = coded.entries[i];
      entry.offset = at;
      entry.checksum =
          frame::checksum_finish(codec::kernels().copy_out(ws.payloads[i], entry.num_bytes,
                                                           dst + at, next_input(coded, i)),
                                 entry.num_bytes);
      frame::write_entry(entry,
                         dst + frame::kHeaderBytes +
                             (coded.first_block + static_cast<unsigned>(i)) * frame::kEntryBytes);
      at += entry.num_bytes;
    }
    codec::kernels().finish_writes();
  }

  // Returns the end of the frame, or 0 if dst is too small.
  std::uint64_t run_here(Workspace& ws) const noexcept {
    std::uint64_t end = header.payload_start();
    for (std::uint64_t pair = 0; pair < num_pairs(); ++pair) {
      const Coded coded = encode_pair(pair, ws);
      if (dst_bytes - end < coded.num_bytes()) return 0;
      place(coded, end, ws);
      end += coded.num_bytes();
    }
    return end;
  }

  std::uint64_t run_threads(int num_threads) const noexcept {
    codec::Turnstile turn(header.payload_start());
    codec::parallel(num_threads, [&] {
      std::unique_ptr<Workspace> ws(new (std::nothrow) Workspace);
      if (!ws) return turn.fail();
      for (std::uint64_t pair; (pair = turn.take_ticket()) < num_pairs();) {
        const Coded coded = encode_pair(pair, *ws);
        std::uint64_t at;
        if (!turn.wait_for(pair, at)) return;
        if (dst_bytes - at < coded.num_bytes()) return turn.fail();
        turn.pass(at + coded.num_bytes());
        place(coded, at, *ws);
      }
    });
    return turn.failed() ? 0 : turn.position();
  }
};

Result<std::size_t> encode_with(std::span<const std::byte> raw, std::span<std::byte> dst,
                                const EncodeOptions& options, Workspace* ws) noexcept {
  if (static_cast<int>(options.codec) >= kNumCodecs)
    return Status{Code::kUsage, "not a codec", kNowhere, kNowhere,
                  static_cast<std::uint64_t>(options.codec)};
  const std::size_t width = elem_bytes(options.dtype);
  auto made = frame::make_header(width == 0 ? raw.first(0) : raw.last(raw.size() % width),
                                 raw.size(), options.dtype, options.log2_block);
  if (!made) return made.status();
  FrameEncoder encoder{*made, bytes_of(raw), bytes_of(dst), dst.size(), options.codec};
  const Status too_small{Code::kDstTooSmall, "frame does not fit",
                         kNowhere,           kNowhere,
                         dst.size(),         encode_bound(raw.size(), options)};
  if (dst.size() < encoder.header.payload_start()) return too_small;

  const int num_threads = codec::thread_count(options.num_threads, encoder.num_pairs());
  std::uint64_t end;
  if (ws != nullptr) {
    end = encoder.run_here(*ws);
  } else if (num_threads > 1) {
    end = encoder.run_threads(num_threads);
  } else {
    std::unique_ptr<Workspace> own(new (std::nothrow) Workspace);
    if (!own) return kNoMemory;
    end = encoder.run_here(*own);
  }
  if (end == 0) return too_small;
  encoder.header.frame_bytes = end;
  frame::write_header(encoder.header, encoder.dst);
  encoder.header.checksum = frame::head_checksum(dst.first(encoder.header.payload_start()));
  frame::write_header(encoder.header, encoder.dst);
  return end;
}

// A frame whose header and index were checked and that is all there.
Result<Header> open_frame(std::span<const std::byte> frame) noexcept {
  auto header = frame::read_header(frame);
  if (!header) return header;
  if (header->frame_bytes > frame.size())
    return Status{Code::kCorrupt, "frame is cut short", kNowhere,
                  frame.size(),   frame.size(),         header->frame_bytes};
  if (Status s = frame::check_index(*header, frame.first(header->payload_start())); !s.ok())
    return s;
  return header;
}

BlockJob block_job(const Header& header, std::span<const std::byte> frame, std::uint64_t i,
                   std::uint8_t* dst) noexcept {
  BlockJob job;
  job.entry = frame::read_entry(bytes_of(frame) + frame::kHeaderBytes + i * frame::kEntryBytes);
  job.block_idx = i;
  job.payload = bytes_of(frame) + job.entry.offset;
  job.num_elems = header.elems_in_block(i);
  job.dst = dst;
  return job;
}

// Decodes blocks [first, last), at most two, to their place in dst.
Status decode_some(const Header& header, std::span<const std::byte> frame, std::uint64_t first,
                   std::uint64_t last, std::uint8_t* dst, Workspace& ws) noexcept {
  BlockJob jobs[2];
  const std::size_t block_bytes = header.block_elems() * elem_bytes(header.dtype);
  for (std::uint64_t i = first; i < last; ++i)
    jobs[i - first] = block_job(header, frame, i, dst + i * block_bytes);
  return codec::decode_blocks({jobs, last - first}, header.dtype, ws);
}

Result<std::size_t> decode_with(std::span<const std::byte> frame, std::span<std::byte> dst,
                                int num_threads, Workspace* ws) noexcept {
  auto header = open_frame(frame);
  if (!header) return header.status();
  if (dst.size() < header->raw_bytes())
    return Status{Code::kDstTooSmall, "tensor does not fit", kNowhere, kNowhere,
                  dst.size(),         header->raw_bytes()};
  const std::uint64_t num_blocks = header->num_blocks(), num_pairs = (num_blocks + 1) / 2;
  std::atomic<std::uint64_t> next{0};
  codec::FirstError error;
  const auto work = [&](Workspace& space) {
    for (std::uint64_t pair; !error && (pair = next.fetch_add(1)) < num_pairs;) {
      const std::uint64_t last = 2 * pair + 2 < num_blocks ? 2 * pair + 2 : num_blocks;
      error.keep(2 * pair, decode_some(*header, frame, 2 * pair, last, bytes_of(dst), space));
    }
  };
  if (ws != nullptr) {
    work(*ws);
  } else {
    codec::parallel(codec::thread_count(num_threads, num_pairs), [&] {
      std::unique_ptr<Workspace> own(new (std::nothrow) Workspace);
      own ? work(*own) : error.keep(0, kNoMemory);
    });
  }
  if (error) return error.status();
  if (header->num_tail_bytes != 0)  // dst may be null where there is nothing
    std::memcpy(bytes_of(dst) + header->raw_bytes() - header->num_tail_bytes, header->tail,
                header->num_tail_bytes);
  return header->raw_bytes();
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
  Workspace* ws = place_workspace(workspace);
  if (ws == nullptr)
    return Status{Code::kUsage, "workspace too small", kNowhere,
                  kNowhere,     workspace.size(),      workspace_bytes()};
  return encode_with(raw, dst, options, ws);
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
  Workspace* ws = place_workspace(workspace);
  if (ws == nullptr)
    return Status{Code::kUsage, "workspace too small", kNowhere,
                  kNowhere,     workspace.size(),      workspace_bytes()};
  return decode_with(frame, dst, 1, ws);
}

Result<std::size_t> decode_range(std::span<const std::byte> frame, std::uint64_t first,
                                 std::uint64_t count, std::span<std::byte> dst) noexcept {
  auto header = open_frame(frame);
  if (!header) return header.status();
  if (first > header->num_elems || count > header->num_elems - first)
    return Status{Code::kUsage, "range outside the tensor", kNowhere, kNowhere,
                  first,        header->num_elems};
  const std::size_t width = elem_bytes(header->dtype);
  if (dst.size() / width < count)
    return Status{Code::kDstTooSmall, "range does not fit", kNowhere,
                  kNowhere,           dst.size(),           count * width};
  struct Local {
    Workspace ws;
    std::uint8_t block[frame::kMaxBlockElems * 8];
  };
  std::unique_ptr<Local> local(new (std::nothrow) Local);
  if (!local) return kNoMemory;
  std::uint8_t* out = bytes_of(dst);
  while (count > 0) {
    const std::uint64_t i = first >> header->log2_block;
    const std::uint64_t skip = first - (i << header->log2_block);
    const std::uint64_t here =
        header->elems_in_block(i) - skip < count ? header->elems_in_block(i) - skip : count;
    const BlockJob job = block_job(*header, frame, i, local->block);
    if (Status s = codec::decode_blocks({&job, 1}, header->dtype, local->ws); !s.ok()) return s;
    std::memcpy(out, local->block + skip * width, here * width);
    out += here * width;
    first += here;
    count -= here;
  }
  return static_cast<std::size_t>(out - bytes_of(dst));
}

Status verify(std::span<const std::byte> frame) noexcept {
  auto header = open_frame(frame);
  if (!header) return header.status();
  for (std::uint64_t i = 0; i < header->num_blocks(); ++i) {
    const BlockJob job = block_job(*header, frame, i, nullptr);
    if (Status s = codec::check_payload(job.entry, i, job.payload); !s.ok()) return s;
  }
  return {};
}

Result<FrameStats> frame_stats(std::span<const std::byte> frame) noexcept {
  auto header = open_frame(frame);
  if (!header) return header.status();
  FrameStats stats;
  for (std::uint64_t i = 0; i < header->num_blocks(); ++i) {
    const BlockJob job = block_job(*header, frame, i, nullptr);
    ++stats.num_blocks[static_cast<int>(job.entry.codec)];
    stats.num_bytes[static_cast<int>(job.entry.codec)] += job.entry.num_bytes;
  }
  return stats;
}

}  // namespace snug
