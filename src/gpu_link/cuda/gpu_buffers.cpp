// Sources and sinks of the wire in GPU memory.
#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "gpu_link/cuda/chunk_coder.h"
#include "gpu_link/cuda/enter_thread.h"
#include "snug/codec.h"
#include "snug/gpu_link.h"

namespace snug::cuda {
namespace {

using gpu_link::LinkSpan;
using wire::kMaxChunkBytes;

// The buffers of one lane of the connection, for one chunk at a time.
struct Lane : ChunkCoder {
  Lane(Way way, DType type) : ChunkCoder(way), dtype(type) {}

  Status load(const SegmentList& segments, LinkSpan span) {
    const std::size_t frame_bytes =
        encode_bound(kMaxChunkBytes, {.dtype = dtype, .log2_block = 12});
    if (Status s = from_cuda({stream.ensure(), frame.ensure(frame_bytes), host.ensure(frame_bytes),
                              result.ensure(sizeof(DeviceResult))});
        !s.ok())
      return s;
    const auto found = pieces.load(segments, span);
    if (!found) return found.status();
    tensor = *found;
    num_bytes = span.num_bytes;
    const std::size_t num_pieces = tensor == nullptr ? pieces.num_pieces() : 0;
    // Small chunks have smaller blocks, and maybe more of them.
    const Status s = from_cuda(
        memory.ensure(std::max(paged_workspace_bytes(num_bytes, num_pieces, dtype, 0),
                               paged_workspace_bytes(kMaxChunkBytes, num_pieces, dtype, 0))));
    workspace = target_of(memory);
    return s;
  }

  // Encodes the chunk into `frame` or decodes frame_bytes of it, and waits.
  Status code(std::size_t frame_bytes, Codec codec) {
    auto* where = result.as<DeviceResult>();
    if (Status s = start({tensor, num_bytes, {frame.as(), frame_bytes}, where}, dtype, codec);
        !s.ok())
      return s;
    if (Status s = from_cuda(stream.wait()); !s.ok()) return s;
    return to_status(*where);
  }
  // Copies the chunk to `host` or from there, and waits. Pieces pass through the frame's memory.
  Status copy(CopyWay way) {
    void* device = tensor != nullptr ? tensor : frame.as();
    const bool gathers = way == CopyWay::kGather;
    if (tensor == nullptr && gathers)
      if (Status s = pieces.copy(way, device, nullptr, stream.get()); !s.ok()) return s;
    const Status s =
        start_copy(gathers ? host.as() : device, gathers ? device : host.as(), num_bytes);
    if (!s.ok()) return s;
    if (tensor == nullptr && !gathers)
      if (Status scattered = pieces.copy(way, device, nullptr, stream.get()); !scattered.ok())
        return scattered;
    return from_cuda(stream.wait());
  }
  Status start_copy(void* to, const void* from, std::size_t n) {
    return from_cuda(cudaMemcpyAsync(to, from, n, cudaMemcpyDefault, stream.get()));
  }

  const DType dtype;
  Memory frame, memory;
  Memory host{Memory::Where::kHost}, result{Memory::Where::kHost};
  std::byte* tensor = nullptr;  // null: in pieces
  std::size_t num_bytes = 0;
};

// Segments on one device, and buffers for the lanes that work on them.
class DeviceMemory {
 public:
  DeviceMemory(ChunkCoder::Way way, DType dtype, std::span<const Segment> segments)
      : way_(way), dtype_(dtype), segments_(segments) {}
  Status open() { return from_cuda(cudaGetDevice(&device_)); }
  DType dtype() const { return dtype_; }
  std::uint64_t num_bytes() const { return segments_.num_bytes(); }

  // Runs body(lane) for a chunk; the buffers are its own meanwhile.
  template <class Body>
  auto with_lane(LinkSpan span, Body body) -> decltype(body(std::declval<Lane&>())) {
    if (Status s = from_cuda(enter_thread(device_)); !s.ok()) return s;
    std::unique_ptr<Lane> lane = take_lane();
    if (Status s = lane->load(segments_, span); !s.ok()) return s;
    auto result = body(*lane);
    // Work left on the stream by an error must end before the transfer does.
    if (!result.ok()) (void)lane->stream.wait();
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(lane));
    return result;
  }

 private:
  std::unique_ptr<Lane> take_lane() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Lane>(way_, dtype_);
    std::unique_ptr<Lane> lane = std::move(free_.back());
    free_.pop_back();
    return lane;
  }

