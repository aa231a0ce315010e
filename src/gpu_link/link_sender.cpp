#include "gpu_link/link_sender.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace snug::gpu_link {
namespace {

// One on the link, one to follow without a gap, one while the next is started.
constexpr std::size_t kMaxFlying = 3;
constexpr int kMaxFlyingFrames = 2;
constexpr double kCallSeconds = 6e-6;        // a GPU call that starts an encoder
constexpr double kEarlySeconds = 16e-6;      // how long before the link is idle it gets more
constexpr std::size_t kMaxChunksOpen = 120;  // the queue of chunks has 128 places

double seconds_between(LinkClock::time_point a, LinkClock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

}  // namespace

LinkSender::LinkSender(LinkDirection& direction, std::unique_ptr<SendEngine> engine,
                       std::size_t staging_bytes, std::size_t max_chunk_bytes, LinkOptions options)
    : MessageWorker(direction, direction.sender_bell, direction.receiver_bell, std::move(options)),
      engine_(std::move(engine)),
      scheduler_(options_.mode, engine_->max_encoding(), max_chunk_bytes),
      staging_(staging_bytes),
      frames_(static_cast<std::size_t>(engine_->num_frames())) {
  direction_.is_attached.store(1);
}

Transfer LinkSender::send(std::uint64_t tag, std::shared_ptr<LinkTensor> tensor) {
  return submit([&](LinkSendMessage& message) -> Status {
    if (num_open_ >= wire::kMaxOpenMessages) return wire::kTooManyMessages;
    ++num_open_;
    message.offer = {next_number_++, tag, tensor->num_bytes,
                     static_cast<std::uint64_t>(tensor->dtype)};
    message.back = tensor->num_bytes;
    message.tensor = std::move(tensor);
    return {};
  });
}

Stats LinkSender::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = stats_;
  for (int i = 0; i < kNumModes; ++i)
    stats.goodput[i] = scheduler_.link_rate() / scheduler_.ratio(static_cast<Mode>(i));
  return stats;
}

bool LinkSender::is_busy() const {
  return std::ranges::any_of(messages_, [](const auto& entry) { return entry.second->accepted; });
}

Status LinkSender::step(bool& moved) {
  // The link comes first: it must not run dry. All GPU calls are on this thread, because two
  // threads that call the GPU at once take longer than one for both.
  for (const auto part :
       {&LinkSender::take_answers, &LinkSender::land_copy, &LinkSender::free_staging,
        &LinkSender::collect_frames, &LinkSender::feed_link, &LinkSender::feed_encoder,
        &LinkSender::offer_messages})
    if (Status s = (this->*part)(moved); !s.ok()) return s;
  return {};
}

Status LinkSender::offer_messages(bool& moved) {
  for (take_submitted(); !fresh_.empty(); fresh_.pop_front()) {
    const MessagePtr& message = fresh_.front();
    const auto offered = direction_.offers.try_put(num_offers_, message->offer);
    if (!offered || !*offered) return offered.status();
    messages_[message->offer.number] = message;
    other_bell_.ring();
    moved = true;
  }
  return {};
}

Status LinkSender::take_answers(bool& moved) {
  const auto num_new = direction_.answers.num_new(num_answers_);
  if (!num_new) return num_new.status();
  for (std::uint64_t i = 0; i < *num_new; ++i) {
    const LinkAnswer answer = direction_.answers.look(num_answers_++);
    direction_.answers.let_go(num_answers_);
    const auto found = messages_.find(answer.number);
    if (found == messages_.end()) return kLinkBroken;
    const MessagePtr message = found->second;
    moved = true;
    if (answer.is_done == 0) {
      if (message->accepted) return kLinkBroken;
      message->accepted = true;
      if (message->rest() > 0) to_send_.push_back(message);
      message->accepted_at = LinkClock::now();
      choose_way(*message);
      alone_ = num_accepted_++ == 0 ? message.get() : nullptr;
    } else {
      if (!message->accepted || message->rest() > 0 || message->num_pending > 0) return kLinkBroken;
      messages_.erase(found);
      {
        const std::lock_guard lock(mutex_);
        --num_open_;
      }
      message->state->finish({});
      learn_from(*message);
      --num_accepted_;
      alone_ = nullptr;
    }
  }
  return {};
}

void LinkSender::choose_way(LinkSendMessage& message) {
  if (options_.mode == Mode::kRaw || message.rest() < LinkScheduler::kMinChunk) return;
  message.is_choice = engine_->can_encode(*message.tensor);
  const std::lock_guard lock(mutex_);
  message.may_code = !message.is_choice || scheduler_.begin_message(message.rest());
}

