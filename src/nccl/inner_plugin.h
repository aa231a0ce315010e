// nccl/inner_plugin.h - another network plugin, loaded as NCCL would load it.
#pragma once
#include <memory>
#include <string>

#include "nccl/net_abi.h"

namespace snug::nccl {

// The newest table of the plugin, with one set of signatures for all versions.
class InnerPlugin {
 public:
  virtual ~InnerPlugin() = default;
  virtual const char* name() const = 0;
  virtual ncclResult_t init(ncclDebugLogger_t log) = 0;
  virtual ncclResult_t devices(int* num_devices) = 0;
  virtual ncclResult_t properties(int device, ncclNetProperties_v12_t* properties) = 0;
  virtual ncclResult_t listen(int device, void* handle, void** comm) = 0;
  virtual ncclResult_t connect(int device, void* handle, void** comm) = 0;
  virtual ncclResult_t accept(void* listen_comm, void** comm) = 0;
  virtual ncclResult_t register_memory(void* comm, void* data, std::size_t size, int type,
                                       void** mhandle) = 0;
  virtual ncclResult_t deregister_memory(void* comm, void* mhandle) = 0;
  virtual ncclResult_t isend(void* comm, void* data, std::size_t size, int tag, void* mhandle,
                             void** request) = 0;
  virtual ncclResult_t irecv(void* comm, int n, void** data, std::size_t* sizes, int* tags,
                             void** mhandles, void** request) = 0;
  virtual ncclResult_t test(void* request, int* done, int* sizes) = 0;
  virtual ncclResult_t close_send(void* comm) = 0;
  virtual ncclResult_t close_recv(void* comm) = 0;
  virtual ncclResult_t close_listen(void* comm) = 0;
  virtual ncclResult_t finalize() = 0;
};

// `name` is a name or a path, as in NCCL_NET_PLUGIN. Tables newer than `newest` are
// skipped, as an older NCCL would. Logs a warning and returns nullptr on failure.
std::unique_ptr<InnerPlugin> load_inner_plugin(const std::string& name, int newest = 12);

}  // namespace snug::nccl
