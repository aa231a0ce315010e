#include "nccl/stacked_recv.h"

#include <algorithm>
#include <thread>

namespace snug::nccl {

StackedRecvComm::StackedRecvComm(InnerPlugin& inner, void* comm, WorkerPool& pool)
    : StackedComm(inner, comm, pool) {
  for (RecvRequest& request : requests_) {
    request.comm = this;
    for (Part& part : request.parts) part.request = &request;
  }
}

StackedRecvComm::~StackedRecvComm() {
  wait_for_jobs();
  staging_.deregister_all();
  (void)inner_.close_recv(inner_comm_);
}

// After an abort, jobs may still be writing to NCCL's memory, which it frees next.
ncclResult_t StackedRecvComm::deregister_memory(void* mhandle) {
  wait_for_jobs();
  return StackedComm::deregister_memory(mhandle);
}

void StackedRecvComm::wait_for_jobs() {
  for (RecvRequest& request : requests_)
    while (request.in_use && request.inner_request == nullptr &&
           request.parts_left.load(std::memory_order_acquire) > 0)
      std::this_thread::yield();
}

ncclResult_t StackedRecvComm::irecv(std::span<const RecvBuffer> buffers, Request** request) {
  *request = nullptr;
  if (ncclResult_t error = error_.get()) return error;
  const auto free_one = std::ranges::find(requests_, false, &RecvRequest::in_use);
  if (free_one == requests_.end()) return ncclSuccess;
  RecvRequest& receive = *free_one;
  receive.num_parts = static_cast<int>(buffers.size());
  void *data[NCCL_NET_MAX_RECVS], *mhandles[NCCL_NET_MAX_RECVS];
  std::size_t sizes[NCCL_NET_MAX_RECVS];
  int tags[NCCL_NET_MAX_RECVS];
  ncclResult_t result = ncclSuccess;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    Part& part = receive.parts[i];
    part.target = buffers[i];
    part.buffer =
        buffers[i].size > kStackMinBytes ? staging_.take(stacked_bound(buffers[i].size)) : nullptr;
    if (part.buffer == nullptr && buffers[i].size > kStackMinBytes) result = ncclSystemError;
    data[i] = part.buffer != nullptr ? part.buffer->memory.get() : buffers[i].data;
    sizes[i] = part.buffer != nullptr ? stacked_bound(buffers[i].size) : buffers[i].size;
    mhandles[i] = part.buffer != nullptr ? part.buffer->mhandle : buffers[i].mhandle;
    tags[i] = buffers[i].tag;
  }
  receive.inner_request = nullptr;
  if (result == ncclSuccess)
    result = inner_.irecv(inner_comm_, receive.num_parts, data, sizes, tags, mhandles,
                          &receive.inner_request);
  if (result != ncclSuccess || receive.inner_request == nullptr) return give_back(receive), result;
  receive.in_use = true;
  *request = &receive;
  return ncclSuccess;
}

void StackedRecvComm::give_back(RecvRequest& request) {
  for (int i = 0; i < request.num_parts; ++i)
    staging_.give_back(request.parts[static_cast<std::size_t>(i)].buffer);
  request.in_use = false;
}

ncclResult_t StackedRecvComm::test(RecvRequest& request, int* done, int* sizes) {
  *done = 0;
  if (ncclResult_t error = error_.get()) return error;
  if (request.inner_request != nullptr) {
    int arrived = 0, inner_sizes[NCCL_NET_MAX_RECVS] = {};
    if (ncclResult_t result = inner_.test(request.inner_request, &arrived, inner_sizes))
      return result;
    if (arrived == 0) return ncclSuccess;
    request.inner_request = nullptr;
    request.parts_left.store(request.num_parts, std::memory_order_relaxed);
    for (int i = 0; i < request.num_parts; ++i) {
      Part& part = request.parts[static_cast<std::size_t>(i)];
      part.arrived = part.restored = static_cast<std::size_t>(inner_sizes[i]);
      part.status = {};
      if (part.buffer != nullptr && part.arrived > 0)
        pool_.submit(part);
      else
        request.parts_left.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  if (request.parts_left.load(std::memory_order_acquire) > 0) return ncclSuccess;
  for (int i = 0; i < request.num_parts; ++i) {
    const Part& part = request.parts[static_cast<std::size_t>(i)];
    if (!part.status.ok()) error_.set(part.status, "the peer");
    if (sizes != nullptr) sizes[i] = static_cast<int>(part.restored);
  }
  give_back(request);
  *done = error_.get() == ncclSuccess;
  return error_.get();
}

// On a thread of the pool.
void StackedRecvComm::Part::run(ChunkCodec& codec) {
  status = expand(codec);
  request->parts_left.fetch_sub(1, std::memory_order_release);
}

Status StackedRecvComm::Part::expand(ChunkCodec& codec) {
  const auto start = std::chrono::steady_clock::now();
  std::span<const std::byte> message = buffer->bytes().first(std::min(arrived, buffer->size));
  const std::size_t wire_bytes = message.size();
  StackHeader header{};
  header.kind = StackKind::kRaw;
  header.message_bytes = header.payload_bytes = message.size();
  if (has_stack_magic(message)) {
    std::memcpy(&header, message.data(), sizeof header);
    message = message.subspan(sizeof header);
  }
  if (header.payload_bytes > message.size() ||
      (header.kind != StackKind::kFrame &&
       (header.kind != StackKind::kRaw || header.payload_bytes != header.message_bytes)))
    return {Code::kCorrupt, "a message whose sizes do not fit"};
  if (static_cast<int>(header.dtype) >= kNumDTypes || static_cast<int>(header.codec) >= kNumCodecs)
    return {Code::kCorrupt, "unknown element type or codec"};
  if (header.message_bytes > target.size) return too_large(header.message_bytes, target.size);
  message = message.first(header.payload_bytes);
  restored = header.message_bytes;
  const std::span<std::byte> place(static_cast<std::byte*>(target.data), restored);
  if (header.kind == StackKind::kFrame) {
    if (Status s = codec.decode(message, place); !s.ok()) return s;
  } else {
    std::memcpy(place.data(), message.data(), message.size());
  }
  request->comm->stats_.received.add(restored, wire_bytes, nanoseconds_since(start), header.codec,
                                     header.dtype);
  return {};
}

}  // namespace snug::nccl
