// A plugin to stack Snug on: Snug's own transport without compression, behind
// one old table, with the manners of a picky RDMA plugin. Only registered memory
// may be sent or received, and requests are often refused at first.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "nccl/log.h"
#include "nccl/net.h"
#include "nccl/settings.h"

namespace snug::nccl {
namespace {

struct Region {
  Comm* comm;
  const char* data;
  std::size_t size;
};

Net* net = nullptr;
unsigned calls = 0;

bool refuses() { return ++calls % 3 == 0; }

// Snug tests call from one thread, so a plain check will do.
ncclResult_t check(void* comm, void* data, std::size_t size, void* mhandle) {
  const auto* region = static_cast<const Region*>(mhandle);
  const auto* first = static_cast<const char*>(data);
  if (region != nullptr && region->comm == static_cast<Comm*>(comm) && first >= region->data &&
      first + size <= region->data + region->size)
    return ncclSuccess;
  std::fprintf(stderr, "fake plugin: %zu bytes of memory that is not registered\n", size);
  return ncclInvalidArgument;
}

ncclResult_t init(ncclDebugLogger_t log) {
  set_logger(log);
  Settings settings;
  settings.codec = CodecChoice::kOff;
  net = make_tcp_net(settings).release();
  return net != nullptr ? ncclSuccess : ncclSystemError;
}
ncclResult_t devices(int* count) { return *count = net->num_devices(), ncclSuccess; }

ncclResult_t get_properties(int device, ncclNetProperties_v9_t* out) {
  ncclNetProperties_v12_t all{};
  const ncclResult_t result = net->properties(device, &all);
  *out = {};
  out->name = all.name;
  out->ptrSupport = NCCL_PTR_HOST | NCCL_PTR_CUDA;
  out->speed = 100'000;
  out->maxComms = 64;
  out->maxRecvs = NCCL_NET_MAX_RECVS;
  out->maxP2pBytes = out->maxCollBytes = 1 << 30;
  return result;
}

ncclResult_t listen(int device, void* handle, void** out) {
  std::unique_ptr<ListenComm> comm;
  const ncclResult_t result = net->listen(device, handle, &comm);
  return *out = comm.release(), result;
}
ncclResult_t connect(int device, void* handle, void** out, ncclNetDeviceHandle_t**) {
  std::unique_ptr<SendComm> comm;
  const ncclResult_t result = net->connect(device, handle, &comm);
  return *out = static_cast<Comm*>(comm.release()), result;
}
ncclResult_t accept(void* listening, void** out, ncclNetDeviceHandle_t**) {
  std::unique_ptr<RecvComm> comm;
  const ncclResult_t result = static_cast<ListenComm*>(listening)->accept(&comm);
  return *out = static_cast<Comm*>(comm.release()), result;
}
ncclResult_t reg_mr(void* comm, void* data, std::size_t size, int, void** mhandle) {
  *mhandle = new Region{static_cast<Comm*>(comm), static_cast<const char*>(data), size};
  return ncclSuccess;
}
ncclResult_t dereg_mr(void*, void* mhandle) {
  return delete static_cast<Region*>(mhandle), ncclSuccess;
}

ncclResult_t isend(void* comm, void* data, std::size_t size, int tag, void* mhandle,
                   void** request) {
  *request = nullptr;
  if (ncclResult_t result = check(comm, data, size, mhandle)) return result;
  if (refuses()) return ncclSuccess;
  Request* started = nullptr;
  const ncclResult_t result =
      static_cast<SendComm&>(*static_cast<Comm*>(comm)).isend(data, size, tag, mhandle, &started);
  return *request = started, result;
}
ncclResult_t irecv(void* comm, int n, void** data, std::size_t* sizes, int* tags, void** mhandles,
                   void** request) {
  *request = nullptr;
  RecvBuffer buffers[NCCL_NET_MAX_RECVS];
  for (int i = 0; i < n; ++i) {
    if (ncclResult_t result = check(comm, data[i], sizes[i], mhandles[i])) return result;
    buffers[i] = {data[i], sizes[i], tags[i], nullptr};
  }
  if (refuses()) return ncclSuccess;
  Request* started = nullptr;
  const ncclResult_t result = static_cast<RecvComm&>(*static_cast<Comm*>(comm))
                                  .irecv({buffers, static_cast<std::size_t>(n)}, &started);
  return *request = started, result;
}
ncclResult_t iflush(void*, int, void**, int*, void**, void** request) {
  return *request = nullptr, ncclSuccess;
}
ncclResult_t test(void* request, int* done, int* sizes) {
  return static_cast<Request*>(request)->test(done, sizes);
}
ncclResult_t close_comm(void* comm) { return delete static_cast<Comm*>(comm), ncclSuccess; }
ncclResult_t close_listen(void* comm) { return delete static_cast<ListenComm*>(comm), ncclSuccess; }

}  // namespace
}  // namespace snug::nccl

using namespace snug::nccl;
extern "C" const ncclNet_v9_t ncclNetPlugin_v9 = {
    "Fake",     init,       devices,      get_properties, listen,  connect, accept,
    reg_mr,     nullptr,    dereg_mr,     isend,          irecv,   iflush,  test,
    close_comm, close_comm, close_listen, nullptr,        nullptr, nullptr};
