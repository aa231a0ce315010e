// Snug on top of another plugin: Snug compresses, the other plugin moves the bytes.
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>

#include "frame/frame.h"
#include "nccl/log.h"
#include "nccl/stacked_recv.h"
#include "nccl/stacked_send.h"

namespace snug::nccl {
namespace {

// A listener with Snug says so, and which versions it understands, in the last bytes of
// the handle if the inner plugin leaves them free. Peers without this mark get plain data.
struct Mark {
  char magic[6];
  std::uint8_t stack_version, frame_version;
};
static_assert(sizeof(Mark) == 8);
constexpr Mark kMark{{'S', 'N', 'G', 'S', 'T', 'K'}, kStackVersion, frame::kVersion};

char* place_of_mark(void* handle) {
  return static_cast<char*>(handle) + NCCL_NET_HANDLE_MAXSIZE - sizeof(Mark);
}

bool read_mark(void* handle, Mark& mark) {
  std::memcpy(&mark, place_of_mark(handle), sizeof mark);
  return std::memcmp(mark.magic, kMark.magic, sizeof mark.magic) == 0;
}

// One a process; never destroyed, since its threads wait in it.
WorkerPool& shared_pool(int num_threads) {
  static WorkerPool* const pool = new WorkerPool(num_threads);
  return *pool;
}

class StackedListenComm final : public ListenComm {
 public:
  StackedListenComm(InnerPlugin& inner, void* comm, WorkerPool& pool)
      : inner_(inner), comm_(comm), pool_(pool) {}
  ~StackedListenComm() override { (void)inner_.close_listen(comm_); }

  ncclResult_t accept(std::unique_ptr<RecvComm>* comm) override {
    void* accepted = nullptr;
    const ncclResult_t result = inner_.accept(comm_, &accepted);
    if (result == ncclSuccess && accepted != nullptr)
      *comm = std::make_unique<StackedRecvComm>(inner_, accepted, pool_);
    return result;
  }

 private:
  InnerPlugin& inner_;
  void* comm_;
  WorkerPool& pool_;
};

class StackedNet final : public Net {
 public:
  StackedNet(const Settings& settings, std::unique_ptr<InnerPlugin> inner)
      : settings_(settings), inner_(std::move(inner)), pool_(shared_pool(settings.num_threads)) {}
  ~StackedNet() override { (void)inner_->finalize(); }

  int num_devices() override {
    int count = 0;
    return inner_->devices(&count) == ncclSuccess ? count : 0;
  }

  // NCCL stages GPU buffers in host memory, where the CPU codecs can read them.
  ncclResult_t properties(int device, ncclNetProperties_v12_t* properties) override {
    const ncclResult_t result = inner_->properties(device, properties);
    properties->ptrSupport = NCCL_PTR_HOST;
    properties->netDeviceType = NCCL_NET_DEVICE_HOST;
    properties->maxRecvs = std::min<int>(properties->maxRecvs, NCCL_NET_MAX_RECVS);
    // Receives are posted with room for a header and a frame that did not shrink.
    for (std::size_t* limit : {&properties->maxP2pBytes, &properties->maxCollBytes})
      *limit -= *limit / 16;
    return result;
  }

  ncclResult_t listen(int device, void* handle, std::unique_ptr<ListenComm>* comm) override {
    std::memset(handle, 0, NCCL_NET_HANDLE_MAXSIZE);
    void* listening = nullptr;
    if (ncclResult_t result = inner_->listen(device, handle, &listening)) return result;
    constexpr char kFree[sizeof kMark] = {};
    if (std::memcmp(place_of_mark(handle), kFree, sizeof kMark) == 0)
      std::memcpy(place_of_mark(handle), &kMark, sizeof kMark);
    else
      warn("%s uses its whole handle: nothing can be compressed over it", inner_->name());
    *comm = std::make_unique<StackedListenComm>(*inner_, listening, pool_);
    return ncclSuccess;
  }

  ncclResult_t connect(int device, void* handle, std::unique_ptr<SendComm>* comm) override {
    Mark mark;
    if (read_mark(handle, mark)) {
      if (mark.stack_version != kStackVersion) {
        warn("the peer speaks version %u of Snug's stacked protocol, this rank version %u. %s",
             mark.stack_version, kStackVersion, kInstallTheSame);
        return ncclInvalidUsage;
      }
      const std::lock_guard lock(mutex_);
      // The inner plugin may keep state in the handle between calls, so the mark is removed.
      marks_[handle] = mark;
      std::memset(place_of_mark(handle), 0, sizeof mark);
    }
    void* connected = nullptr;
    const ncclResult_t result = inner_->connect(device, handle, &connected);
    if (result == ncclSuccess && connected == nullptr) return result;
    const auto peer = forget_mark(handle);
    if (result != ncclSuccess) return result;
    *comm = std::make_unique<StackedSendComm>(*inner_, connected, pool_, settings_for(peer),
                                              peer.has_value());
    return ncclSuccess;
  }

 private:
  std::optional<Mark> forget_mark(void* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = marks_.extract(handle);
    return found.empty() ? std::nullopt : std::optional(found.mapped());
  }

  Settings settings_for(const std::optional<Mark>& peer) const {
    Settings settings = settings_;
    if (!peer) {
      warn("the peer does not expand: set NCCL_NET_PLUGIN and SNUG_NCCL_INNER alike on every rank");
    } else if (peer->frame_version != frame::kVersion) {
      warn(
          "the peer reads frames of version %u, this rank writes version %u: sending "
          "uncompressed. %s",
          peer->frame_version, frame::kVersion, kInstallTheSame);
      settings.codec = CodecChoice::kOff;
    }
    return settings;
  }

  Settings settings_;
  std::unique_ptr<InnerPlugin> inner_;
  WorkerPool& pool_;
  std::mutex mutex_;
  std::map<void*, Mark> marks_;  // of handles being connected whose listener expands
};

}  // namespace

std::unique_ptr<Net> make_stacked_net(const Settings& settings, ncclDebugLogger_t log) {
  auto inner = load_inner_plugin(settings.inner);
  if (!inner) return nullptr;
  if (std::string_view(inner->name()) == "Snug") {
    warn("SNUG_NCCL_INNER=%s: Snug cannot be stacked on itself", settings.inner.c_str());
    return nullptr;
  }
  if (inner->init(log) != ncclSuccess) {
    warn("SNUG_NCCL_INNER=%s: its init failed", settings.inner.c_str());
    return nullptr;
  }
  info("on top of %s, %d threads", inner->name(), settings.num_threads);
  return std::make_unique<StackedNet>(settings, std::move(inner));
}

}  // namespace snug::nccl