  const ChunkCoder::Way way_;
  const DType dtype_;
  const SegmentList segments_;
  int device_ = 0;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Lane>> free_;
};

class DeviceSource : public wire::Source {
 public:
  DeviceSource(DType dtype, std::span<const Segment> segments)
      : memory_(ChunkCoder::Way::kEncode, dtype, segments) {}
  Status open() { return memory_.open(); }

  std::vector<wire::Extent> extents() const override {
    return {{memory_.dtype(), memory_.num_bytes()}};
  }
  std::span<const std::byte> view(std::uint64_t, std::size_t) override { return {}; }
  Status read(std::uint64_t offset, std::span<std::byte> dst) override {
    return memory_.with_lane({offset, dst.size()}, [&](Lane& lane) -> Status {
      if (Status s = lane.copy(CopyWay::kGather); !s.ok()) return s;
      std::copy_n(lane.host.as<const std::byte>(), dst.size(), dst.data());
      return {};
    });
  }

  bool encodes() const override { return true; }
  Result<std::size_t> encode(std::uint64_t offset, std::size_t num_bytes, Codec codec,
                             std::span<std::byte> dst) override {
    return memory_.with_lane({offset, num_bytes}, [&](Lane& lane) -> Result<std::size_t> {
      if (Status s = lane.code(lane.frame.num_bytes(), codec); !s.ok()) return s;
      const auto n = static_cast<std::size_t>(lane.result.as<DeviceResult>()->num_bytes);
      if (n > dst.size() || n >= num_bytes) return num_bytes;  // is sent raw
      if (Status s = lane.start_copy(lane.host.as(), lane.frame.as(), n); !s.ok()) return s;
      if (Status s = from_cuda(lane.stream.wait()); !s.ok()) return s;
      std::copy_n(lane.host.as<const std::byte>(), n, dst.data());
      return n;
    });
  }

 private:
  DeviceMemory memory_;
};

class DeviceSink : public wire::Sink {
 public:
  DeviceSink(DType dtype, std::span<const Segment> segments)
      : memory_(ChunkCoder::Way::kDecode, dtype, segments) {}
  Status open() { return memory_.open(); }

  Status begin(std::span<const wire::Extent> extents, std::uint64_t num_bytes) override {
    if (Status s = wire::check_size(num_bytes, memory_.num_bytes()); !s.ok()) return s;
    for (const wire::Extent& extent : extents)
      if (extent.dtype != memory_.dtype()) return wire::kOtherDType;
    return {};
  }
  std::span<std::byte> view(std::uint64_t, std::size_t) override { return {}; }
  Status write(std::uint64_t offset, std::span<const std::byte> src) override {
    return memory_.with_lane({offset, src.size()}, [&](Lane& lane) -> Status {
      std::copy(src.begin(), src.end(), lane.host.as<std::byte>());
      return lane.copy(CopyWay::kScatter);
    });
  }

  bool decodes() const override { return true; }
  Status decode(std::uint64_t offset, std::size_t num_bytes,
                std::span<const std::byte> frame) override {
    return memory_.with_lane({offset, num_bytes}, [&](Lane& lane) -> Status {
      std::copy(frame.begin(), frame.end(), lane.host.as<std::byte>());
      if (Status s = lane.start_copy(lane.frame.as(), lane.host.as(), frame.size()); !s.ok())
        return s;
      return lane.code(frame.size(), DecodeOptions{}.codec);
    });
  }

 private:
  DeviceMemory memory_;
};
template <class Made, class Base>
Result<std::shared_ptr<Base>> make(DType dtype, std::span<const Segment> segments) noexcept try {
  if (Status s = check_segments(segments); !s.ok()) return s;
  auto made = std::make_shared<Made>(dtype, segments);
  if (Status s = made->open(); !s.ok()) return s;
  return std::shared_ptr<Base>(std::move(made));
} catch (const std::bad_alloc&) {
  return Status{Code::kInternal, "out of memory"};
}

}  // namespace

Result<std::shared_ptr<wire::Source>> wire_source(DType dtype,
                                                  std::span<const Segment> segments) noexcept {
  return make<DeviceSource, wire::Source>(dtype, segments);
}

Result<std::shared_ptr<wire::Sink>> wire_sink(DType dtype,
                                              std::span<const Segment> segments) noexcept {
  return make<DeviceSink, wire::Sink>(dtype, segments);
}

}  // namespace snug::cuda
