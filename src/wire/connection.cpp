// The life of a connection, and the functions of its handles.
#include <algorithm>
#include <system_error>

#include "wire/connection_core.h"
#include "wire/memory_buffers.h"
#include "wire/user_secret.h"

namespace snug::wire {
namespace {

constexpr Status kClosed{Code::kPeer, "the connection was closed"};
constexpr Status kNotConnected{Code::kUsage, "not connected"};

// An exception may leave lanes that did not start, or an offer that no message belongs to: only
// ending the connection is safe.
Transfer give_up(Connection::Core* core) noexcept {
  constexpr Status kReason{Code::kInternal, "out of memory or threads"};
  if (core != nullptr) core->fail(kReason);
  try {
    return failed_transfer(kReason);
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace

// Takes no lock, so that polling does not delay finish().
bool Transfer::done() const noexcept { return !state_ || state_->done; }

Status Transfer::wait() const noexcept {
  if (!state_) return kNotConnected;
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->done.load(); });
  return state_->status;
}

Status Transfer::wait_for(std::chrono::milliseconds patience) const noexcept {
  if (!state_) return kNotConnected;
  std::unique_lock lock(state_->mutex);
  if (!state_->changed.wait_for(lock, patience, [&] { return state_->done.load(); }))
    return {Code::kTimeout, "the message is still on its way"};
  return state_->status;
}

std::uint64_t Transfer::done_bytes() const noexcept {
  return state_ ? state_->done_bytes.load() : 0;
}

Status check_options(const Options& options) noexcept {
  if (options.num_lanes < 0 || options.num_lanes > kMaxLanes)
    return {Code::kUsage, "number of lanes is not between 1 and 16"};
  if (Status s = check_timeout(options.timeout); !s.ok()) return s;
  if (!options.token.empty())
    if (Status s = check_token(options.token); !s.ok()) return s;
  if (!options.token.empty() && options.insecure)
    return {Code::kUsage, "an insecure connection has no use for a token"};
  return ChunkTable::make({}, options.chunk_bytes).status();
}

Connection::Core::Core(Options options, std::vector<ChannelPtr> channels)
    : options_(std::move(options)), control_(std::move(channels[0])), controller_(options_.mode) {
  for (std::size_t i = 1; i < channels.size(); ++i)
    lanes_.push_back({std::move(channels[i]), {}, {}});
}

Status Connection::Core::start() noexcept {
  try {
    control_thread_ = std::thread([this] { run_control(); });
  } catch (const std::system_error&) {
    return {Code::kIo, "cannot start a thread"};
  }
  return {};
}

Connection::Core::~Core() {
  fail(kClosed, Code::kOk);
  for (std::thread* thread : {&control_thread_, &accept_thread_})
    if (thread->joinable()) thread->join();
  for (Lane& lane : lanes_)
    for (std::thread* thread : {&lane.sender, &lane.receiver})
      if (thread->joinable()) thread->join();
}

void Connection::Core::fail(const Status& status, Code tell) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!status_.ok()) return;
    status_ = status;
  }
  // Briefly: a peer that is stuck must not delay this side.
  const Failure failure{static_cast<std::uint64_t>(tell)};
  (void)send_control(ControlType::kFail, 0, bytes_of(failure),
                     Clock::now() + std::chrono::milliseconds(200));
  control_->shut_down();
  for (Lane& lane : lanes_) lane.channel->shut_down();
  const std::lock_guard lock(mutex_);
  for (const auto& [number, message] : outgoing_) finish_if_failed(*message);
  for (const auto& [number, message] : incoming_) finish_if_failed(*message);
  for (const auto& [tag, messages] : posted_)
    for (const auto& message : messages) message->state->finish(status_);
  for (const ToAccept& job : to_accept_) job.incoming->state->finish(status_);
  changed_.notify_all();
}

void Connection::Core::finish_if_failed(const Message& message) noexcept {
  if (!status_.ok() && message.busy == 0) message.state->finish(status_);
}

void Connection::Core::count_chunk(const LaneHeader& header) noexcept {
  stats_.raw_bytes += header.raw_bytes;
  stats_.wire_bytes += sizeof header + header.payload_bytes;
  if (header.kind == PayloadKind::kKnown)
    stats_.known_bytes += header.raw_bytes;
  else
    ++stats_.num_chunks[header.kind == PayloadKind::kRaw ? 0 : static_cast<int>(header.mode)];
}

// A lane often breaks because the peer has given up. Its reason may be about to arrive on the
// control channel.
void Connection::Core::lane_failed(const Status& status) noexcept {
  if (status.code == Code::kPeer) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(300), [this] { return !status_.ok(); });
  }
  fail(status);
}

void Connection::Core::start_senders() {
  if (senders_started_) return;
  senders_started_ = true;
  for (Lane& lane : lanes_)
    lane.sender = std::thread([this, channel = lane.channel.get()] { run_send_lane(*channel); });
}

void Connection::Core::start_receivers() {
  if (receivers_started_) return;
  receivers_started_ = true;
  accept_thread_ = std::thread([this] { run_accept(); });
  for (Lane& lane : lanes_)
    lane.receiver =
        std::thread([this, channel = lane.channel.get()] { run_receive_lane(*channel); });
}

