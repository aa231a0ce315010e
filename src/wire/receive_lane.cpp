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
  ReceiveLane(Core& core, Channel& channel)
      : core_(core),
        channel_(channel),
        workspace_(std::make_unique_for_overwrite<std::byte[]>(workspace_bytes())) {}

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
    if (header.kind == PayloadKind::kFrame && message.sink->decodes()) {
      std::span<std::byte> frame;
      if (Status s = read_coded(header, place, frame); !s.ok()) return s;
      return message.sink->decode(place.offset, place.num_bytes, frame);
    }
    std::span<std::byte> dst = message.sink->view(place.offset, place.num_bytes);
    const bool in_place = !dst.empty();
    if (!in_place) dst = {raw_.get(), place.num_bytes};
    if (Status s = read_payload(header, place, dst); !s.ok()) return s;
    if (header.has_raw_hash ? hash_bytes(dst) != header.raw_hash
                            : header.kind != PayloadKind::kFrame)
      return kDamaged;
    return in_place ? Status{} : message.sink->write(place.offset, dst);
  }

  Status read_payload(const LaneHeader& header, const ChunkPlace& place, std::span<std::byte> dst) {
    if (header.kind == PayloadKind::kRaw)
      return header.payload_bytes == dst.size() ? channel_.recv(dst, core_.deadline()) : kNonsense;
    std::span<std::byte> payload;
    if (Status s = read_coded(header, place, payload); !s.ok()) return s;
    if (header.kind == PayloadKind::kFrame)
      return decode(payload, dst, {workspace_.get(), workspace_bytes()}) ? Status{} : kDamaged;
    const std::size_t got = ZSTD_decompress(dst.data(), dst.size(), payload.data(), payload.size());
    return got == dst.size() ? Status{} : kDamaged;
  }

  // Reads a payload that is smaller than its chunk, and checks that a frame is of this chunk.
  Status read_coded(const LaneHeader& header, const ChunkPlace& place,
                    std::span<std::byte>& payload) {
    const std::uint64_t n = header.payload_bytes;
    const bool known_kind = header.kind == PayloadKind::kFrame || header.kind == PayloadKind::kZstd;
    if (!known_kind || n == 0 || n >= place.num_bytes) return kNonsense;
    payload = {coded_.get(), static_cast<std::size_t>(n)};
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
  // The peer chooses the size of its chunks; pages that stay unused take no memory.
  const std::unique_ptr<std::byte[]> raw_ =
      std::make_unique_for_overwrite<std::byte[]>(kMaxChunkBytes);
  const std::unique_ptr<std::byte[]> coded_ =
      std::make_unique_for_overwrite<std::byte[]>(kMaxChunkBytes);
  const std::unique_ptr<std::byte[]> workspace_;
};

void Connection::Core::run_receive_lane(Channel& channel) noexcept try {
  ReceiveLane lane(*this, channel);
  while (status().ok())
    if (const Status s = lane.receive_chunk(); !s.ok()) lane_failed(s);
} catch (const std::exception&) {
  fail(kOutOfMemory);
}

}  // namespace snug::wire
