// The tables NCCL looks for, one per version of its interface, over one Net.
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <type_traits>

#include "nccl/log.h"
#include "nccl/net.h"
#include "nccl/settings.h"
#include "nccl/stats.h"

namespace snug::nccl {
namespace {

// One network a process, made at the first init. From version 11 on NCCL calls
// finalize after its last communicator; the next init then reads the settings again.
std::mutex init_mutex;
Net* net = nullptr;  // never destroyed at exit: threads of open connections still use it
int num_users = 0;
std::atomic<int> num_open{0};  // listeners and connections

// No exception may reach NCCL.
template <class Body>
ncclResult_t guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    warn("%s", error.what());
    return ncclSystemError;
  }
}

ncclResult_t start(ncclDebugLogger_t log) {
  set_logger(log);
  if (net != nullptr) return ncclSuccess;
  const Settings settings = read_settings();
  net =
      (settings.inner.empty() ? make_tcp_net(settings) : make_stacked_net(settings, log)).release();
  if (net == nullptr) return ncclSystemError;
  start_stats(settings);
  return ncclSuccess;
}

ncclResult_t init(ncclDebugLogger_t log) noexcept {
  return guarded([&] {
    const std::lock_guard lock(init_mutex);
    return start(log);
  });
}
ncclResult_t init_v10(ncclDebugLogger_t log, ncclProfilerCallback_t) noexcept { return init(log); }
ncclResult_t init_v11(void** context, std::uint64_t, ncclNetCommConfig_t*, ncclDebugLogger_t log,
                      ncclProfilerCallback_t) noexcept {
  *context = nullptr;
  return guarded([&] {
    const std::lock_guard lock(init_mutex);
    const ncclResult_t result = start(log);
    if (result == ncclSuccess) ++num_users;
    return result;
  });
}
ncclResult_t finalize(void*) noexcept {
  return guarded([&] {
    const std::lock_guard lock(init_mutex);
    if (--num_users > 0 || num_open > 0) return ncclSuccess;
    delete net;
    net = nullptr;
    return ncclSuccess;
  });
}

ncclResult_t devices(int* num_devices) noexcept {
  if (net == nullptr) return ncclInvalidUsage;
  return guarded([&] { return *num_devices = net->num_devices(), ncclSuccess; });
}

template <class Properties>
ncclResult_t properties(int device, Properties* out) noexcept {
  return guarded([&] {
    ncclNetProperties_v12_t all{};
    if (ncclResult_t result = net->properties(device, &all)) return result;
    copy_common_properties(all, *out);
    if constexpr (requires { out->vProps; }) {
      out->forceFlush = all.forceFlush;
      out->vProps.ndevs = 1;
      out->vProps.devs[0] = device;
      out->maxP2pBytes = all.maxP2pBytes;
      out->maxCollBytes = all.maxCollBytes;
    }
    if constexpr (requires { out->maxMultiRequestSize; })
      out->maxMultiRequestSize = all.maxMultiRequestSize;
    if constexpr (requires { out->railId; }) out->railId = all.railId, out->planeId = all.planeId;
    return ncclSuccess;
  });
}

// `open` makes a communicator, which NCCL then owns as a pointer to its base.
template <class Owned, class Base = Comm, class Open>
ncclResult_t open_comm(void** out, Open open) noexcept {
  return guarded([&] {
    std::unique_ptr<Owned> comm;
    const ncclResult_t result = open(&comm);
    num_open += comm != nullptr;
    *out = static_cast<Base*>(comm.release());
    return result;
  });
}
template <class Base>
ncclResult_t close_any(void* comm) noexcept {
  return guarded([&] {
    delete static_cast<Base*>(comm);
    num_open -= comm != nullptr;
    return ncclSuccess;
  });
}

ncclResult_t listen(int device, void* handle, void** listen_comm) noexcept {
  return open_comm<ListenComm, ListenComm>(
      listen_comm, [&](auto* comm) { return net->listen(device, handle, comm); });
}
ncclResult_t listen_v11(void*, int device, void* handle, void** comm) noexcept {
  return listen(device, handle, comm);
}

ncclResult_t connect(int device, void* handle, void** send_comm, ncclNetDeviceHandle_t**) noexcept {
  return open_comm<SendComm>(send_comm,
                             [&](auto* comm) { return net->connect(device, handle, comm); });
}
ncclResult_t connect_v10(int device, ncclNetCommConfig_t*, void* handle, void** comm,
                         ncclNetDeviceHandle_t** device_comm) noexcept {
  return connect(device, handle, comm, device_comm);
}
ncclResult_t connect_v11(void*, int device, void* handle, void** comm,
                         ncclNetDeviceHandle_t** device_comm) noexcept {
  return connect(device, handle, comm, device_comm);
}

ncclResult_t accept(void* listen_comm, void** recv_comm, ncclNetDeviceHandle_t**) noexcept {
  return open_comm<RecvComm>(
      recv_comm, [&](auto* comm) { return static_cast<ListenComm*>(listen_comm)->accept(comm); });
}

SendComm& send_comm_of(void* comm) { return static_cast<SendComm&>(*static_cast<Comm*>(comm)); }
RecvComm& recv_comm_of(void* comm) { return static_cast<RecvComm&>(*static_cast<Comm*>(comm)); }

