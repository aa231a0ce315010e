// nccl/net.h - the interface of a network below the plugin's tables.
//
// NCCL's proxy thread is the only caller of one communicator and its requests;
// nothing here may block it. isend and irecv leave *request null when they
// cannot start yet; NCCL then calls again.
#pragma once
#include <cstddef>
#include <memory>
#include <span>

#include "nccl/net_abi.h"
#include "nccl/worker_desk.h"

namespace snug::nccl {

class Request {
 public:
  virtual ~Request() = default;
  // Once `done` is set the request may be reused by its communicator.
  virtual ncclResult_t test(int* done, int* sizes) = 0;
};

class Comm {
 public:
  virtual ~Comm() = default;
  virtual ncclResult_t register_memory(void* data, std::size_t size, int type, void** mhandle) = 0;
  virtual ncclResult_t deregister_memory(void* mhandle) = 0;
};

class SendComm : public Comm {
 public:
  virtual ncclResult_t isend(void* data, std::size_t size, int tag, void* mhandle,
                             Request** request) = 0;
};

// One of the buffers of a (grouped) receive.
struct RecvBuffer {
  void* data;
  std::size_t size;
  int tag;
  void* mhandle;
};

class RecvComm : public Comm {
 public:
  virtual ncclResult_t irecv(std::span<const RecvBuffer> buffers, Request** request) = 0;
};

// A communicator that reads and writes host memory itself. What NCCL registers is noted for the
// codec workers on the GPU.
template <class Base>
class HostMemory : public Base {
 public:
  ncclResult_t register_memory(void* data, std::size_t size, int type, void** mhandle) override {
    *mhandle = nullptr;
    if (type != NCCL_PTR_HOST) return ncclInternalError;
    *mhandle = WorkerDesk::instance().add_region(data, size);
    return ncclSuccess;
  }
  ncclResult_t deregister_memory(void* mhandle) override {
    if (mhandle != nullptr) WorkerDesk::instance().remove_region(static_cast<Region*>(mhandle));
    return ncclSuccess;
  }
};

class ListenComm {
 public:
  virtual ~ListenComm() = default;
  // Leaves *comm null until the peer has connected.
  virtual ncclResult_t accept(std::unique_ptr<RecvComm>* comm) = 0;
};

class Net {
 public:
  virtual ~Net() = default;
  virtual int num_devices() = 0;
  virtual ncclResult_t properties(int device, ncclNetProperties_v12_t* properties) = 0;
  // `handle` has NCCL_NET_HANDLE_MAXSIZE bytes and travels to the peer that connects.
  virtual ncclResult_t listen(int device, void* handle, std::unique_ptr<ListenComm>* comm) = 0;
  // Leaves *comm null while the connection is being made. NCCL then calls again
  // with the same handle.
  virtual ncclResult_t connect(int device, void* handle, std::unique_ptr<SendComm>* comm) = 0;
};

struct Settings;
// Snug's own network, and the one on top of SNUG_NCCL_INNER; log a warning and return
// nullptr on failure.
std::unique_ptr<Net> make_tcp_net(const Settings& settings);
std::unique_ptr<Net> make_stacked_net(const Settings& settings, ncclDebugLogger_t log);

}  // namespace snug::nccl
