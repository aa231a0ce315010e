// The control thread: offers, answers, pings, notes.
#include <algorithm>
#include <cstring>
#include <new>

#include "wire/connection_core.h"

namespace snug::wire {
namespace {

constexpr Status kNonsense{Code::kPeer, "the peer broke the protocol"};
constexpr std::size_t kMaxOfferedExtents = 4 * kMaxExtents;
// Often enough for a peer whose timeout is 1 s. Nothing tells a side the other one's timeout.
constexpr std::chrono::milliseconds kPingEvery{250};

template <class T>
bool parse(std::span<const std::byte> payload, T& value) {
  if (payload.size() != sizeof value) return false;
  std::memcpy(&value, payload.data(), sizeof value);
  return true;
}

}  // namespace

Status Connection::Core::send_control(ControlType type, std::uint64_t message,
                                      std::span<const std::byte> payload, Deadline deadline) {
  ControlHeader header;
  header.type = type;
  header.message = message;
  header.payload_bytes = payload.size();
  header.payload_hash = hash_bytes(payload);
  seal(header);
  if (!control_turn_.take(deadline)) return {Code::kTimeout, "the peer took too long"};
  const Status sent = control_->send(bytes_of(header), payload, deadline);
  control_turn_.give_back();
  return sent;
}

void Connection::Core::run_control() noexcept {
  const auto ping_every = std::min<Clock::duration>(options_.timeout / 4, kPingEvery);
  auto next_ping = Clock::now() + ping_every;
  auto last_heard = Clock::now();
  while (status().ok()) {
    Status s = control_->wait_readable(std::min(next_ping, last_heard + options_.timeout));
    if (s.ok()) {
      try {
        s = read_control();
      } catch (const std::bad_alloc&) {
        s = kOutOfMemory;
      }
      last_heard = Clock::now();
    } else if (s.code == Code::kTimeout) {
      s = Clock::now() < last_heard + options_.timeout
              ? Status{}
              : Status{Code::kTimeout, "the peer has gone silent"};
    }
    if (s.ok() && Clock::now() >= next_ping) {
      next_ping = Clock::now() + ping_every;
      s = send_control(ControlType::kPing, 0, {});
      if (s.ok()) s = check_stalls();
    }
    if (!s.ok()) fail(s);
  }
}

// Pings show that the peer is alive; this finds data that has stopped.
Status Connection::Core::check_stalls() {
  const std::lock_guard lock(mutex_);
  const auto long_ago = [&](const std::atomic<Clock::rep>& last) {
    return Clock::now().time_since_epoch() - Clock::duration(last.load()) > options_.timeout;
  };
  if (!incoming_.empty() && long_ago(last_in_))
    return {Code::kTimeout, "the peer stopped sending in the middle of a message"};
  const bool sending =
      std::ranges::any_of(outgoing_, [](const auto& entry) { return entry.second->accepted; });
  if (sending && long_ago(last_out_))
    return {Code::kTimeout, "the peer stopped receiving in the middle of a message"};
  return {};
}

Status Connection::Core::read_control() {
  ControlHeader header;
  if (Status s = control_->recv(writable_bytes_of(header), deadline()); !s.ok()) return s;
  if (Status s = check(header); !s.ok()) return s;
  if (header.payload_bytes > max_payload_bytes(header)) return kNonsense;
  const auto share = reserve(header.payload_bytes);
  if (!share) return share.status();
  std::vector<std::byte> payload(header.payload_bytes);
  if (Status s = control_->recv(payload, deadline()); !s.ok()) return s;
  if (hash_bytes(payload) != header.payload_hash)
    return {Code::kCorrupt, "a control message was damaged on the wire"};
  return handle_control(header, payload);
}

// Checked before anything is allocated.
std::size_t Connection::Core::max_payload_bytes(const ControlHeader& header) const {
  const std::lock_guard lock(mutex_);
  switch (header.type) {
    case ControlType::kOffer: return sizeof(OfferHead) + kMaxExtents * sizeof(OfferExtent);
    case ControlType::kProgress: return sizeof(ReceiveProgress);
    case ControlType::kFail: return sizeof(Failure);
    case ControlType::kNote: return max_note_bytes_;
    case ControlType::kAccept: {
      const auto found = outgoing_.find(header.message);
      if (found == outgoing_.end()) return 0;
      return std::min(kMaxControlBytes, 8 * std::size_t{found->second->table.num_chunks()});
    }
    default: return 0;
  }
}

Status Connection::Core::handle_control(const ControlHeader& header,
                                        std::span<const std::byte> payload) {
  switch (header.type) {
    case ControlType::kPing: return payload.empty() ? Status{} : kNonsense;
    case ControlType::kOffer: return handle_offer(header.message, payload);
    case ControlType::kAccept: return handle_accept(header.message, payload);
    case ControlType::kProgress: return handle_progress(payload);
    case ControlType::kDone: return payload.empty() ? handle_done(header.message) : kNonsense;
    case ControlType::kFail: return handle_fail(payload);
    case ControlType::kNote: return handle_note(payload);
    default: return kNonsense;
  }
}

Status Connection::Core::handle_note(std::span<const std::byte> payload) {
  auto share = reserve(payload.size() + 128);
  if (!share) return share.status();
  const std::lock_guard lock(mutex_);
  if (notes_.size() >= kMaxUnreadNotes)
    return {Code::kPeer, "the peer sent more notes than were read; at most 64 may wait"};
  notes_.push_back({std::string(reinterpret_cast<const char*>(payload.data()), payload.size()),
                    std::move(*share)});
  changed_.notify_all();
  return {};
}

Status Connection::Core::handle_offer(std::uint64_t number, std::span<const std::byte> payload) {
  auto share = reserve(256 + 2 * payload.size());
  if (!share) return share.status();
  auto offer = parse_offer(payload);
  if (!offer) return offer.status();
  share->shrink_to(table_cost(offer->table));
  const std::lock_guard lock(mutex_);
  const std::size_t num_extents = offer->table.extents().size();
  if (number <= last_offer_ || num_offers_ >= kMaxOpenMessages ||
      num_offered_extents_ + num_extents > kMaxOfferedExtents)
    return kNonsense;
  last_offer_ = number;
  Offered offered{number, std::move(offer->table), std::move(*share)};
  const auto posted = posted_.find(offer->tag);
  if (posted == posted_.end()) {
    offers_[offer->tag].push_back(std::move(offered));
    ++num_offers_;
    num_offered_extents_ += num_extents;
    return {};
  }
  // Copied, not moved: if this throws, `posted_` must still have the receive.
  to_accept_.push_back({std::move(offered), posted->second.front()});
  posted->second.pop_front();
  if (posted->second.empty()) posted_.erase(posted);
  changed_.notify_all();
  return {};
}

Status Connection::Core::handle_accept(std::uint64_t number, std::span<const std::byte> payload) {
  auto share = reserve(payload.size());
  if (!share) return share.status();
  const std::lock_guard lock(mutex_);
  const auto found = outgoing_.find(number);
  if (found == outgoing_.end() || found->second->accepted) return kNonsense;
  Outgoing& message = *found->second;
  if (payload.size() % 8 != 0 || payload.size() / 8 > message.table.num_chunks()) return kNonsense;
  message.known.resize(payload.size() / 8);
  if (!payload.empty()) std::memcpy(message.known.data(), payload.data(), payload.size());
  message.known_share = std::move(*share);
  message.accepted = true;
  touch_out();
  if (message.table.num_chunks() > 0) to_send_.push_back(found->second);
  changed_.notify_all();
  return {};
}

Status Connection::Core::handle_progress(std::span<const std::byte> payload) {
  ReceiveProgress sums;
  if (!parse(payload, sums)) return kNonsense;
  controller_.progress(sums);
  std::uint64_t arrived = 0;
  for (const std::uint64_t bytes : sums.raw_bytes) arrived += bytes;
  const std::lock_guard lock(mutex_);
  // A sign of life only if more has arrived. Every report follows a chunk of its own, so a peer
  // that reports a byte at a time gains no time.
  if (arrived <= reported_bytes_ || num_reports_ >= num_chunks_out_) return {};
  reported_bytes_ = arrived;
  ++num_reports_;
  touch_out();
  return {};
}

Status Connection::Core::handle_done(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = outgoing_.find(number);
  if (found == outgoing_.end()) return kNonsense;
  Outgoing& message = *found->second;
  if (!message.accepted || message.next_chunk != message.table.num_chunks()) return kNonsense;
  message.confirmed = true;
  if (message.busy > 0) return {};  // the lane that sent the last chunk ends it
  message.state->finish({});
  outgoing_.erase(found);
  return {};
}

Status Connection::Core::handle_fail(std::span<const std::byte> payload) {
  Failure failure;
  if (!parse(payload, failure)) return kNonsense;
  return peer_failure(failure.code, "the peer closed the connection");
}

}  // namespace snug::wire
