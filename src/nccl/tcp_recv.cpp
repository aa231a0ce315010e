#include "nccl/tcp_recv.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>

namespace snug::nccl {
namespace {

using Clock = std::chrono::steady_clock;

// NCCL polls all the time; a timeout need not be checked each time.
constexpr unsigned kPollsPerLook = 64;

constexpr Status kClosed{Code::kPeer, "the peer closed the connection"};

Status garbage(const char* what) { return {Code::kCorrupt, what}; }

}  // namespace

TcpRecvComm::TcpRecvComm(Link link, const Settings& settings)
    : settings_(settings), link_(std::move(link)), stats_(stats_of_peer(link_.peer)) {
  for (RecvRequest& request : requests_) request.comm = this;
}

TcpRecvComm::~TcpRecvComm() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  link_.shut_down();
  posted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

ncclResult_t TcpRecvComm::irecv(std::span<const RecvBuffer> buffers, Request** request) {
  *request = nullptr;
  if (ncclResult_t error = error_.get()) return error;
  if (buffers.empty() || buffers.size() > NCCL_NET_MAX_RECVS) return ncclInvalidArgument;
  const auto free_one = std::ranges::find(requests_, false, &RecvRequest::in_use);
  if (free_one == requests_.end()) return ncclSuccess;
  bool wake;
  {
    const std::lock_guard lock(mutex_);
    free_one->num_slots = buffers.size();
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const RecvBuffer& buffer = buffers[i];
      free_one->slots[i] =
          Slot{static_cast<std::byte*>(buffer.data), buffer.size,
               static_cast<const Region*>(buffer.mhandle), buffer.tag, numbers_.next(buffer.tag)};
    }
    free_one->slots_left.store(free_one->num_slots);
    free_one->in_use = true;
    wake = early_ > 0;
  }
  if (wake) posted_.notify_all();
  *request = &*free_one;
  return ncclSuccess;
}