Transfer Connection::Core::send(std::uint64_t tag, std::shared_ptr<Source> source) {
  auto table = ChunkTable::make(source->extents(), options_.chunk_bytes);
  if (!table) return failed_transfer(table.status());
  auto message = std::make_shared<Outgoing>();
  message->table = std::move(*table);
  message->source = std::move(source);
  auto share = reserve(table_cost(message->table));
  if (!share) return failed_transfer(share.status());
  message->table_share = std::move(*share);
  const std::string payload = offer_payload(tag, message->table);
  const std::lock_guard in_order(offer_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (!status_.ok()) return failed_transfer(status_);
    if (outgoing_.size() >= kMaxOpenMessages) return failed_transfer(kTooManyMessages);
    start_senders();
    message->number = next_number_++;
    outgoing_[message->number] = message;
  }
  const auto bytes = std::as_bytes(std::span(payload));
  if (Status s = send_control(ControlType::kOffer, message->number, bytes); !s.ok()) fail(s);
  return Transfer(message->state);
}

Transfer Connection::Core::recv(std::uint64_t tag, std::shared_ptr<Sink> sink) {
  auto message = std::make_shared<Incoming>();
  message->sink = std::move(sink);
  const std::lock_guard lock(mutex_);
  if (!status_.ok()) return failed_transfer(status_);
  start_receivers();
  const auto offers = offers_.find(tag);
  if (offers == offers_.end()) {
    posted_[tag].push_back(message);
    return Transfer(message->state);
  }
  Offered offered = std::move(offers->second.front());
  offers->second.pop_front();
  if (offers->second.empty()) offers_.erase(offers);
  --num_offers_;
  num_offered_extents_ -= offered.table.extents().size();
  to_accept_.push_back({std::move(offered), message});
  changed_.notify_all();
  return Transfer(message->state);
}

Status Connection::Core::send_note(const std::string& note) {
  if (note.size() > kMaxNoteBytes)
    return {Code::kUsage, "note is too long", kNowhere, kNowhere, note.size(), kMaxNoteBytes};
  if (Status s = status(); !s.ok()) return s;
  const Status sent = send_control(ControlType::kNote, 0, std::as_bytes(std::span(note)));
  if (!sent.ok()) lane_failed(sent);
  return sent.ok() ? sent : status();
}

Result<std::string> Connection::Core::recv_note(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  const bool any =
      changed_.wait_for(lock, patience, [this] { return !notes_.empty() || !status_.ok(); });
  if (!any) return Status{Code::kTimeout, "the peer has nothing to say"};
  if (notes_.empty()) return status_;
  std::string note = std::move(notes_.front().text);
  notes_.pop_front();
  return note;
}

void Connection::Core::limit_notes(std::size_t max_bytes) {
  const std::lock_guard lock(mutex_);
  max_note_bytes_ = max_bytes;
}

Result<Reservation> Connection::Core::reserve(std::size_t num_bytes) const {
  if (Status s = table_budget().take(num_bytes, deadline(), while_connected()); !s.ok()) return s;
  return Reservation(table_budget(), num_bytes);
}

bool Connection::Core::has_offers() const {
  const std::lock_guard lock(mutex_);
  return num_offers_ > 0;
}

Stats Connection::Core::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = stats_;
  for (int i = 0; i < kNumModes; ++i) stats.goodput[i] = controller_.goodput(static_cast<Mode>(i));
  return stats;
}

Status Connection::Core::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

Result<Connection> make_connection(const Options& options, std::vector<ChannelPtr> channels) {
  auto core = std::make_shared<Connection::Core>(options, std::move(channels));
  if (Status s = core->start(); !s.ok()) return s;
  return Connection(std::move(core));
}

Transfer Connection::send(std::uint64_t tag, DType dtype,
                          std::span<const std::span<const std::byte>> segments) noexcept try {
  return send(tag, std::make_shared<MemorySource>(dtype, segments));
} catch (const std::exception&) {
  return {};
}

Transfer Connection::recv(std::uint64_t tag,
                          std::span<const std::span<std::byte>> segments) noexcept try {
  return recv(tag, std::make_shared<MemorySink>(segments));
} catch (const std::exception&) {
  return {};
}

Transfer Connection::send(std::uint64_t tag, std::shared_ptr<Source> source) noexcept try {
  return core_ ? core_->send(tag, std::move(source)) : failed_transfer(kNotConnected);
} catch (const std::exception&) {
  return give_up(core_.get());
}

Transfer Connection::recv(std::uint64_t tag, std::shared_ptr<Sink> sink) noexcept try {
  return core_ ? core_->recv(tag, std::move(sink)) : failed_transfer(kNotConnected);
} catch (const std::exception&) {
  return give_up(core_.get());
}

Status Connection::send_note(const std::string& note) noexcept {
  return core_ ? core_->send_note(note) : kNotConnected;
}

Result<std::string> Connection::recv_note(std::chrono::milliseconds patience) noexcept try {
  return core_ ? core_->recv_note(patience) : kNotConnected;
} catch (const std::bad_alloc&) {
  return kOutOfMemory;
}

Stats Connection::stats() const noexcept { return core_ ? core_->stats() : Stats{}; }
std::string Connection::peer_name() const noexcept { return core_ ? core_->peer_name() : "?"; }
Status Connection::status() const noexcept { return core_ ? core_->status() : kNotConnected; }

void Connection::close() noexcept {
  if (core_) core_->fail(kClosed, Code::kOk);
}

}  // namespace snug::wire
