// Snug's own transport: TCP over the interfaces NCCL's socket transport uses.
#include <cstring>
#include <map>
#include <mutex>

#include "nccl/interfaces.h"
#include "nccl/log.h"
#include "nccl/net.h"
#include "nccl/tcp_recv.h"
#include "nccl/tcp_send.h"
#include "os/random.h"

namespace snug::nccl {
namespace {

class TcpListenComm final : public ListenComm {
 public:
  TcpListenComm(net::Listener listener, std::uint64_t nonce, const Settings& settings)
      : greeter_(std::make_shared<Greeter>(std::move(listener), nonce)),
        settings_(settings),
        // Not only in accept(): a peer's connect must end even if this rank connects first.
        attempt_(start_accepting(greeter_, settings_)) {}
  ~TcpListenComm() override { greeter_->shut_down(); }

  ncclResult_t accept(std::unique_ptr<RecvComm>* comm) override {
    if (!attempt_) attempt_ = start_accepting(greeter_, settings_);
    if (!attempt_->finished.load(std::memory_order_acquire)) return ncclSuccess;
    const auto attempt = std::move(attempt_);
    if (attempt->result != ncclSuccess) return attempt->result;
    info("accepted %s, %zu data sockets", attempt->link.peer.c_str(), attempt->link.data.size());
    *comm = std::make_unique<TcpRecvComm>(std::move(attempt->link), settings_);
    return ncclSuccess;
  }

 private:
  std::shared_ptr<Greeter> greeter_;
  Settings settings_;
  std::shared_ptr<LinkAttempt> attempt_;
};

class TcpNet final : public Net {
 public:
  TcpNet(const Settings& settings, std::vector<Interface> interfaces)
      : settings_(settings), interfaces_(std::move(interfaces)), pacer_(settings.pace_gbps) {}

  int num_devices() override { return static_cast<int>(interfaces_.size()); }
  ncclResult_t properties(int device, ncclNetProperties_v12_t* properties) override;
  ncclResult_t listen(int device, void* handle, std::unique_ptr<ListenComm>* comm) override;
  ncclResult_t connect(int device, void* handle, std::unique_ptr<SendComm>* comm) override;

 private:
  Interface* find(int device) {
    const auto i = static_cast<std::size_t>(device);
    return device >= 0 && i < interfaces_.size() ? &interfaces_[i] : nullptr;
  }

  Settings settings_;
  std::vector<Interface> interfaces_;
  Pacer pacer_;
  std::mutex mutex_;
  std::uint64_t last_connect_id_ = 0;
  std::map<std::uint64_t, std::shared_ptr<LinkAttempt>> connecting_;
};

// What NCCL's socket transport says of the same interfaces, so that NCCL tunes itself
// alike and sums in the same order.
ncclResult_t TcpNet::properties(int device, ncclNetProperties_v12_t* properties) {
  Interface* interface = find(device);
  if (interface == nullptr) return ncclInvalidArgument;
  *properties = {};
  properties->name = interface->name.data();
  properties->pciPath = interface->pci_path.empty() ? nullptr : interface->pci_path.data();
  properties->guid = static_cast<std::uint64_t>(device);
  properties->ptrSupport = NCCL_PTR_HOST;
  properties->speed = interface->speed_mbps;
  properties->maxComms = 65536;
  properties->maxRecvs = 1;
  properties->netDeviceType = NCCL_NET_DEVICE_HOST;
  properties->vProps.ndevs = 1;
  properties->vProps.devs[0] = device;
  properties->maxP2pBytes = std::size_t{1} << 40;
  properties->maxCollBytes = std::size_t{512} << 20;
  properties->maxMultiRequestSize = 1;
  properties->railId = properties->planeId = -1;
  return ncclSuccess;
}

ncclResult_t TcpNet::listen(int device, void* handle, std::unique_ptr<ListenComm>* comm) {
  const Interface* interface = find(device);
  if (interface == nullptr) return ncclInvalidArgument;
  auto listener = net::Listener::open(interface->address);
  if (!listener) {
    warn("cannot listen on %s: %s", interface->name.c_str(), to_string(listener.status()).c_str());
    return ncclSystemError;
  }
  Handle contents{kHandleMagic,
                  kProtocolVersion,
                  static_cast<std::uint32_t>(settings_.num_sockets),
                  os::random_value<std::uint64_t>(),
                  0,
                  {}};
  std::memcpy(&contents.address, &interface->address, sizeof contents.address);
  contents.address.sin6_port = htons(listener->port());  // at the same place in sockaddr_in
  std::memset(handle, 0, NCCL_NET_HANDLE_MAXSIZE);
  std::memcpy(handle, &contents, sizeof contents);
  *comm = std::make_unique<TcpListenComm>(std::move(*listener), contents.nonce, settings_);
  return ncclSuccess;
}

ncclResult_t TcpNet::connect(int device, void* handle, std::unique_ptr<SendComm>* comm) {
  Handle contents;
  std::memcpy(&contents, handle, sizeof contents);
  if (find(device) == nullptr) return ncclInvalidArgument;
  if (contents.magic != kHandleMagic) {
    warn("the peer does not use Snug: set NCCL_NET_PLUGIN=snug on every rank");
    return ncclInvalidUsage;
  }
  if (contents.protocol != kProtocolVersion || contents.num_sockets == 0 ||
      contents.num_sockets > kMaxSockets)
    return refuse_protocol("the peer", contents.protocol);
  const std::lock_guard lock(mutex_);
  if (contents.connect_id == 0) {
    contents.connect_id = ++last_connect_id_;
    connecting_[contents.connect_id] = start_connecting(contents, settings_);
    std::memcpy(handle, &contents, sizeof contents);
    return ncclSuccess;
  }
  const auto found = connecting_.find(contents.connect_id);
  if (found == connecting_.end()) return ncclInternalError;
  if (!found->second->finished.load(std::memory_order_acquire)) return ncclSuccess;
  const auto attempt = std::move(found->second);
  connecting_.erase(found);
  if (attempt->result != ncclSuccess) return attempt->result;
  info("connected to %s, %zu data sockets", attempt->link.peer.c_str(), attempt->link.data.size());
  *comm = std::make_unique<TcpSendComm>(std::move(attempt->link), settings_, pacer_);
  return ncclSuccess;
}

}  // namespace

std::unique_ptr<Net> make_tcp_net(const Settings& settings) {
  auto interfaces = find_interfaces();
  if (interfaces.empty()) {
    warn("no network interface found; is NCCL_SOCKET_IFNAME right?");
    return nullptr;
  }
  std::string names;
  for (const Interface& interface : interfaces) names += " " + interface.name;
  info("using%s; %d sockets a connection; codec %s", names.c_str(), settings.num_sockets,
       settings.codec == CodecChoice::kOff ? "off" : simd_target());
  return std::make_unique<TcpNet>(settings, std::move(interfaces));
}

}  // namespace snug::nccl