ncclResult_t reg_mr(void* comm, void* data, std::size_t size, int type, void** mhandle) noexcept {
  return guarded(
      [&] { return static_cast<Comm*>(comm)->register_memory(data, size, type, mhandle); });
}
ncclResult_t dereg_mr(void* comm, void* mhandle) noexcept {
  return guarded([&] { return static_cast<Comm*>(comm)->deregister_memory(mhandle); });
}

ncclResult_t isend_v9(void* comm, void* data, std::size_t size, int tag, void* mhandle,
                      void** request) noexcept {
  return guarded([&] {
    Request* started = nullptr;
    const ncclResult_t result = send_comm_of(comm).isend(data, size, tag, mhandle, &started);
    *request = started;
    return result;
  });
}
ncclResult_t isend_v8(void* comm, void* data, int size, int tag, void* mhandle,
                      void** request) noexcept {
  if (size < 0) return ncclInvalidArgument;
  return isend_v9(comm, data, static_cast<std::size_t>(size), tag, mhandle, request);
}
ncclResult_t isend_v10(void* comm, void* data, std::size_t size, int tag, void* mhandle, void*,
                       void** request) noexcept {
  return isend_v9(comm, data, size, tag, mhandle, request);
}

// NCCL sets `*request` to 1 where it does not need the size. It gets the size anyway.
template <class Size>
ncclResult_t irecv(void* comm, int n, void** data, Size* sizes, int* tags, void** mhandles,
                   void** request) noexcept {
  *request = nullptr;
  if (n < 1 || n > NCCL_NET_MAX_RECVS) return ncclInvalidArgument;
  return guarded([&] {
    RecvBuffer buffers[NCCL_NET_MAX_RECVS];
    for (int i = 0; i < n; ++i) {
      if constexpr (std::is_signed_v<Size>)
        if (sizes[i] < 0) return ncclInvalidArgument;
      buffers[i] = {data[i], static_cast<std::size_t>(sizes[i]), tags[i],
                    mhandles != nullptr ? mhandles[i] : nullptr};
    }
    Request* started = nullptr;
    const ncclResult_t result =
        recv_comm_of(comm).irecv({buffers, static_cast<std::size_t>(n)}, &started);
    *request = started;
    return result;
  });
}
ncclResult_t irecv_v10(void* comm, int n, void** data, std::size_t* sizes, int* tags,
                       void** mhandles, void**, void** request) noexcept {
  return irecv(comm, n, data, sizes, tags, mhandles, request);
}

// Host memory needs no flush: null means that there is nothing to wait for.
ncclResult_t iflush(void*, int, void**, int*, void**, void** request) noexcept {
  *request = nullptr;
  return ncclSuccess;
}

ncclResult_t test(void* request, int* done, int* sizes) noexcept {
  if (request == nullptr) return ncclInternalError;
  return guarded([&] { return static_cast<Request*>(request)->test(done, sizes); });
}

constexpr auto close_comm = close_any<Comm>;
constexpr auto close_listen = close_any<ListenComm>;

constexpr char kName[] = "Snug";

}  // namespace
}  // namespace snug::nccl

#define SNUG_NCCL_EXPORT extern "C" __attribute__((visibility("default")))
using namespace snug::nccl;

SNUG_NCCL_EXPORT const ncclNet_v8_t ncclNetPlugin_v8 = {
    kName,      init,       devices,      properties, listen, connect, accept,
    reg_mr,     nullptr,    dereg_mr,     isend_v8,   irecv,  iflush,  test,
    close_comm, close_comm, close_listen, nullptr,    nullptr};

SNUG_NCCL_EXPORT const ncclNet_v9_t ncclNetPlugin_v9 = {
    kName,      init,       devices,      properties, listen,  connect, accept,
    reg_mr,     nullptr,    dereg_mr,     isend_v9,   irecv,   iflush,  test,
    close_comm, close_comm, close_listen, nullptr,    nullptr, nullptr};

SNUG_NCCL_EXPORT const ncclNet_v10_t ncclNetPlugin_v10 = {
    kName,      init_v10,   devices,      properties, listen,    connect_v10, accept,
    reg_mr,     nullptr,    dereg_mr,     isend_v10,  irecv_v10, iflush,      test,
    close_comm, close_comm, close_listen, nullptr,    nullptr,   nullptr};

SNUG_NCCL_EXPORT const ncclNet_v11_t ncclNetPlugin_v11 = {
    kName,        init_v11, devices,   properties, listen_v11, connect_v11, accept,     reg_mr,
    nullptr,      dereg_mr, isend_v10, irecv_v10,  iflush,     test,        close_comm, close_comm,
    close_listen, nullptr,  nullptr,   nullptr,    finalize,   nullptr};

SNUG_NCCL_EXPORT const ncclNet_v12_t ncclNetPlugin_v12 = {
    kName,        init_v11, devices,   properties, listen_v11, connect_v11, accept,     reg_mr,
    nullptr,      dereg_mr, isend_v10, irecv_v10,  iflush,     test,        close_comm, close_comm,
    close_listen, nullptr,  nullptr,   nullptr,    finalize,   nullptr};
