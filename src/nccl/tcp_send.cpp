#include "nccl/tcp_send.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <exception>

#include "nccl/detect.h"

namespace snug::nccl {
namespace {

using Clock = std::chrono::steady_clock;

// Chunks between two looks at the data, while it compresses and while it does not.
constexpr unsigned kLookEvery = 8, kLookEveryRaw = 16;

ChunkHeader header_of(ChunkKind kind, int tag, std::uint32_t number, std::size_t message_bytes) {
  ChunkHeader header{};
  header.magic = kChunkMagic;
  header.kind = kind;
  header.tag = tag;
  header.number = number;
  header.message_bytes = message_bytes;
  return header;
}

}  // namespace

TcpSendComm::TcpSendComm(Link link, const Settings& settings, Pacer& pacer)
    : settings_(settings),
      pacer_(pacer),
      link_(std::move(link)),
      stats_(stats_of_peer(link_.peer)),
      chooser_(link_.same_frames ? settings.codec : CodecChoice::kOff) {
  for (SendRequest& request : requests_) request.comm = this;
  threads_.reserve(link_.data.size());
}

TcpSendComm::~TcpSendComm() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    // Unfinished messages: NCCL gave up, and threads may be waiting for the peer.
    if (!queue_.empty() || chunks_out_ > 0) link_.shut_down();
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  for (const SendRequest& request : requests_)
    if (request.in_use && request.data.size() > settings_.min_bytes)
      WorkerDesk::instance().count_send(-1);
}

ncclResult_t TcpSendComm::isend(void* data, std::size_t size, int tag, void* mhandle,
                                Request** request) {
  *request = nullptr;
  if (ncclResult_t error = error_.get()) return error;
  const auto free_one = std::ranges::find(requests_, false, &SendRequest::in_use);
  if (free_one == requests_.end()) return ncclSuccess;
  SendRequest& message = *free_one;
  message.in_use = true;
  message.data = {static_cast<const std::byte*>(data), size};
  message.region = static_cast<const Region*>(mhandle);
  message.tag = tag;
  message.number = numbers_.next(tag);
  message.taken = 0;
  message.sent.store(0, std::memory_order_relaxed);
  message.is_sent = false;
  if (size <= settings_.min_bytes) {
    ChunkHeader header = header_of(ChunkKind::kRaw, tag, message.number, size);
    header.data_bytes = header.payload_bytes = static_cast<std::uint32_t>(size);
    if (control_.empty()) control_deadline_ = net::after(settings_.timeout);
    control_.push_back({header, &message});
    pacer_.count(sizeof header + size);
    stats_.sent.add(size, sizeof header + size);
  } else {
    {
      const std::lock_guard lock(mutex_);
      if (chooser_.is_measuring() && queue_.empty() && chunks_out_ == 0)
        chooser_.busy(Clock::now(), bytes_in_system());
      queue_.push_back(&message);
      if (!start_threads_if_useful()) {
        // The message will never be sent, and NCCL may free its memory now.
        queue_.pop_back();
        message.in_use = false;
        fail({Code::kIo, "cannot start a thread"});
        return error_.get();
      }
    }
    WorkerDesk::instance().count_send(1);
    size <= settings_.chunk_bytes ? work_.notify_one() : work_.notify_all();
  }
  send_through_control();
  *request = &message;
  return ncclSuccess;
}

// After an abort, threads may be at work on messages in this memory. They then end at once.
ncclResult_t TcpSendComm::deregister_memory(void* mhandle) {
  const auto is_under_way = [&](const SendRequest& request) {
    return request.in_use && request.region == mhandle &&
           request.data.size() > settings_.min_bytes &&
           request.sent.load(std::memory_order_acquire) < request.data.size();
  };
  if (std::ranges::any_of(requests_, is_under_way)) fail(kGivenUp);
  while (std::ranges::any_of(requests_, is_under_way))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return HostMemory::deregister_memory(mhandle);
}

