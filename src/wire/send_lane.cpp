// One lane of the sending side: claim a chunk, encode it, send it.
#include <zstd.h>

#include <memory>
#include <new>

#include "snug/codec.h"
#include "wire/connection_core.h"

namespace snug::wire {
namespace {

constexpr int kZstdLevel = 1;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

class Connection::Core::SendLane {
 public:
  SendLane(Core& core, Channel& channel)
      : core_(core),
        channel_(channel),
        raw_(std::make_unique_for_overwrite<std::byte[]>(core.options_.chunk_bytes)),
        // Sources that encode may choose small blocks, whose frames can be longer.
        coded_bytes_(encode_bound(core.options_.chunk_bytes, {.log2_block = 12})),
        coded_(std::make_unique_for_overwrite<std::byte[]>(coded_bytes_)),
        workspace_(std::make_unique_for_overwrite<std::byte[]>(workspace_bytes())) {}

  Status send_chunk(Outgoing& message, std::uint64_t chunk_idx) {
    const ChunkPlace place = message.table.at(chunk_idx);
    LaneHeader header;
    header.message = message.number;
    header.chunk_idx = chunk_idx;
    header.raw_bytes = place.num_bytes;
    // Where the source encodes, the bytes are fetched only if they travel raw.
    const bool deferred = message.source->encodes() && message.known.empty();
    std::span<const std::byte> raw;
    if (!deferred)
      if (Status s = fetch(message, place, header, raw); !s.ok()) return s;
    std::span<const std::byte> payload;
    if (chunk_idx < message.known.size() && message.known[chunk_idx] == header.raw_hash) {
      header.kind = PayloadKind::kKnown;
    } else {
      payload = encode_chunk(message, place, raw, header);
      if (payload.empty() && deferred)
        if (Status s = fetch(message, place, header, payload); !s.ok()) return s;
    }
    header.has_raw_hash = header.kind == PayloadKind::kFrame && deferred ? 0 : 1;
    header.payload_bytes = payload.size();
    seal(header);
    const auto start = Clock::now();
    if (Status s = channel_.send(bytes_of(header), payload, core_.deadline()); !s.ok()) return s;
    count(header, seconds_since(start));
    message.state->done_bytes += place.num_bytes;
    return {};
  }

 private:
  // The chunk's bytes, and their hash.
  Status fetch(Outgoing& message, const ChunkPlace& place, LaneHeader& header,
               std::span<const std::byte>& raw) {
    raw = message.source->view(place.offset, place.num_bytes);
    if (raw.empty()) {
      const std::span<std::byte> buffer(raw_.get(), place.num_bytes);
      if (Status s = message.source->read(place.offset, buffer); !s.ok()) return s;
      raw = buffer;
    }
    header.raw_hash = hash_bytes(raw);
    return {};
  }

  // Sets kind and mode; returns the payload: `raw` where encoding does not help.
  std::span<const std::byte> encode_chunk(Outgoing& message, const ChunkPlace& place,
                                          std::span<const std::byte> raw, LaneHeader& header) {
    header.mode = core_.controller_.pick(place.num_bytes);
    if (header.mode == Mode::kRaw) return raw;
    CompressionProbe& probe = message.probes[static_cast<int>(place.dtype)];
    if (!probe.worth_trying()) {
      header.mode = Mode::kRaw;
      return raw;
    }
    const bool as_text = place.dtype == DType::kBytes && !raw.empty();
    const auto start = Clock::now();
    const std::size_t n = raw.empty() ? source_frame(*message.source, place, header.mode)
                          : as_text   ? zstd(raw)
                                      : frame(place.dtype, raw, header.mode);
    encode_seconds_ += seconds_since(start);
    probe.tried(place.num_bytes, n);
    if (!helps(place.num_bytes, n)) return raw;
    header.kind = as_text ? PayloadKind::kZstd : PayloadKind::kFrame;
    return {coded_.get(), n};
  }

  // All return the chunk's size where the codec fails or does not help.
  std::size_t source_frame(Source& source, const ChunkPlace& place, Mode mode) {
    const auto n =
        source.encode(place.offset, place.num_bytes, codec_of(mode), {coded_.get(), coded_bytes_});
    return n ? *n : place.num_bytes;
  }
  std::size_t frame(DType dtype, std::span<const std::byte> raw, Mode mode) {
    const EncodeOptions options{.dtype = dtype, .codec = codec_of(mode)};
    const auto n =
        encode(raw, {coded_.get(), coded_bytes_}, options, {workspace_.get(), workspace_bytes()});
    return n ? *n : raw.size();
  }
  std::size_t zstd(std::span<const std::byte> raw) {
    const std::size_t n =
        ZSTD_compress(coded_.get(), coded_bytes_, raw.data(), raw.size(), kZstdLevel);
    return ZSTD_isError(n) ? raw.size() : n;
  }

  void count(const LaneHeader& header, double send_seconds) {
    core_.touch_out();
    const std::lock_guard lock(core_.mutex_);
    core_.count_chunk(header);
    ++core_.num_chunks_out_;
    core_.stats_.send_wait_seconds += send_seconds;
    core_.stats_.encode_seconds += std::exchange(encode_seconds_, 0);
  }

  Core& core_;
  Channel& channel_;
  const std::unique_ptr<std::byte[]> raw_;
  const std::size_t coded_bytes_;
  const std::unique_ptr<std::byte[]> coded_, workspace_;
  double encode_seconds_ = 0;
};

void Connection::Core::run_send_lane(Channel& channel) noexcept try {
  SendLane lane(*this, channel);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !to_send_.empty() || !status_.ok(); });
    if (!status_.ok()) return;
    const std::shared_ptr<Outgoing> message = to_send_.front();
    const std::uint64_t chunk_idx = message->next_chunk++;
    if (message->next_chunk == message->table.num_chunks()) to_send_.pop_front();
    ++message->busy;
    lock.unlock();
    const Status s = guarded([&] { return lane.send_chunk(*message, chunk_idx); });
    if (!s.ok()) lane_failed(s);
    lock.lock();
    if (--message->busy == 0 && message->confirmed) {
      message->state->finish({});
      outgoing_.erase(message->number);
    }
    finish_if_failed(*message);
  }
} catch (const std::exception&) {
  fail(kOutOfMemory);
}

}  // namespace snug::wire
