#include "gpu_link/cuda/link.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <exception>
#include <optional>
#include <thread>

#include "gpu/relaxed_capture.h"
#include "gpu_link/cuda/link_gpu_parts.h"
#include "gpu_link/link_meeting.h"
#include "gpu_link/link_receiver.h"
#include "gpu_link/link_sender.h"

namespace snug::cuda {
namespace {

constexpr Status kNoIpc{Code::kPeer,
                        "CUDA IPC is refused between these processes (sandbox, container without "
                        "a shared IPC namespace, or no such hardware); use the connection itself"};

// What each end sends the other about its staging memory.
struct StagingHello {
  std::uint64_t num_bytes = 0, has_handle = 0;
  std::uint64_t address = 0;  // for a peer in the same process
  cudaIpcMemHandle_t handle{};
};
static_assert(sizeof(StagingHello) <= sizeof(gpu_link::LinkBlob));

// Our own memory, not the user's: memory that an allocator has mapped piecewise has no IPC handle.
Status open_staging(Memory& staging, StagingHello& hello) {
  if (Status s = from_cuda(staging.ensure(kLinkStagingBytes)); !s.ok()) return s;
  hello.num_bytes = kLinkStagingBytes;
  hello.address = reinterpret_cast<std::uintptr_t>(staging.as());
  hello.has_handle = cudaIpcGetMemHandle(&hello.handle, staging.as()) == cudaSuccess ? 1 : 0;
  (void)cudaGetLastError();  // a peer in the same process needs no handle
  return {};
}

// The size of the peer's memory as the driver knows it, from `data` on; 0 if it does not.
std::size_t size_of_mapping(void* data) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  std::size_t num_bytes = 0;
  const auto address = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(data));
  CUdeviceptr start = 0;
  if (cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &entry, 12000, cudaEnableDefault,
                                       &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess ||
      reinterpret_cast<decltype(&cuMemGetAddressRange)>(entry)(&start, &num_bytes, address) !=
          CUDA_SUCCESS)
    return 0;
  return num_bytes - static_cast<std::size_t>(address - start);
}

Result<PeerMemory> reach_staging(const gpu_link::LinkMeeting& meeting) {
  StagingHello peer;
  std::memcpy(&peer, meeting.peer().data(), sizeof peer);
  if (peer.num_bytes != kLinkStagingBytes)
    return Status{Code::kPeer, "the peer has staging memory of another size; update both ends"};
  if (meeting.is_same_process())
    return PeerMemory{reinterpret_cast<void*>(static_cast<std::uintptr_t>(peer.address)), false};
  PeerMemory memory{nullptr, true};
  if (peer.has_handle == 0 || cudaIpcOpenMemHandle(&memory.data, peer.handle,
                                                   cudaIpcMemLazyEnablePeerAccess) != cudaSuccess) {
    (void)cudaGetLastError();
    return kNoIpc;
  }
  if (size_of_mapping(memory.data) < kLinkStagingBytes) {
    (void)cudaIpcCloseMemHandle(memory.data);
    return Status{Code::kPeer, "the peer's staging memory is smaller than it says"};
  }
  return memory;
}

}  // namespace

class Link::Impl {
 public:
  ~Impl() {
    sender_.reset();
    receiver_.reset();
    if (!started_) return;
    // The peer's copies into the staging memory must end before it is freed.
    const auto limit = gpu_link::LinkClock::now() + std::chrono::seconds(5);
    while (meeting_.incoming().is_attached.load() != 0 && meeting_.check_peer().ok() &&
           gpu_link::LinkClock::now() < limit)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
  }