// The peer starts its thread for a socket when it reads the note. Too few threads are
// enough; false if there is none.
bool TcpSendComm::start_threads_if_useful() {
  const auto chunks_of = [&](const SendRequest* message) {
    return (message->data.size() - message->taken + settings_.chunk_bytes - 1) /
           settings_.chunk_bytes;
  };
  std::size_t waiting = 0;
  for (const SendRequest* message : queue_) waiting += chunks_of(message);
  for (std::size_t spare = idle_threads_; spare < waiting && threads_.size() < link_.data.size();
       ++spare) {
    const std::size_t socket_idx = threads_.size();
    if (control_.empty()) control_deadline_ = net::after(settings_.timeout);
    control_.push_back({header_of(ChunkKind::kOpen, 0, 0, socket_idx), nullptr});
    try {
      threads_.emplace_back(&TcpSendComm::run, this, socket_idx);
    } catch (const std::exception&) {
      control_.pop_back();
      break;
    }
    ++notes_unsent_;
  }
  return !threads_.empty();
}

ncclResult_t TcpSendComm::test(SendRequest& request, int* done, int* sizes) {
  *done = 0;
  if (!control_.empty()) send_through_control();
  if (ncclResult_t error = error_.get()) return error;
  const bool is_small = request.data.size() <= settings_.min_bytes;
  // While a note is unsent the peer would not read what this message's threads wrote.
  const bool is_sent = is_small
                           ? request.is_sent
                           : request.sent.load(std::memory_order_acquire) == request.data.size() &&
                                 notes_unsent_ == 0;
  if (!is_sent) return ncclSuccess;
  *done = 1;
  if (sizes != nullptr) sizes[0] = static_cast<int>(request.data.size());
  if (!is_small) WorkerDesk::instance().count_send(-1);
  request.in_use = false;
  return ncclSuccess;
}

