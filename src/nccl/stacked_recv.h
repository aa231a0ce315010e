// nccl/stacked_recv.h - receives through another plugin and expands what arrived.
#pragma once
#include <array>
#include <atomic>

#include "nccl/comm_error.h"
#include "nccl/net.h"
#include "nccl/stacked_message.h"
#include "nccl/staging.h"
#include "nccl/stats.h"
#include "nccl/worker_pool.h"

namespace snug::nccl {

class StackedRecvComm final : public RecvComm {
 public:
  StackedRecvComm(InnerPlugin& inner, void* comm, WorkerPool& pool);
  ~StackedRecvComm() override;

  ncclResult_t register_memory(void* data, std::size_t size, int type, void** mhandle) override {
    return inner_.register_memory(comm_, data, size, type, mhandle);
  }
  ncclResult_t deregister_memory(void* mhandle) override {
    return inner_.deregister_memory(comm_, mhandle);
  }
  ncclResult_t irecv(std::span<const RecvBuffer> buffers, Request** request) override;
  ncclResult_t iflush(std::span<const RecvBuffer>, Request** request) override {
    return *request = nullptr, ncclSuccess;
  }

 private:
  struct RecvRequest;
  // One buffer of a receive; as a job, it restores the buffer from staging.
  struct Part final : Job {
    RecvRequest* request = nullptr;
    RecvBuffer target{};
    Staging::Buffer* buffer = nullptr;  // nullptr: received in place
    std::size_t arrived = 0;
    std::size_t restored = 0;
    Status status;
    void run(ChunkCodec& codec) override;
    Status expand(ChunkCodec& codec);
  };
  struct RecvRequest final : Request {
    StackedRecvComm* comm = nullptr;
    bool in_use = false;
    int num_parts = 0;
    std::array<Part, NCCL_NET_MAX_RECVS> parts;
    void* inner_request = nullptr;  // nullptr: arrived
    std::atomic<int> parts_left{0};
    ncclResult_t test(int* done, int* sizes) override { return comm->test(*this, done, sizes); }
  };

  ncclResult_t test(RecvRequest& request, int* done, int* sizes);
  void give_back(RecvRequest& request);

  InnerPlugin& inner_;
  void* comm_;
  WorkerPool& pool_;
  Staging staging_;
  PeerStats& stats_;
  CommError error_;
  std::array<RecvRequest, NCCL_NET_MAX_REQUESTS> requests_;
};

}  // namespace snug::nccl