// A peer that reports wrong times slows down only its own messages.
void LinkSender::learn_from(const LinkSendMessage& message) {
  const std::lock_guard lock(mutex_);
  const auto now = LinkClock::now();
  // Only a message that had the link for itself shows how long it takes.
  if (message.is_choice && alone_ == &message)
    scheduler_.message_done(message.tensor->num_bytes, message.has_frames,
                            seconds_between(message.accepted_at, now));
  for (int i = 0; i < kNumModes; ++i) {
    // Packed: the chunk's size in grains, and nanoseconds.
    const std::uint64_t told = direction_.place_nanoseconds[i].exchange(0);
    const std::size_t num_bytes = static_cast<std::size_t>(told >> 48) * LinkScheduler::kGrain;
    if (num_bytes == 0) continue;
    scheduler_.placed(static_cast<Mode>(i), num_bytes,
                      static_cast<double>(told & 0xFFFF'FFFF'FFFF) * 1e-9);
  }
}

Status LinkSender::free_staging(bool& moved) {
  const std::uint64_t freed = direction_.chunks.read.load(std::memory_order_acquire);
  if (freed < num_freed_ || freed > num_chunks_) return kLinkBroken;
  for (; num_freed_ < freed; ++num_freed_) {
    staging_.free_oldest();
    moved = true;
  }
  return {};
}

// If the oldest copy has arrived, tells the receiver.
Status LinkSender::land_copy(bool& moved) {
  if (flying_.empty()) return {};
  std::uint64_t checksum = 0;
  const auto landed = engine_->copied(checksum);
  if (!landed) return landed.status();
  const auto now = LinkClock::now();
  if (!*landed) {
    last_asked_ = now;
    return {};
  }
  const Flying flown = std::move(flying_.front());
  flying_.pop_front();
  const Piece& piece = flown.piece;
  // A GPU call may have delayed this thread, so the copy counts as arrived when it was due, but not
  // before the last poll. Only a copy that followed another without a gap shows the link's rate.
  const auto then = std::max(std::min(flown.due, now), last_asked_);
  const double seconds = piece.since < link_free_ ? seconds_between(link_free_, then) : 0;
  link_free_ = then;
  for (Flying& other : flying_) other.due += then - flown.due;
  direction_.chunks.put(num_chunks_, {piece.message->offer.number, piece.span.offset,
                                      piece.span.num_bytes, flown.place, piece.payload_bytes,
                                      static_cast<std::uint64_t>(piece.mode), checksum});
  other_bell_.ring();
  --piece.message->num_pending;
  piece.message->state->done_bytes += piece.span.num_bytes;
  piece.message->has_frames |= piece.frame >= 0;
  if (piece.frame >= 0) frame_at(piece.frame) = {};
  moved = true;
  const std::lock_guard lock(mutex_);
  scheduler_.sent(piece.payload_bytes, seconds_between(piece.since, now), seconds);
  count_chunk(piece.span.num_bytes, piece.payload_bytes, static_cast<std::uint64_t>(piece.mode));
  return {};
}

Status LinkSender::collect_frames(bool& moved) {
  for (std::size_t i = 0; i < frames_.size(); ++i) {
    Frame& frame = frames_[i];
    if (frame.stage != Stage::kEncoding) continue;
    const auto made = engine_->encoded(static_cast<int>(i));
    if (!made) return made.status();
    const auto now = LinkClock::now();
    if (*made == 0) {
      frame.last_asked = now;
      continue;
    }
    moved = true;
    Piece& piece = frame.piece;
    // As in land_copy: when it was due, but not before the last poll.
    const double seconds =
        std::max(std::min(scheduler_.encode_seconds(piece.mode, piece.span.num_bytes),
                          seconds_between(piece.since, now)),
                 seconds_between(piece.since, std::max(piece.since, frame.last_asked)));
    {
      const std::lock_guard lock(mutex_);
      scheduler_.encoded(piece.mode, piece.span.num_bytes, *made, seconds);
      stats_.encode_seconds += seconds;
    }
    if (wire::helps(piece.span.num_bytes, *made)) {
      piece.payload_bytes = *made;
      frame.stage = Stage::kReady;
      ready_.push_back(static_cast<int>(i));
    } else {
      piece.mode = Mode::kRaw;
      piece.frame = -1;
      piece.payload_bytes = piece.span.num_bytes;
      claimed_raw_.push_back(std::move(piece));
      frame = {};
    }
  }
  return {};
}

// Frames first, then chunks that did not compress, then the back of a message.
bool LinkSender::next_piece(Piece& piece) {
  if (!ready_.empty()) {
    if (num_frames(Stage::kFlying) >= kMaxFlyingFrames) return false;
    piece = frame_at(ready_.front()).piece;
    return true;
  }
  if (!claimed_raw_.empty()) {
    piece = claimed_raw_.front();
    return true;
  }
  return !to_send_.empty() && fill_gap(piece);
}

