// The receiving side: answer offers, then take chunks from the lanes, decode
// them and put them in their place. Everything in a header is checked against
// what the message must look like before a byte of payload is read.
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

void Connection::Core::run_accept() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !to_accept_.empty() || !status_.ok(); });
    if (!status_.ok()) return;
    ToAccept job = std::move(to_accept_.front());
    to_accept_.pop_front();
    lock.unlock();
    const Status s = accept_message(job);
    if (!s.ok()) fail(s);
    lock.lock();
    if (!s.ok()) finish_if_failed(*job.incoming);
  }
}

Status Connection::Core::accept_message(ToAccept& job) noexcept try {
  const std::shared_ptr<Incoming>& message = job.incoming;
  message->number = job.offered.number;
  message->table = std::move(job.offered.table);
  const ChunkTable& table = message->table;
  if (Status s = message->sink->begin(table.extents(), table.num_bytes()); !s.ok()) return s;
  if (Status s = hash_existing(*message); !s.ok()) return s;
  message->arrived.resize(table.num_chunks());
  message->num_left = table.num_chunks();
  {
    const std::lock_guard lock(mutex_);
    if (!status_.ok()) return status_;
    touch_in();
    if (message->num_left > 0) incoming_[message->number] = message;
  }
  if (Status s = send_control(ControlType::kAccept, message->number,
                              std::as_bytes(std::span(message->known)));
      !s.ok())
    return s;
  if (table.num_chunks() > 0) return {};
  if (Status s = send_control(ControlType::kDone, message->number, {}); !s.ok()) return s;
  message->state->finish({});
  return {};
} catch (const std::exception&) {
  return kOutOfMemory;
}

// Hashes of the chunks that may be there from an earlier attempt.
Status Connection::Core::hash_existing(Incoming& message) {
  const std::uint64_t existing = message.sink->existing_bytes();
  std::vector<std::byte> buffer;
  for (std::uint64_t i = 0; i < message.table.num_chunks(); ++i) {
    const ChunkPlace place = message.table.at(i);
    if (place.offset + place.num_bytes > existing || i >= kMaxControlBytes / 8) break;
    buffer.resize(place.num_bytes);
    if (Status s = message.sink->read_back(place.offset, buffer); !s.ok()) return s;
    message.known.push_back(hash_bytes(buffer));
  }
  return {};
}

class Connection::Core::ReceiveLane {
 public:
  ReceiveLane(Core& core, Channel& channel)
      : core_(core),
        channel_(channel),
        workspace_(std::make_unique_for_overwrite<std::byte[]>(workspace_bytes())) {}

  // Waits for a chunk as long as it takes; the control thread knows when to stop.
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
        count(header);
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

  void count(const LaneHeader& header) {
    Stats& stats = core_.stats_;
    stats.raw_bytes += header.raw_bytes;
    stats.wire_bytes += sizeof header + header.payload_bytes;
    if (header.kind == PayloadKind::kKnown) {
      stats.known_bytes += header.raw_bytes;
    } else {
      ++stats.num_chunks[static_cast<int>(header.kind == PayloadKind::kRaw ? Mode::kRaw
                                                                           : header.mode)];
    }
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

  // A payload smaller than its chunk; of a frame, that it is of this chunk.
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
  // The peer chooses the size of its chunks; pages not used are not taken.
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
