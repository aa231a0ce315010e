// One lane of the sending side: claim a chunk, encode it, send it.
#include <zstd.h>

#include <functional>
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
        // Sources that encode may choose small blocks, whose frames can be longer.
        coded_bytes_(encode_bound(core.options_.chunk_bytes, {.log2_block = 12})) {}

  Status send_chunk(Outgoing& message, std::uint64_t chunk_idx) {
    const Status s = send_chunk(message, chunk_idx, message.table.at(chunk_idx));
    buffer_.reset();
    return s;
  }

 private:
  Status send_chunk(Outgoing& message, std::uint64_t chunk_idx, const ChunkPlace& place) {
    LaneHeader header;
    header.message = message.number;
    header.chunk_idx = chunk_idx;
    header.raw_bytes = place.num_bytes;
    // Where the source encodes, the bytes are fetched only if they travel raw.
    const bool deferred = message.source->encodes() && message.known.empty();
    const bool may_be_known = chunk_idx < message.known.size();
    std::span<const std::byte> raw, payload;
    if (!deferred)
      if (Status s = fetch(message, place, raw); !s.ok()) return s;
    if (may_be_known) header.raw_hash = hash_bytes(raw);
    if (may_be_known && message.known[chunk_idx] == header.raw_hash) {
      header.kind = PayloadKind::kKnown;
    } else {
      if (Status s = encode_chunk(message, place, raw, header, payload); !s.ok()) return s;
      if (payload.empty() && deferred) {
        if (Status s = fetch(message, place, raw); !s.ok()) return s;
        payload = raw;
      }
    }
    const bool no_hash = header.kind == PayloadKind::kFrame
                             ? deferred
                             : header.kind == PayloadKind::kRaw && channel_.authenticates();
    header.has_raw_hash = no_hash ? 0 : 1;
    if (!no_hash && !may_be_known) header.raw_hash = hash_bytes(raw);
    header.payload_bytes = payload.size();
    seal(header);
    const auto start = Clock::now();
    if (Status s = send(header, payload); !s.ok()) return s;
    count(header, seconds_since(start));
    message.state->done_bytes += place.num_bytes;
    return {};
  }

  // What lies in the lane's own buffer is not needed afterwards.
  Status send(const LaneHeader& header, std::span<const std::byte> payload) {
    const std::span<std::byte> own = buffer_ ? buffer_.span() : std::span<std::byte>{};
    const std::less_equal<> before;
    if (payload.empty() || !before(own.data(), payload.data()) ||
        !before(payload.data() + payload.size(), own.data() + own.size()))
      return channel_.send(bytes_of(header), payload, core_.deadline());
    const auto start = static_cast<std::size_t>(payload.data() - own.data());
    return channel_.send_and_spoil(bytes_of(header), own.subspan(start, payload.size()),
                                   core_.deadline());
  }

  // Room for the chunk, as it is and encoded. Nothing but a chunk of memory that is sent as it is
  // needs none.
  Status take_buffer() {
    if (buffer_) return {};
    auto taken = send_buffers().take(core_.options_.chunk_bytes + coded_bytes_, core_.deadline(),
                                     core_.while_connected());
    if (taken) buffer_ = std::move(*taken);
    return taken.status();
  }
  std::byte* raw_bytes() const { return buffer_.data() + coded_bytes_; }
  std::span<std::byte> coded() const { return {buffer_.data(), coded_bytes_}; }

  Status fetch(Outgoing& message, const ChunkPlace& place, std::span<const std::byte>& raw) {
    raw = message.source->view(place.offset, place.num_bytes);
    if (raw.empty()) {
      if (Status s = take_buffer(); !s.ok()) return s;
      const std::span<std::byte> buffer(raw_bytes(), place.num_bytes);
      if (Status s = message.source->read(place.offset, buffer); !s.ok()) return s;
      raw = buffer;
    }
    return {};
  }

  // Sets kind, mode and the payload, which is `raw` where encoding does not help.
  Status encode_chunk(Outgoing& message, const ChunkPlace& place, std::span<const std::byte> raw,
                      LaneHeader& header, std::span<const std::byte>& payload) {
    payload = raw;
    header.mode = core_.controller_.pick(place.num_bytes);
    if (header.mode == Mode::kRaw) return {};
    CompressionProbe& probe = message.probes[static_cast<int>(place.dtype)];
    if (!probe.worth_trying()) {
      header.mode = Mode::kRaw;
      return {};
    }
    if (Status s = take_buffer(); !s.ok()) return s;
    const bool as_text = place.dtype == DType::kBytes && !raw.empty();
    std::size_t n = place.num_bytes;
    if (raw.empty()) {
      const auto start = Clock::now();
      n = source_frame(*message.source, place, header.mode);
      encode_seconds_ += seconds_since(start);
    } else {
      // zstd allocates its own: the workspace limits how many do so at a time.
      const auto workspace =
          workspaces().take(workspace_bytes(), core_.deadline(), core_.while_connected());
      if (!workspace) return workspace.status();
      const auto start = Clock::now();
      n = as_text ? zstd(raw) : frame(place.dtype, raw, header.mode, workspace->span());
      encode_seconds_ += seconds_since(start);
    }
    probe.tried(place.num_bytes, n);
    if (!helps(place.num_bytes, n)) return {};
    header.kind = as_text ? PayloadKind::kZstd : PayloadKind::kFrame;
    payload = coded().first(n);
    return {};
  }

  // All return the chunk's size where the codec fails or does not help.
  std::size_t source_frame(Source& source, const ChunkPlace& place, Mode mode) {
    const auto n = source.encode(place.offset, place.num_bytes, codec_of(mode), coded());
    return n ? *n : place.num_bytes;
  }
  std::size_t frame(DType dtype, std::span<const std::byte> raw, Mode mode,
                    std::span<std::byte> workspace) {
    const EncodeOptions options{.dtype = dtype, .codec = codec_of(mode)};
    const auto n = encode(raw, coded(), options, workspace);
    return n ? *n : raw.size();
  }
  std::size_t zstd(std::span<const std::byte> raw) {
    const std::size_t n =
        ZSTD_compress(buffer_.data(), coded_bytes_, raw.data(), raw.size(), kZstdLevel);
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
  const BufferPool::User user_{send_buffers()}, workspace_user_{workspaces()};
  const std::size_t coded_bytes_;
  BufferPool::Buffer buffer_;
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
