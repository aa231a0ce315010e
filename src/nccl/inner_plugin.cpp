#include "nccl/inner_plugin.h"

#include <dlfcn.h>

#include <limits>
#include <type_traits>

#include "nccl/log.h"

namespace snug::nccl {
namespace {

ncclResult_t ignore_event(void**, int, void*, std::int64_t, void*) { return ncclSuccess; }

template <class T>
struct PropertiesOf;
template <class T>
struct PropertiesOf<ncclResult_t (*)(int, T*)> {
  using type = T;
};

// The versions differ in arguments that Snug does not need: contexts,
// configurations, profiler handles, the width of sizes.
template <class Table>
class TableOf final : public InnerPlugin {
 public:
  explicit TableOf(const Table* table) : table_(table) {}

  const char* name() const override { return table_->name; }

  ncclResult_t init(ncclDebugLogger_t log) override {
    if constexpr (kHasContext)
      return table_->init(&context_, 0, &config_, log, ignore_event);
    else if constexpr (kHasProfiler)
      return table_->init(log, ignore_event);
    else
      return table_->init(log);
  }
  ncclResult_t devices(int* num_devices) override { return table_->devices(num_devices); }

  ncclResult_t properties(int device, ncclNetProperties_v12_t* out) override {
    typename PropertiesOf<decltype(Table::getProperties)>::type in{};
    if (ncclResult_t result = table_->getProperties(device, &in)) return result;
    copy_common_properties(in, *out);
    out->maxP2pBytes = out->maxCollBytes =
        static_cast<std::size_t>(std::numeric_limits<int>::max());
    out->maxMultiRequestSize = 1;
    out->railId = out->planeId = -1;
    if constexpr (requires { in.maxP2pBytes; })
      out->maxP2pBytes = in.maxP2pBytes, out->maxCollBytes = in.maxCollBytes;
    if constexpr (requires { in.railId; }) out->railId = in.railId, out->planeId = in.planeId;
    return ncclSuccess;
  }

  ncclResult_t listen(int device, void* handle, void** comm) override {
    if constexpr (kHasContext)
      return table_->listen(context_, device, handle, comm);
    else
      return table_->listen(device, handle, comm);
  }
  ncclResult_t connect(int device, void* handle, void** comm) override {
    ncclNetDeviceHandle_t* no_offload = nullptr;
    if constexpr (kHasContext)
      return table_->connect(context_, device, handle, comm, &no_offload);
    else if constexpr (kHasProfiler)
      return table_->connect(device, &config_, handle, comm, &no_offload);
    else
      return table_->connect(device, handle, comm, &no_offload);
  }
  ncclResult_t accept(void* listen_comm, void** comm) override {
    ncclNetDeviceHandle_t* no_offload = nullptr;
    return table_->accept(listen_comm, comm, &no_offload);
  }
  ncclResult_t register_memory(void* comm, void* data, std::size_t size, int type,
                               void** mhandle) override {
    return table_->regMr(comm, data, size, type, mhandle);
  }
  ncclResult_t deregister_memory(void* comm, void* mhandle) override {
    return table_->deregMr(comm, mhandle);
  }

  ncclResult_t isend(void* comm, void* data, std::size_t size, int tag, void* mhandle,
                     void** request) override {
    if constexpr (kHasProfiler)
      return table_->isend(comm, data, size, tag, mhandle, nullptr, request);
    else
      return table_->isend(comm, data, static_cast<Size>(size), tag, mhandle, request);
  }
  ncclResult_t irecv(void* comm, int n, void** data, std::size_t* sizes, int* tags, void** mhandles,
                     void** request) override {
    if constexpr (kHasProfiler) {
      void* no_handles[NCCL_NET_MAX_RECVS] = {};
      return table_->irecv(comm, n, data, sizes, tags, mhandles, no_handles, request);
    } else {
      Size converted[NCCL_NET_MAX_RECVS];
      for (int i = 0; i < n; ++i) converted[i] = static_cast<Size>(sizes[i]);
      return table_->irecv(comm, n, data, converted, tags, mhandles, request);
    }
  }
  ncclResult_t test(void* request, int* done, int* sizes) override {
    return table_->test(request, done, sizes);
  }
  ncclResult_t close_send(void* comm) override { return table_->closeSend(comm); }
  ncclResult_t close_recv(void* comm) override { return table_->closeRecv(comm); }
  ncclResult_t close_listen(void* comm) override { return table_->closeListen(comm); }
  ncclResult_t finalize() override {
    if constexpr (kHasContext)
      return table_->finalize(context_);
    else
      return ncclSuccess;
  }

 private:
  static constexpr bool kHasContext =
      std::is_same_v<Table, ncclNet_v11_t> || std::is_same_v<Table, ncclNet_v12_t>;
  static constexpr bool kHasProfiler = kHasContext || std::is_same_v<Table, ncclNet_v10_t>;
  using Size = std::conditional_t<std::is_same_v<Table, ncclNet_v8_t>, int, std::size_t>;

  const Table* table_;
  void* context_ = nullptr;
  ncclNetCommConfig_t config_{-1};  // no traffic class
};

template <class Table>
std::unique_ptr<InnerPlugin> find_table(void* library, const char* symbol) {
  const void* table = ::dlsym(library, symbol);
  return table != nullptr ? std::make_unique<TableOf<Table>>(static_cast<const Table*>(table))
                          : nullptr;
}

}  // namespace

std::unique_ptr<InnerPlugin> load_inner_plugin(const std::string& name, int newest) {
  void* library = nullptr;
  for (const std::string& file : {name, "libnccl-net-" + name + ".so"})
    if (library == nullptr) library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    warn("SNUG_NCCL_INNER=%s: cannot load it: %s", name.c_str(), ::dlerror());
    return nullptr;
  }
  std::unique_ptr<InnerPlugin> plugin;
  if (newest >= 12) plugin = find_table<ncclNet_v12_t>(library, "ncclNetPlugin_v12");
  if (!plugin && newest >= 11) plugin = find_table<ncclNet_v11_t>(library, "ncclNetPlugin_v11");
  if (!plugin && newest >= 10) plugin = find_table<ncclNet_v10_t>(library, "ncclNetPlugin_v10");
  if (!plugin && newest >= 9) plugin = find_table<ncclNet_v9_t>(library, "ncclNetPlugin_v9");
  if (!plugin) plugin = find_table<ncclNet_v8_t>(library, "ncclNetPlugin_v8");
  if (!plugin)
    warn("SNUG_NCCL_INNER=%s: it has no ncclNetPlugin table of version 8 to 12", name.c_str());
  return plugin;
}

}  // namespace snug::nccl