  Status open(wire::Connection& connection, wire::Mode mode, std::chrono::milliseconds timeout,
              const WrapEngine& wrap) {
    if (Status s = wire::check_timeout(timeout); !s.ok()) return s;
    const RelaxedCapture relaxed;
    int device = 0;
    StagingHello hello;
    if (Status s = from_cuda(cudaGetDevice(&device)); !s.ok()) return s;
    if (Status s = open_staging(staging_, hello); !s.ok()) return s;
    gpu_link::LinkBlob blob{};
    std::memcpy(blob.data(), &hello, sizeof hello);
    auto meeting = gpu_link::LinkMeeting::meet(connection, blob, timeout);
    if (!meeting) return meeting.status();
    meeting_ = std::move(*meeting);
    const auto peer = reach_staging(meeting_);
    std::unique_ptr<gpu_link::SendEngine> engine;
    if (peer) engine = make_gpu_sender(device, *peer);  // unmaps it, too
    const Status agreed = meeting_.agree(peer.ok(), timeout);
    if (!peer) return peer.status();
    if (!agreed.ok()) return agreed;
    gpu_link::LinkOptions link;
    link.mode = mode;
    link.timeout = timeout;
    link.check_peer = [this] { return meeting_.check_peer(); };
    link.enter = [device] { return from_cuda(enter_thread(device)); };
    if (wrap) engine = wrap(std::move(engine));
    sender_.emplace(meeting_.outgoing(), std::move(engine), kLinkStagingBytes, kLinkChunkBytes,
                    link);
    receiver_.emplace(meeting_.incoming(), make_gpu_receiver(staging_.as()), kLinkStagingBytes,
                      kLinkChunkBytes, link);
    started_ = true;
    // Both threads run from the start: they unmap the peer's memory when it closes the link.
    if (Status s = sender_->start(); !s.ok()) return s;
    return receiver_->start();
  }

  gpu_link::LinkSender& sender() { return *sender_; }
  gpu_link::LinkReceiver& receiver() { return *receiver_; }
  Status status() const {
    const Status s = sender_->status();
    return s.ok() ? receiver_->status() : s;
  }

 private:
  Memory staging_;
  gpu_link::LinkMeeting meeting_;
  std::optional<gpu_link::LinkSender> sender_;
  std::optional<gpu_link::LinkReceiver> receiver_;
  bool started_ = false;
};

namespace {

constexpr Status kNotOpen{Code::kUsage, "the link is not open"};
constexpr Status kNoMemory{Code::kInternal, "out of memory"};

Result<std::shared_ptr<gpu_link::LinkTensor>> make_tensor(DType dtype,
                                                          std::span<const Segment> segments) {
  if (elem_bytes(dtype) == 0) return Status{Code::kUsage, "no such dtype"};
  if (Status s = check_segments(segments); !s.ok()) return s;
  auto tensor = std::make_shared<GpuTensor>(dtype, segments);
  if (tensor->segments.max_pieces(kLinkChunkBytes) > kMaxLinkPieces)
    return Status{Code::kUsage,
                  "the pieces of this message are too small: 1 KiB on average is the least"};
  return std::shared_ptr<gpu_link::LinkTensor>(std::move(tensor));
}

}  // namespace

Link::Link() noexcept = default;
Link::Link(Link&&) noexcept = default;
Link& Link::operator=(Link&&) noexcept = default;
Link::~Link() = default;
Link::Link(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}

Result<Link> open_link(wire::Connection& connection, wire::Mode mode,
                       std::chrono::milliseconds timeout, const WrapEngine& wrap) {
  auto impl = std::make_unique<Link::Impl>();
  if (Status s = impl->open(connection, mode, timeout, wrap); !s.ok()) return s;
  return Link(std::move(impl));
}

Result<Link> Link::open(wire::Connection& connection, wire::Mode mode,
                        std::chrono::milliseconds timeout) noexcept try {
  return open_link(connection, mode, timeout, nullptr);
} catch (const std::exception&) {
  return kNoMemory;
}

wire::Transfer Link::send(std::uint64_t tag, DType dtype,
                          std::span<const Segment> segments) noexcept try {
  if (!impl_) return wire::failed_transfer(kNotOpen);
  const auto tensor = make_tensor(dtype, segments);
  return tensor ? impl_->sender().send(tag, *tensor) : wire::failed_transfer(tensor.status());
} catch (const std::exception&) {
  return {};
}

wire::Transfer Link::recv(std::uint64_t tag, DType dtype,
                          std::span<const Segment> segments) noexcept try {
  if (!impl_) return wire::failed_transfer(kNotOpen);
  const auto tensor = make_tensor(dtype, segments);
  return tensor ? impl_->receiver().recv(tag, *tensor) : wire::failed_transfer(tensor.status());
} catch (const std::exception&) {
  return {};
}

wire::Stats Link::sent() const noexcept { return impl_ ? impl_->sender().stats() : wire::Stats{}; }
wire::Stats Link::received() const noexcept {
  return impl_ ? impl_->receiver().stats() : wire::Stats{};
}
Status Link::status() const noexcept { return impl_ ? impl_->status() : kNotOpen; }

}  // namespace snug::cuda
