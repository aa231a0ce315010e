// One lane of the receiving side: read a chunk, decode it, put it in its place. Everything in a
// header is checked against the message's chunk table before a byte of payload is read.
#include <zstd.h>

#include <memory>
#include <new>

#include "snug/codec.h"
#include "wire/connection_core.h"

namespace snug::wire {
namespace {

constexpr Status kNonsense{Code::kPeer, "the peer sent a chunk that does not belong here"};
constexpr Status kDamaged{Code::kCorrupt, "a chunk was damaged on the wire"};

}  // namespace

class Connection::Core::ReceiveLane {
 public:
  ReceiveLane(Core& core, Channel& channel) : core_(core), channel_(channel) {}

  // Waits without a deadline; the control thread notices stalls.
  Status receive_chunk() {
    LaneHeader header;
    if (Status s = channel_.wait_readable(Deadline::max()); !s.ok()) return s;
    if (Status s = channel_.recv(writable_bytes_of(header), core_.deadline()); !s.ok()) return s;
    if (Status s = check(header); !s.ok()) return s;
    core_.meter_.begin();
    std::shared_ptr<Incoming> message;
    if (Status s = claim(header, message); !s.ok()) return s;
    const Status s = guarded([&] { return place_chunk(*message, header); });
    buffer_.reset();
    return release(header, *message, s);
  }

 private:
  // Finds the message and reserves the chunk's place in it.
  Status claim(const LaneHeader& header, std::shared_ptr<Incoming>& message) {
    const std::lock_guard lock(core_.mutex_);
    if (!core_.status_.ok()) return core_.status_;
    const auto found = core_.incoming_.find(header.message);
    if (found == core_.incoming_.end()) return kNonsense;
    message = found->second;
    if (header.chunk_idx >= message->table.num_chunks() || message->arrived[header.chunk_idx] ||
        static_cast<int>(header.mode) >= kNumModes)
      return kNonsense;
    message->arrived[header.chunk_idx] = true;
    ++message->busy;
    return {};
  }

  Status release(const LaneHeader& header, Incoming& message, Status status) {
    core_.touch_in();
    ReceiveProgress sums;
    const bool tell =
        core_.meter_.end(header.mode, header.raw_bytes, sizeof header + header.payload_bytes, sums);
    bool complete = false;
    {
      const std::lock_guard lock(core_.mutex_);
      --message.busy;
      if (status.ok()) {
        core_.count_chunk(header);
        complete = --message.num_left == 0;
      }
      core_.finish_if_failed(message);
    }
    if (!status.ok()) return status;
    message.state->done_bytes += header.raw_bytes;
    if (tell)
      if (Status s = core_.send_control(ControlType::kProgress, 0, bytes_of(sums)); !s.ok())
        return s;
    return complete ? finish(message) : Status{};
  }

  Status finish(Incoming& message) {
    if (Status s = core_.send_control(ControlType::kDone, message.number, {}); !s.ok()) return s;
    message.state->finish({});
    const std::lock_guard lock(core_.mutex_);
    core_.incoming_.erase(message.number);
    if (core_.incoming_.empty()) core_.meter_.stop();
    return {};
  }

  Status place_chunk(Incoming& message, const LaneHeader& header) {
    const ChunkPlace place = message.table.at(header.chunk_idx);
    if (header.raw_bytes != place.num_bytes) return kNonsense;
    if (header.kind == PayloadKind::kKnown) {
      const bool same = header.payload_bytes == 0 && header.chunk_idx < message.known.size() &&
                        message.known[header.chunk_idx] == header.raw_hash;
      return same ? Status{} : kNonsense;
    }
    if (Status s = check_sizes(header, place); !s.ok()) return s;
    if (header.kind == PayloadKind::kFrame && message.sink->decodes()) {
      std::span<std::byte> frame;
      if (Status s = take_buffer(message, 1); !s.ok()) return s;
      if (Status s = read_coded(header, place, frame); !s.ok()) return s;
      return message.sink->decode(place.offset, place.num_bytes, frame);
    }
    std::span<std::byte> dst = message.sink->view(place.offset, place.num_bytes);
    const bool in_place = !dst.empty();
    const int num_parts = (in_place ? 0 : 1) + (header.kind == PayloadKind::kRaw ? 0 : 1);
    if (Status s = take_buffer(message, num_parts); !s.ok()) return s;
    if (!in_place) dst = buffer_.span().last(message.table.chunk_bytes()).first(place.num_bytes);
    if (Status s = read_payload(header, place, dst); !s.ok()) return s;
    if (header.has_raw_hash ? hash_bytes(dst) != header.raw_hash : !checks_itself(header.kind))
      return kDamaged;
    return in_place ? Status{} : message.sink->write(place.offset, dst);
  }