// Sends as much as the kernel accepts without waiting.
void TcpSendComm::send_through_control() {
  while (!control_.empty()) {
    ControlItem& item = control_.front();
    const std::span<const std::byte> payload =
        item.request != nullptr ? item.request->data : std::span<const std::byte>{};
    const std::size_t total = sizeof item.header + payload.size();
    iovec pieces[] = {{&item.header, sizeof item.header},
                      {const_cast<std::byte*>(payload.data()), payload.size()}};
    std::size_t skip = item.sent;
    for (iovec& piece : pieces) {
      const std::size_t done = std::min(skip, piece.iov_len);
      piece = {static_cast<char*>(piece.iov_base) + done, piece.iov_len - done};
      skip -= done;
    }
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = std::size(pieces);
    const ssize_t sent = ::sendmsg(link_.control.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
      return fail({Code::kPeer, "the peer closed the connection"});
    if (sent < 0) {
      if (Clock::now() > control_deadline_)
        fail({Code::kTimeout, "the peer took nothing for too long"});
      return;
    }
    item.sent += static_cast<std::size_t>(sent);
    control_deadline_ = net::after(settings_.timeout);
    if (item.sent < total) continue;
    if (item.request != nullptr)
      item.request->is_sent = true;
    else
      --notes_unsent_;
    control_.pop_front();
  }
}

void TcpSendComm::run(std::size_t socket_idx) {
  ChunkCodec codec;
  Chunk chunk{};
  while (take(chunk)) {
    const net::Socket& socket = link_.data[socket_idx];
    if (Status status = send_chunk(chunk, socket, codec); !status.ok()) fail(status);
    give_back(chunk);
  }
}

bool TcpSendComm::take(Chunk& chunk) {
  std::unique_lock lock(mutex_);
  while (!stop_ && queue_.empty()) {
    ++idle_threads_;
    work_.wait(lock);
    --idle_threads_;
  }
  if (stop_) return false;
  SendRequest& message = *queue_.front();
  chunk = {&message, message.taken,
           std::min(settings_.chunk_bytes, message.data.size() - message.taken), last_look_};
  message.taken += chunk.size;
  if (message.taken == message.data.size()) queue_.pop_front();
  ++chunks_out_;
  chunk.plan.codec = chooser_.next_codec(last_look_.dtype);
  chunk.plan.look = chunk.plan.codec != Codec::kRaw && until_look_ == 0;
  if (!chunk.plan.look && last_look_.codec == Codec::kRaw) chunk.plan.codec = Codec::kRaw;
  if (until_look_ > 0) --until_look_;
  return true;
}

void TcpSendComm::give_back(Chunk& chunk) {
  const std::lock_guard lock(mutex_);
  --chunks_out_;
  if (chunk.plan.look) {
    last_look_ = chunk.plan;
    until_look_ = chunk.plan.codec == Codec::kRaw ? kLookEveryRaw : kLookEvery;
  } else if (chunk.plan.codec != Codec::kRaw && chunk.wire_bytes >= chunk.size) {
    until_look_ = 0;  // the data has changed
  }
  if (chooser_.is_measuring()) {
    const auto now = Clock::now();
    chooser_.sent(chunk.size, chunk.wire_bytes);
    if (chooser_.window_is_full(now)) chooser_.turn(now, bytes_in_system());
    if (queue_.empty() && chunks_out_ == 0) chooser_.idle(now, bytes_in_system());
  }
  // Last, because NCCL's thread may then reuse the request.
  chunk.request->sent.fetch_add(chunk.size, std::memory_order_release);
}

Status TcpSendComm::send_chunk(Chunk& chunk, const net::Socket& socket, ChunkCodec& codec) {
  if (error_.get() != ncclSuccess) return {};  // reported already
  const std::span<const std::byte> data = chunk.request->data.subspan(chunk.offset, chunk.size);
  Plan& plan = chunk.plan;
  const auto start = Clock::now();
  if (plan.look) {
    const Guess guess = guess_dtype(data);
    plan.dtype = guess.dtype;
    plan.codec = codec_for(guess, plan.codec, settings_.codec);
  }
  std::span<std::byte> frame;
  bool by_workers = false;
  if (plan.codec != Codec::kRaw) {
    frame = codec.frame_buffer(chunk_frame_bound(settings_.chunk_bytes));
    // The entropy codec makes smaller frames, and on the GPU it costs no CPU time.
    if (plan.codec == Codec::kFixed && settings_.codec == CodecChoice::kAuto &&
        codec.has_workers_for(data, frame, plan.dtype, chunk.request->region))
      plan.codec = Codec::kEntropy;
    frame = frame.first(codec.encode(data, frame, plan.dtype, plan.codec, chunk.request->region));
    by_workers = codec.was_by_workers();
  }
  const std::uint64_t nanoseconds = by_workers ? 0 : nanoseconds_since(start);

  const bool is_frame = !frame.empty();
  ChunkHeader header = header_of(is_frame ? ChunkKind::kFrame : ChunkKind::kRaw, chunk.request->tag,
                                 chunk.request->number, chunk.request->data.size());
  header.dtype = plan.dtype;
  header.codec = is_frame ? plan.codec : Codec::kRaw;
  header.offset = chunk.offset;
  header.data_bytes = static_cast<std::uint32_t>(chunk.size);
  header.payload_bytes = static_cast<std::uint32_t>(is_frame ? frame.size() : chunk.size);
  chunk.wire_bytes = sizeof header + header.payload_bytes;
  stats_.sent.add(chunk.size, chunk.wire_bytes, nanoseconds, header.codec, header.dtype,
                  by_workers);

  pacer_.wait(chunk.wire_bytes);
  iovec pieces[] = {
      {&header, sizeof header},
      {is_frame ? frame.data() : const_cast<std::byte*>(data.data()), header.payload_bytes}};
  return socket.send_all(pieces, net::after(settings_.timeout));
}

void TcpSendComm::fail(const Status& status) {
  if (error_.set(status, link_.peer.c_str())) link_.shut_down();
}

// What the data sockets hold that the peer has not acknowledged.
std::int64_t TcpSendComm::bytes_in_system() const {
  std::int64_t total = 0;
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    int queued = 0;
    if (::ioctl(link_.data[i].fd(), SIOCOUTQ, &queued) == 0) total += queued;
  }
  return total;
}

}  // namespace snug::nccl
