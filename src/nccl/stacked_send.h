// nccl/stacked_send.h - compresses into staging buffers that another plugin sends.
#pragma once
#include <array>
#include <atomic>
#include <deque>

#include "nccl/mode_chooser.h"
#include "nccl/net.h"
#include "nccl/stacked_message.h"
#include "nccl/staging.h"
#include "nccl/stats.h"
#include "nccl/worker_pool.h"

namespace snug::nccl {

class StackedSendComm final : public StackedComm<SendComm> {
 public:
  // `peer_expands`: the other end has Snug, too; otherwise every message goes raw.
  StackedSendComm(InnerPlugin& inner, void* comm, WorkerPool& pool, const Settings& settings,
                  bool peer_expands);
  ~StackedSendComm() override;

  ncclResult_t isend(void* data, std::size_t size, int tag, void* mhandle,
                     Request** request) override;
  ncclResult_t deregister_memory(void* mhandle) override;

 private:
  struct SendRequest final : Request, Job {
    StackedSendComm* comm = nullptr;
    bool in_use = false;
    std::span<const std::byte> data;
    int tag = 0;
    void* mhandle = nullptr;
    Staging::Buffer* buffer = nullptr;
    // Written by the job, read once `is_ready` is set.
    std::size_t staged_bytes = 0;  // 0: send `data` itself
    Codec codec = Codec::kRaw;     // wanted, then used
    DType dtype = DType::kBytes;
    std::uint64_t nanoseconds = 0;
    std::atomic<bool> is_ready{false};
    void* inner_request = nullptr;

    void run(ChunkCodec& codec) override;
    ncclResult_t test(int* done, int* sizes) override { return comm->test(*this, done, sizes); }
  };

  ncclResult_t test(SendRequest& request, int* done, int* sizes);
  ncclResult_t pass_on();
  void wait_for_jobs();
  void account(const SendRequest& request);

  const bool peer_expands_;
  const CodecChoice choice_;
  ModeChooser chooser_;
  DType dtype_seen_ = DType::kBF16;
  unsigned raw_left_ = 0;  // messages to send raw without a look
  std::size_t outstanding_ = 0;
  std::array<SendRequest, NCCL_NET_MAX_REQUESTS> requests_;
  std::deque<SendRequest*> waiting_;  // the inner plugin gets messages in NCCL's order
};

}  // namespace snug::nccl