  Status read_payload(const LaneHeader& header, const ChunkPlace& place, std::span<std::byte> dst) {
    if (header.kind == PayloadKind::kRaw) return channel_.recv(dst, core_.deadline());
    std::span<std::byte> payload;
    if (Status s = read_coded(header, place, payload); !s.ok()) return s;
    // zstd allocates its own: the workspace limits how many do so at a time.
    const auto workspace =
        workspaces().take(workspace_bytes(), core_.deadline(), core_.while_connected());
    if (!workspace) return workspace.status();
    if (header.kind == PayloadKind::kFrame)
      return decode(payload, dst, workspace->span()) ? Status{} : kDamaged;
    const std::size_t got = ZSTD_decompress(dst.data(), dst.size(), payload.data(), payload.size());
    return got == dst.size() ? Status{} : kDamaged;
  }

  // A payload is the chunk, or an encoding that is smaller.
  static Status check_sizes(const LaneHeader& header, const ChunkPlace& place) {
    const std::uint64_t n = header.payload_bytes;
    if (header.kind == PayloadKind::kRaw) return n == place.num_bytes ? Status{} : kNonsense;
    const bool coded = header.kind == PayloadKind::kFrame || header.kind == PayloadKind::kZstd;
    return coded && n > 0 && n < place.num_bytes ? Status{} : kNonsense;
  }

  // Whether a chunk may come without a hash: a frame has checksums, a raw one needs a channel that
  // lets nothing be altered.
  bool checks_itself(PayloadKind kind) const {
    return kind == PayloadKind::kFrame || (kind == PayloadKind::kRaw && channel_.authenticates());
  }

  // All that the chunk needs: room for the encoding, the chunk, or both. Always for a chunk of
  // full size, so that the next one finds a buffer that fits.
  Status take_buffer(const Incoming& message, int num_parts) {
    if (num_parts == 0) return {};
    const std::size_t num_bytes = static_cast<std::size_t>(num_parts) * message.table.chunk_bytes();
    auto taken = receive_buffers().take(num_bytes, core_.deadline(), core_.while_connected());
    if (taken) buffer_ = std::move(*taken);
    return taken.status();
  }

  // Reads an encoding, and checks that a frame is of this chunk.
  Status read_coded(const LaneHeader& header, const ChunkPlace& place,
                    std::span<std::byte>& payload) {
    const std::uint64_t n = header.payload_bytes;
    payload = buffer_.span().first(static_cast<std::size_t>(n));
    if (Status s = channel_.recv(payload, core_.deadline()); !s.ok()) return s;
    if (header.kind == PayloadKind::kZstd) return {};
    const auto info = inspect(payload);
    if (!info) return kDamaged;
    const bool fits =
        info->raw_bytes == place.num_bytes && info->dtype == place.dtype && info->frame_bytes == n;
    return fits ? Status{} : kNonsense;
  }

  Core& core_;
  Channel& channel_;
  const BufferPool::User user_{receive_buffers()}, workspace_user_{workspaces()};
  BufferPool::Buffer buffer_;
};

void Connection::Core::run_receive_lane(Channel& channel) noexcept try {
  ReceiveLane lane(*this, channel);
  while (status().ok())
    if (const Status s = lane.receive_chunk(); !s.ok()) lane_failed(s);
} catch (const std::exception&) {
  fail(kOutOfMemory);
}

}  // namespace snug::wire
