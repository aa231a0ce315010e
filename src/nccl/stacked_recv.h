// nccl/stacked_recv.h - receives through another plugin and decodes what arrived.
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

class StackedRecvComm final : public StackedComm<RecvComm> {
 public:
  StackedRecvComm(InnerPlugin& inner, void* comm, WorkerPool& pool);
  ~StackedRecvComm() override;

  ncclResult_t irecv(std::span<const RecvBuffer> buffers, Request** request) override;
  ncclResult_t deregister_memory(void* mhandle) override;

 private:
  struct RecvRequest;
  // One buffer of a receive; as a job, it decodes from staging into that buffer.
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
  void wait_for_jobs();

  CommError error_;
  std::array<RecvRequest, NCCL_NET_MAX_REQUESTS> requests_;
};

}  // namespace snug::nccl