// After an abort, threads may be writing to this memory. They then end at once.
ncclResult_t TcpRecvComm::deregister_memory(void* mhandle) {
  const auto is_open = [&](const RecvRequest& request) {
    const auto slots = std::span(request.slots).first(request.num_slots);
    return request.in_use && request.slots_left.load(std::memory_order_acquire) > 0 &&
           std::ranges::any_of(slots, [&](const Slot& slot) { return slot.region == mhandle; });
  };
  if (std::ranges::any_of(requests_, is_open)) {
    fail(kGivenUp);
    while (writers_.load(std::memory_order_acquire) > 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return HostMemory::deregister_memory(mhandle);
}

ncclResult_t TcpRecvComm::test(RecvRequest& request, int* done, int* sizes) {
  *done = 0;
  if (request.slots_left.load(std::memory_order_acquire) > 0) read_control();
  if (request.slots_left.load(std::memory_order_acquire) > 0) {
    check_for_silence(request);
    return error_.get();
  }
  *done = 1;
  for (std::size_t i = 0; sizes != nullptr && i < request.num_slots; ++i)
    sizes[i] = static_cast<int>(request.slots[i].message_bytes);
  const std::lock_guard lock(mutex_);
  request.in_use = false;
  return ncclSuccess;
}

// A receive may wait for hours until its message begins. A message that has begun
// must make progress, and once every socket is closed nothing can arrive.
void TcpRecvComm::check_for_silence(const RecvRequest& request) {
  if (control_closed_ && threads_ended_.load() == threads_.size()) {
    // The last chunk may have been finished just before its thread ended.
    if (request.slots_left.load(std::memory_order_acquire) > 0) fail(kClosed);
    return;
  }
  if (++polls_ % kPollsPerLook != 0) return;
  bool has_begun = control_read_ > 0;
  {
    const std::lock_guard lock(mutex_);
    has_begun = has_begun || early_ > 0;
    for (const Slot& slot : std::span(request.slots).first(request.num_slots))
      has_begun = has_begun || (slot.claimed > 0 && !slot.is_complete);
  }
  const std::uint64_t progress = progress_.load(std::memory_order_relaxed);
  if (!has_begun || progress != progress_seen_) {
    progress_seen_ = progress;
    silent_until_ = net::after(settings_.timeout);
  } else if (Clock::now() > silent_until_) {
    fail({Code::kTimeout, "the peer stopped in the middle of a message"});
  }
}

// ---- the control socket ------------------------------------------------------

// Reads more of `data`, which is the header or the payload after it; control_read_
// counts over both. False: not complete yet.
bool TcpRecvComm::read_control_bytes(void* data, std::size_t size) {
  const bool is_header = data == &control_header_;
  std::size_t have = is_header ? control_read_ : control_read_ - sizeof control_header_;
  while (have < size) {
    const ssize_t got =
        ::recv(link_.control.fd(), static_cast<char*>(data) + have, size - have, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (got <= 0) {
      control_closed_ = true;
      // A peer may close between two messages only.
      if (got < 0 || control_read_ > 0) fail(kClosed);
      return false;
    }
    have += static_cast<std::size_t>(got);
    control_read_ += static_cast<std::size_t>(got);
    progress_.fetch_add(1, std::memory_order_relaxed);
  }
  return true;
}

void TcpRecvComm::read_control() {
  while (error_.get() == ncclSuccess && !control_closed_) {
    if (control_read_ < sizeof control_header_ &&
        !read_control_bytes(&control_header_, sizeof control_header_))
      return;
    if (control_target_.slot == nullptr && !handle_control_header()) return;
    if (control_target_.slot != nullptr) {
      if (!read_control_bytes(control_target_.slot->data, control_header_.data_bytes)) return;
      stats_.received.add(control_header_.data_bytes,
                          sizeof control_header_ + control_header_.data_bytes);
      finish(control_target_, control_header_.data_bytes);
    }
    control_target_ = {};
    control_read_ = 0;
  }
}

// False: the message cannot be received, or not yet.
bool TcpRecvComm::handle_control_header() {
  const ChunkHeader& header = control_header_;
  if (header.magic == kChunkMagic && header.kind == ChunkKind::kOpen) {
    if (header.message_bytes != threads_.size() || threads_.size() >= link_.data.size()) {
      fail(garbage("the peer opened a socket out of turn"));
      return false;
    }
    try {
      threads_.emplace_back(&TcpRecvComm::run, this, threads_.size());
    } catch (const std::exception&) {
      fail({Code::kIo, "cannot start a thread"});  // without it nothing reads that socket
      return false;
    }
    return true;
  }
  Status status = check_header(header);
  if (status.ok() && (header.kind != ChunkKind::kRaw || header.data_bytes != header.message_bytes))
    status = garbage("a message in pieces on the control socket");
  if (status.ok()) {
    const std::lock_guard lock(mutex_);
    const Target target = find(header);
    if (target.slot == nullptr) return false;  // its receive is not posted yet
    status = claim(target, header);
    if (status.ok()) control_target_ = target;
  }
  if (!status.ok()) fail(status);
  return status.ok();
}

// ---- the data sockets ----------------------------------------------------------

void TcpRecvComm::run(std::size_t socket_idx) {
  ChunkCodec codec;
  if (Status status = receive_chunks(link_.data[socket_idx], codec); !status.ok()) fail(status);
  threads_ended_.fetch_add(1);
}

Status TcpRecvComm::receive_chunks(const net::Socket& socket, ChunkCodec& codec) {
  for (;;) {
    ChunkHeader header;
    const auto header_bytes = std::as_writable_bytes(std::span(&header, 1));
    const auto begun = socket.recv_some(header_bytes, net::Deadline::max());
    if (!begun) return begun.status();
    if (*begun == 0) return {};  // closed between two chunks
    const net::Deadline deadline = net::after(settings_.timeout);
    if (Status status = socket.recv_all(header_bytes.subspan(*begun), deadline); !status.ok())
      return status;
    if (Status status = check_header(header); !status.ok()) return status;
    if (header.data_bytes == 0) return garbage("an empty piece");

    Target target;
    {
      std::unique_lock lock(mutex_);
      ++early_;
      posted_.wait(lock, [&] {
        return stop_ || error_.get() != ncclSuccess || (target = find(header)).slot != nullptr;
      });
      --early_;
      if (target.slot == nullptr) return {};  // closing
      if (Status status = claim(target, header); !status.ok()) return status;
      writers_.fetch_add(1, std::memory_order_relaxed);
    }
    const Status status = receive_chunk(header, target, socket, deadline, codec);
    writers_.fetch_sub(1, std::memory_order_release);
    if (!status.ok()) return status;
  }
}

// The claim keeps the request open, so the buffer is this thread's until finish().
Status TcpRecvComm::receive_chunk(const ChunkHeader& header, const Target& target,
                                  const net::Socket& socket, net::Deadline deadline,
                                  ChunkCodec& codec) {
  const std::span<std::byte> place(target.slot->data + header.offset, header.data_bytes);
  std::uint64_t nanoseconds = 0;
  bool by_workers = false;
  if (header.kind == ChunkKind::kRaw) {
    if (Status status = socket.recv_all(place, deadline); !status.ok()) return status;
  } else {
    const std::span<std::byte> frame = codec.frame_buffer(header.payload_bytes);
    if (frame.size() < header.payload_bytes) return {Code::kInternal, "out of memory for a chunk"};
    if (Status status = socket.recv_all(frame, deadline); !status.ok()) return status;
    const auto start = Clock::now();
    if (Status status = codec.decode(frame, place, target.slot->region); !status.ok())
      return status;
    by_workers = codec.was_by_workers();
    if (!by_workers) nanoseconds = nanoseconds_since(start);
  }
  stats_.received.add(header.data_bytes, sizeof header + header.payload_bytes, nanoseconds,
                      header.codec, header.dtype, by_workers);
  finish(target, header.data_bytes);
  return {};
}

// ---- messages ---------------------------------------------------------------------

Status TcpRecvComm::check_header(const ChunkHeader& header) const {
  if (header.magic != kChunkMagic) return garbage("not a chunk of Snug");
  if (header.kind != ChunkKind::kRaw && header.kind != ChunkKind::kFrame)
    return garbage("unknown kind of chunk");
  if (static_cast<int>(header.dtype) >= kNumDTypes || static_cast<int>(header.codec) >= kNumCodecs)
    return garbage("unknown element type or codec");
  if (header.data_bytes > header.message_bytes ||
      header.offset > header.message_bytes - header.data_bytes)
    return garbage("a piece outside its message");
  if (header.data_bytes > kMaxChunkBytes) return garbage("a chunk too large");
  const std::size_t most =
      header.kind == ChunkKind::kRaw ? header.data_bytes : chunk_frame_bound(header.data_bytes);
  if (header.payload_bytes > most ||
      (header.kind == ChunkKind::kRaw && header.payload_bytes != header.data_bytes))
    return garbage("a chunk whose sizes do not fit");
  return {};
}

// The posted buffer for this message, with mutex_ held.
TcpRecvComm::Target TcpRecvComm::find(const ChunkHeader& header) {
  for (RecvRequest& request : requests_) {
    if (!request.in_use) continue;
    for (Slot& slot : std::span(request.slots).first(request.num_slots))
      if (slot.tag == header.tag && slot.number == header.number && !slot.is_complete)
        return {&request, &slot};
  }
  return {};
}

Status TcpRecvComm::claim(const Target& target, const ChunkHeader& header) {
  Slot& slot = *target.slot;
  if (header.message_bytes > slot.size) return too_large(header.message_bytes, slot.size);
  if (slot.claimed > 0 && slot.message_bytes != header.message_bytes)
    return garbage("pieces of different messages");
  slot.message_bytes = header.message_bytes;
  if (header.data_bytes > slot.message_bytes - slot.claimed)
    return garbage("more pieces than the message has");
  slot.claimed += header.data_bytes;
  return {};
}

void TcpRecvComm::finish(const Target& target, std::uint64_t num_bytes) {
  const std::lock_guard lock(mutex_);
  progress_.fetch_add(1, std::memory_order_relaxed);
  Slot& slot = *target.slot;
  slot.done += num_bytes;
  if (slot.done < slot.message_bytes) return;
  slot.is_complete = true;
  target.request->slots_left.fetch_sub(1, std::memory_order_release);
}

void TcpRecvComm::fail(const Status& status) {
  if (!error_.set(status, link_.peer.c_str())) return;
  link_.shut_down();
  { const std::lock_guard lock(mutex_); }  // no thread is between its check and its wait
  posted_.notify_all();
}

}  // namespace snug::nccl
