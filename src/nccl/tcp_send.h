// nccl/tcp_send.h - the sending end of a connection.
//
// Small messages leave from NCCL's thread over the control socket. Larger ones
// are cut into chunks, which threads, one per data socket, compress and send.
// Threads are started when there is work for them.
#pragma once
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "nccl/chunk_codec.h"
#include "nccl/comm_error.h"
#include "nccl/mode_chooser.h"
#include "nccl/net.h"
#include "nccl/pacer.h"
#include "nccl/stats.h"
#include "nccl/tcp_link.h"

namespace snug::nccl {

class TcpSendComm final : public HostMemory<SendComm> {
 public:
  TcpSendComm(Link link, const Settings& settings, Pacer& pacer);
  ~TcpSendComm() override;

  ncclResult_t isend(void* data, std::size_t size, int tag, void* mhandle,
                     Request** request) override;
  ncclResult_t deregister_memory(void* mhandle) override;

 private:
  struct SendRequest final : Request {
    TcpSendComm* comm = nullptr;
    bool in_use = false;
    std::span<const std::byte> data;
    const Region* region = nullptr;
    int tag = 0;
    std::uint32_t number = 0;
    std::size_t taken = 0;             // bytes given to threads
    std::atomic<std::size_t> sent{0};  // bytes given to the kernel
    bool is_sent = false;              // of the control socket; also if there are no bytes
    ncclResult_t test(int* done, int* sizes) override { return comm->test(*this, done, sizes); }
  };

  // Waits for the control socket.
  struct ControlItem {
    ChunkHeader header;
    SendRequest* request;  // nullptr: a note
    std::size_t sent = 0;
  };

  // How to treat a chunk, and whether to look at its data first.
  struct Plan {
    DType dtype;
    Codec codec;
    bool look;
  };
  struct Chunk {
    SendRequest* request;
    std::size_t offset, size;
    Plan plan;
    std::size_t wire_bytes = 0;
  };

  ncclResult_t test(SendRequest& request, int* done, int* sizes);
  void send_through_control();
  bool start_threads_if_useful();
  void run(std::size_t socket_idx);
  bool take(Chunk& chunk);
  void give_back(Chunk& chunk);
  Status send_chunk(Chunk& chunk, const net::Socket& socket, ChunkCodec& codec);
  void fail(const Status& status);
  std::int64_t bytes_in_system() const;

  const Settings settings_;
  Pacer& pacer_;
  Link link_;
  PeerStats& stats_;
  CommError error_;
  std::array<SendRequest, NCCL_NET_MAX_REQUESTS> requests_;

  // NCCL's thread alone.
  MessageNumbers numbers_;
  std::deque<ControlItem> control_;
  std::size_t notes_unsent_ = 0;
  net::Deadline control_deadline_{};

  // Shared with the threads.
  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<SendRequest*> queue_;  // messages with chunks still to take
  std::size_t chunks_out_ = 0;      // taken and not yet given back
  std::size_t idle_threads_ = 0;
  bool stop_ = false;
  ModeChooser chooser_;
  Plan last_look_{DType::kBF16, Codec::kEntropy, true};  // what the last sample showed
  unsigned until_look_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace snug::nccl
