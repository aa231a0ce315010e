// nccl/tcp_recv.h - the receiving end of a connection.
//
// NCCL's thread reads the control socket while it tests requests. One thread per
// data socket in use reads chunks, checks them and decodes them in place.
#pragma once
#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "nccl/chunk_codec.h"
#include "nccl/comm_error.h"
#include "nccl/net.h"
#include "nccl/stats.h"
#include "nccl/tcp_link.h"

namespace snug::nccl {

class TcpRecvComm final : public HostMemory<RecvComm> {
 public:
  TcpRecvComm(Link link, const Settings& settings);
  ~TcpRecvComm() override;

  ncclResult_t irecv(std::span<const RecvBuffer> buffers, Request** request) override;
  ncclResult_t deregister_memory(void* mhandle) override;

 private:
  // One buffer that waits for one message. `claimed` bytes belong to chunks that
  // are arriving, `done` bytes are in place; neither exceeds the message.
  struct Slot {
    std::byte* data = nullptr;
    std::size_t size = 0;
    const Region* region = nullptr;
    int tag = 0;
    std::uint32_t number = 0;
    std::uint64_t message_bytes = 0;
    std::uint64_t claimed = 0, done = 0;
    bool is_complete = false;
  };
  struct RecvRequest final : Request {
    TcpRecvComm* comm = nullptr;
    bool in_use = false;
    std::size_t num_slots = 0;
    std::array<Slot, NCCL_NET_MAX_RECVS> slots;
    std::atomic<std::size_t> slots_left{0};
    ncclResult_t test(int* done, int* sizes) override { return comm->test(*this, done, sizes); }
  };
  // The receive that a chunk belongs to.
  struct Target {
    RecvRequest* request = nullptr;
    Slot* slot = nullptr;
  };

  ncclResult_t test(RecvRequest& request, int* done, int* sizes);
  void read_control();
  bool read_control_bytes(void* data, std::size_t size);
  bool handle_control_header();
  void run(std::size_t socket_idx);
  Status receive_chunks(const net::Socket& socket, ChunkCodec& codec);
  Status receive_chunk(const ChunkHeader& header, const Target& target, const net::Socket& socket,
                       net::Deadline deadline, ChunkCodec& codec);
  Status check_header(const ChunkHeader& header) const;
  Target find(const ChunkHeader& header);
  Status claim(const Target& target, const ChunkHeader& header);
  void finish(const Target& target, std::uint64_t num_bytes);
  void check_for_silence(const RecvRequest& request);
  void fail(const Status& status);

  const Settings settings_;
  Link link_;
  PeerStats& stats_;
  CommError error_;
  std::array<RecvRequest, NCCL_NET_MAX_REQUESTS> requests_;

  // NCCL's thread alone.
  MessageNumbers numbers_;
  ChunkHeader control_header_{};
  std::size_t control_read_ = 0;  // of the header and its payload
  Target control_target_;
  bool control_closed_ = false;
  net::Deadline silent_until_{};
  std::uint64_t progress_seen_ = 0;
  unsigned polls_ = 0;

  // Shared with the threads.
  std::mutex mutex_;
  std::condition_variable posted_;
  bool stop_ = false;
  std::size_t early_ = 0;                // chunks whose receive is not posted yet
  std::atomic<std::size_t> writers_{0};  // threads between claim and finish
  std::atomic<std::uint64_t> progress_{0};
  std::atomic<std::size_t> threads_ended_{0};
  std::vector<std::thread> threads_;
};

}  // namespace snug::nccl