// A raw piece, if the link would otherwise soon be idle.
bool LinkSender::fill_gap(Piece& piece) {
  const MessagePtr& message = to_send_.front();
  std::uint64_t length = scheduler_.raw_piece(message->rest());
  const auto now = LinkClock::now();
  if (const auto frames = open_frames(now); !frames.empty()) {
    const double busy = link_busy(now);
    const double gap = frames.front().ready - busy;
    if (gap <= LinkScheduler::kMaxFrameWait || busy > kEarlySeconds) return false;
    length = std::min<std::uint64_t>(length, scheduler_.gap_piece(message->rest(), gap));
  }
  std::uint64_t start = message->back - length;
  if (start > message->front)  // pieces start at a grain
    start = (start + LinkScheduler::kGrain - 1) / LinkScheduler::kGrain * LinkScheduler::kGrain;
  piece.message = message;
  piece.span = {start, static_cast<std::size_t>(message->back - start)};
  piece.payload_bytes = piece.span.num_bytes;
  return true;
}

Status LinkSender::feed_link(bool& moved) {
  Piece piece;
  if (flying_.size() >= kMaxFlying || staging_.num_taken() >= kMaxChunksOpen || !next_piece(piece))
    return {};
  const auto place = staging_.take(piece.payload_bytes);
  if (!place) return {};
  if (piece.frame >= 0) {
    ready_.pop_front();
    frame_at(piece.frame).stage = Stage::kFlying;
  } else if (!claimed_raw_.empty()) {
    claimed_raw_.pop_front();
  } else {
    ++piece.message->num_pending;
    piece.message->back = piece.span.offset;
    if (piece.message->rest() == 0) to_send_.pop_front();
  }
  moved = true;
  piece.since = LinkClock::now();
  const auto free_at = flying_.empty() ? piece.since : std::max(piece.since, flying_.back().due);
  flying_.push_back({piece, *place, free_at + on_link(static_cast<double>(piece.payload_bytes))});
  return piece.frame >= 0 ? engine_->copy_frame(piece.frame, piece.payload_bytes, *place)
                          : engine_->copy_raw(*piece.message->tensor, piece.span, *place);
}

LinkClock::duration LinkSender::on_link(double num_bytes) const {
  if (scheduler_.link_rate() == 0) return {};
  return std::chrono::duration_cast<LinkClock::duration>(
      std::chrono::duration<double>(num_bytes / scheduler_.link_rate()));
}

// Seconds until the link has sent everything that it was given.
double LinkSender::link_busy(LinkClock::time_point now) const {
  double num_bytes = 0;
  for (const Piece& piece : claimed_raw_) num_bytes += static_cast<double>(piece.payload_bytes);
  const auto free_at = flying_.empty() ? now : std::max(now, flying_.back().due);
  return seconds_between(now, free_at + on_link(num_bytes));
}

// Frames that the link will get, the first to be ready first.
std::vector<LinkFrame> LinkSender::open_frames(LinkClock::time_point now) const {
  std::vector<LinkFrame> frames;
  for (const Frame& frame : frames_) {
    if (frame.stage != Stage::kEncoding && frame.stage != Stage::kReady) continue;
    const Piece& piece = frame.piece;
    const std::size_t n = piece.span.num_bytes;
    const double on_link =
        scheduler_.ratio(piece.mode, n) * static_cast<double>(n) / scheduler_.link_rate();
    // A frame that is late is assumed to take as long again as it is late.
    const double left =
        scheduler_.encode_seconds(piece.mode, n) - seconds_between(piece.since, now);
    frames.push_back({frame.stage == Stage::kReady ? 0 : std::abs(left), on_link,
                      scheduler_.place_seconds(piece.mode, n)});
  }
  std::ranges::sort(frames, {}, &LinkFrame::ready);
  return frames;
}

Status LinkSender::feed_encoder(bool& moved) {
  if (to_send_.empty() || scheduler_.link_rate() == 0) return {};
  const auto idle = std::ranges::find(frames_, Stage::kIdle, &Frame::stage);
  if (idle == frames_.end() || num_frames(Stage::kEncoding) >= engine_->max_encoding()) return {};
  const MessagePtr message = to_send_.front();
  if (!message->may_code || !engine_->can_encode(*message->tensor)) return {};
  const auto now = LinkClock::now();
  const auto frames = open_frames(now);
  const double busy = link_busy(now);
  // The next frame should not wait for this call.
  if (!frames.empty() && std::max(frames.front().ready, busy) < kCallSeconds) return {};
  const auto plan = scheduler_.plan_coded(message->rest(), busy, frames);
  // What does not pay now pays even less when less is left.
  if (!plan && frames.empty()) message->may_code = false;
  if (!plan) return {};
  Piece piece;
  piece.message = message;
  piece.span = {message->front, plan->num_bytes};
  piece.mode = plan->mode;
  piece.frame = static_cast<int>(idle - frames_.begin());
  piece.since = now;
  message->front += plan->num_bytes;
  ++message->num_pending;
  if (message->rest() == 0) to_send_.pop_front();
  *idle = {Stage::kEncoding, piece, now};
  moved = true;
  return engine_->encode(piece.frame, *message->tensor, piece.span, wire::codec_of(piece.mode));
}

void LinkSender::finish_all(const Status& status) noexcept {
  engine_->drain();
  direction_.is_attached.store(0);
  finish_fresh(status);
  for (const auto& [number, message] : messages_) message->state->finish(status);
}

}  // namespace snug::gpu_link
