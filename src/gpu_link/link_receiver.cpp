#include "gpu_link/link_receiver.h"

#include <algorithm>

#include "gpu_link/link_scheduler.h"

namespace snug::gpu_link {
namespace {

constexpr Status kNonsense{Code::kPeer, "the peer sent a chunk that does not belong here"};
constexpr std::uint64_t kGrain = LinkScheduler::kGrain;

}  // namespace

LinkReceiver::LinkReceiver(LinkDirection& direction, std::unique_ptr<ReceiveEngine> engine,
                           std::size_t staging_bytes, std::size_t max_chunk_bytes,
                           LinkOptions options)
    : MessageWorker(direction, direction.receiver_bell, direction.sender_bell, std::move(options)),
      engine_(std::move(engine)),
      staging_bytes_(staging_bytes),
      max_chunk_bytes_(max_chunk_bytes) {
  for (int i = 0; i < engine_->num_placers(); ++i) idle_placers_.push_back(i);
}

Transfer LinkReceiver::recv(std::uint64_t tag, std::shared_ptr<LinkTensor> tensor) {
  return submit([&](LinkReceiveMessage& message) -> Status {
    message.tag = tag;
    message.num_left = tensor->num_bytes;
    message.tensor = std::move(tensor);
    return {};
  });
}

Stats LinkReceiver::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

Status LinkReceiver::step(bool& moved) {
  for (const auto part :
       {&LinkReceiver::collect_placed, &LinkReceiver::take_chunk, &LinkReceiver::match_receives,
        &LinkReceiver::take_offers, &LinkReceiver::send_answers})
    if (Status s = (this->*part)(moved); !s.ok()) return s;
  return {};
}

Status LinkReceiver::match_receives(bool& moved) {
  // Each stays in the list until it is in another one: on an error all must be found.
  for (take_submitted(); !fresh_.empty(); fresh_.pop_front()) {
    const MessagePtr& message = fresh_.front();
    moved = true;
    const auto offers = offers_.find(message->tag);
    if (offers == offers_.end()) {
      posted_[message->tag].push_back(message);
      continue;
    }
    const LinkOffer offer = offers->second.front();
    offers->second.pop_front();
    --num_waiting_offers_;
    if (offers->second.empty()) offers_.erase(offers);
    if (Status s = match(offer, message); !s.ok()) return s;
  }
  return {};
}

Status LinkReceiver::take_offers(bool& moved) {
  const auto num_new = direction_.offers.num_new(num_offers_);
  if (!num_new) return num_new.status();
  for (std::uint64_t i = 0; i < *num_new; ++i) {
    const LinkOffer offer = direction_.offers.look(num_offers_++);
    direction_.offers.let_go(num_offers_);
    moved = true;
    if (offer.number <= last_offer_ || num_waiting_offers_ >= wire::kMaxOpenMessages)
      return kLinkBroken;
    last_offer_ = offer.number;
    const auto posted = posted_.find(offer.tag);
    if (posted == posted_.end()) {
      offers_[offer.tag].push_back(offer);
      ++num_waiting_offers_;
      continue;
    }
    if (Status s = match(offer, posted->second.front()); !s.ok()) return s;
    posted->second.pop_front();
    if (posted->second.empty()) posted_.erase(posted);
  }
  return {};
}

Status LinkReceiver::match(const LinkOffer& offer, MessagePtr message) {
  messages_[offer.number] = message;
  const LinkTensor& tensor = *message->tensor;
  if (Status s = wire::check_size(offer.num_bytes, tensor.num_bytes); !s.ok()) return s;
  if (offer.dtype != static_cast<std::uint64_t>(tensor.dtype)) return wire::kOtherDType;
  message->arrived.resize(static_cast<std::size_t>((tensor.num_bytes + kGrain - 1) / kGrain));
  answers_.push_back({offer.number, 0});
  if (tensor.num_bytes > 0) return {};
  answers_.push_back({offer.number, 1});
  message->state->finish({});
  messages_.erase(offer.number);
  return {};
}

Status LinkReceiver::send_answers(bool& moved) {
  for (; !answers_.empty(); answers_.pop_front()) {
    const auto sent = direction_.answers.try_put(num_answers_, answers_.front());
    if (!sent || !*sent) return sent.status();
    other_bell_.ring();
    moved = true;
  }
  return {};
}

// Checks a chunk and reserves its place in its message.
Status LinkReceiver::check_chunk(const LinkChunk& chunk, MessagePtr& message) {
  const auto found = messages_.find(chunk.number);
  if (found == messages_.end()) return kNonsense;
  message = found->second;
  const std::uint64_t total = message->tensor->num_bytes;
  const std::uint64_t n = chunk.num_bytes;
  if (n == 0 || n > max_chunk_bytes_ || chunk.offset > total || n > total - chunk.offset ||
      chunk.offset % kGrain != 0 || ((chunk.offset + n) % kGrain != 0 && chunk.offset + n != total))
    return kNonsense;
  const bool is_raw = chunk.mode == static_cast<std::uint64_t>(Mode::kRaw);
  if (chunk.mode >= kNumModes || chunk.place % 256 != 0 || chunk.place > staging_bytes_ ||
      chunk.payload_bytes > staging_bytes_ - chunk.place ||
      (is_raw ? chunk.payload_bytes != n : chunk.payload_bytes == 0 || chunk.payload_bytes >= n))
    return kNonsense;
  const auto first = static_cast<std::size_t>(chunk.offset / kGrain);
  const auto last = static_cast<std::size_t>((chunk.offset + n - 1) / kGrain);
  for (std::size_t i = first; i <= last; ++i) {
    if (message->arrived[i]) return kNonsense;
    message->arrived[i] = true;
  }
  return {};
}

Status LinkReceiver::take_chunk(bool& moved) {
  if (idle_placers_.empty()) return {};
  const auto num_new = direction_.chunks.num_new(num_taken_);
  if (!num_new) return num_new.status();
  if (*num_new == 0) return {};
  Placing placing;
  placing.chunk = direction_.chunks.look(num_taken_++);
  const LinkChunk& chunk = placing.chunk;
  if (Status s = check_chunk(chunk, placing.message); !s.ok()) return s;
  moved = true;
  placing.placer = idle_placers_.front();
  placing.since = LinkClock::now();
  idle_placers_.pop_front();
  placing_.push_back(placing);
  return engine_->place(placing.placer, *placing.message->tensor, chunk);
}

Status LinkReceiver::collect_placed(bool& moved) {
  for (Placing& placing : placing_) {
    if (placing.done) continue;
    const auto placed = engine_->placed(placing.placer);
    if (!placed) return placed.status();
    if (!*placed) continue;
    moved = placing.done = true;
    idle_placers_.push_back(placing.placer);
    note_time(placing);
    LinkReceiveMessage& message = *placing.message;
    message.num_left -= placing.chunk.num_bytes;
    message.state->done_bytes += placing.chunk.num_bytes;
    if (message.num_left > 0) continue;
    answers_.push_back({placing.chunk.number, 1});
    message.state->finish({});
    messages_.erase(placing.chunk.number);
  }
  bool freed = false;
  for (; !placing_.empty() && placing_.front().done; placing_.pop_front(), freed = true)
    direction_.chunks.let_go(++num_freed_);
  if (freed) other_bell_.ring();
  return {};
}

void LinkReceiver::note_time(const Placing& placing) {
  const LinkChunk& chunk = placing.chunk;
  const auto taken =
      std::chrono::duration_cast<std::chrono::nanoseconds>(LinkClock::now() - placing.since);
  const std::uint64_t grains = std::min<std::uint64_t>(chunk.num_bytes / kGrain, 0xFFFF);
  direction_.place_nanoseconds[chunk.mode].store(
      grains << 48 | (static_cast<std::uint64_t>(taken.count()) & 0xFFFF'FFFF'FFFF));
  const std::lock_guard lock(mutex_);
  count_chunk(chunk.num_bytes, chunk.payload_bytes, chunk.mode);
}

void LinkReceiver::finish_all(const Status& status) noexcept {
  engine_->drain();
  finish_fresh(status);
  for (const auto& [tag, queue] : posted_)
    for (const MessagePtr& message : queue) message->state->finish(status);
  for (const auto& [number, message] : messages_) message->state->finish(status);
}

}  // namespace snug::gpu_link
