#include "nccl/stacked_send.h"

#include <algorithm>
#include <thread>

#include "nccl/detect.h"

namespace snug::nccl {
namespace {

using Clock = std::chrono::steady_clock;

// Messages that go raw without a look after one that did not compress.
constexpr unsigned kRawStretch = 16;

}  // namespace

StackedSendComm::StackedSendComm(InnerPlugin& inner, void* comm, WorkerPool& pool,
                                 const Settings& settings, bool peer_expands)
    : StackedComm(inner, comm, pool),
      peer_expands_(peer_expands),
      choice_(peer_expands ? settings.codec : CodecChoice::kOff),
      chooser_(choice_) {
  for (SendRequest& request : requests_) request.comm = this;
}

StackedSendComm::~StackedSendComm() {
  wait_for_jobs();
  staging_.deregister_all();
  (void)inner_.close_send(inner_comm_);
}

// After an abort, jobs may still be reading NCCL's memory, which it frees next.
ncclResult_t StackedSendComm::deregister_memory(void* mhandle) {
  wait_for_jobs();
  return StackedComm::deregister_memory(mhandle);
}

void StackedSendComm::wait_for_jobs() {
  for (SendRequest& request : requests_)
    while (request.in_use && !request.is_ready.load(std::memory_order_acquire))
      std::this_thread::yield();
}

ncclResult_t StackedSendComm::isend(void* data, std::size_t size, int tag, void* mhandle,
                                    Request** request) {
  *request = nullptr;
  const auto free_one = std::ranges::find(requests_, false, &SendRequest::in_use);
  if (free_one == requests_.end()) return ncclSuccess;
  SendRequest& message = *free_one;
  message.data = {static_cast<const std::byte*>(data), size};
  message.tag = tag;
  message.mhandle = mhandle;
  message.codec = size > kStackMinBytes ? chooser_.next_codec(dtype_seen_) : Codec::kRaw;
  if (message.codec != Codec::kRaw && raw_left_ > 0) {
    --raw_left_;
    message.codec = Codec::kRaw;
  }
  const bool must_wrap = peer_expands_ && has_stack_magic(message.data);
  message.buffer = nullptr;
  message.staged_bytes = 0;
  message.nanoseconds = 0;
  message.inner_request = nullptr;
  message.is_ready.store(true, std::memory_order_relaxed);
  if (message.codec != Codec::kRaw || must_wrap) {
    message.buffer = staging_.take(stacked_bound(size));
    if (message.buffer == nullptr) return ncclSystemError;
    message.is_ready.store(false, std::memory_order_relaxed);
  }
  message.in_use = true;
  if (outstanding_++ == 0) chooser_.busy(Clock::now(), 0);
  waiting_.push_back(&message);
  if (message.buffer != nullptr) pool_.submit(message);
  *request = &message;
  return pass_on();
}

// On a thread of the pool.
void StackedSendComm::SendRequest::run(ChunkCodec& coder) {
  const auto start = Clock::now();
  const std::span<std::byte> staged = buffer->bytes();
  StackHeader header{};
  header.magic = kStackMagic;
  header.message_bytes = data.size();
  if (codec != Codec::kRaw) {
    const Guess guess = guess_dtype(data);
    dtype = guess.dtype;
    codec = codec_for(guess, codec, comm->choice_);
    if (codec != Codec::kRaw)
      header.payload_bytes = coder.encode(data, staged.subspan(sizeof header), dtype, codec);
    if (header.payload_bytes == 0) codec = Codec::kRaw;
  }
  if (codec != Codec::kRaw) {
    header.kind = StackKind::kFrame;
    header.dtype = dtype;
    header.codec = codec;
  } else if (has_stack_magic(data)) {
    header.kind = StackKind::kRaw;
    header.payload_bytes = data.size();
    std::memcpy(staged.data() + sizeof header, data.data(), data.size());
  }
  if (header.payload_bytes > 0) {
    std::memcpy(staged.data(), &header, sizeof header);
    staged_bytes = std::max(sizeof header + header.payload_bytes, kStackMinBytes + sizeof header);
    std::memset(staged.data() + sizeof header + header.payload_bytes, 0,
                staged_bytes - sizeof header - header.payload_bytes);
  }
  nanoseconds = nanoseconds_since(start);
  is_ready.store(true, std::memory_order_release);
}

// Gives the inner plugin every message that is ready, in order.
ncclResult_t StackedSendComm::pass_on() {
  while (!waiting_.empty() && waiting_.front()->is_ready.load(std::memory_order_acquire)) {
    SendRequest& message = *waiting_.front();
    const bool staged = message.staged_bytes > 0;
    void* data =
        staged ? message.buffer->memory.get() : const_cast<std::byte*>(message.data.data());
    const ncclResult_t result = inner_.isend(
        inner_comm_, data, staged ? message.staged_bytes : message.data.size(), message.tag,
        staged ? message.buffer->mhandle : message.mhandle, &message.inner_request);
    if (result != ncclSuccess || message.inner_request == nullptr) return result;
    waiting_.pop_front();
  }
  return ncclSuccess;
}

ncclResult_t StackedSendComm::test(SendRequest& request, int* done, int* sizes) {
  *done = 0;
  if (ncclResult_t result = pass_on()) return result;
  if (request.inner_request == nullptr) return ncclSuccess;
  int inner_size = 0;
  if (ncclResult_t result = inner_.test(request.inner_request, done, &inner_size)) return result;
  if (*done == 0) return ncclSuccess;
  if (sizes != nullptr) sizes[0] = static_cast<int>(request.data.size());
  account(request);
  staging_.give_back(request.buffer);
  request.in_use = false;
  return ncclSuccess;
}

void StackedSendComm::account(const SendRequest& request) {
  const std::size_t wire_bytes =
      request.staged_bytes > 0 ? request.staged_bytes : request.data.size();
  stats_.sent.add(request.data.size(), wire_bytes, request.nanoseconds, request.codec,
                  request.dtype);
  if (request.codec != Codec::kRaw)
    dtype_seen_ = request.dtype;
  else if (request.buffer != nullptr)
    raw_left_ = kRawStretch;
  chooser_.sent(request.data.size(), wire_bytes);
  --outstanding_;
  const auto now = Clock::now();
  if (chooser_.window_is_full(now)) chooser_.turn(now, 0);
  if (outstanding_ == 0) chooser_.idle(now, 0);
}

}  // namespace snug::nccl
