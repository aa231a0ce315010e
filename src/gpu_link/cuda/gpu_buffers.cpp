// Sources and sinks of the wire in GPU memory.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "gpu_link/cuda/enter_thread.h"
#include "gpu_link/cuda/segment_copy.h"
#include "gpu_link/link_engine.h"  // rules of messages
#include "snug/codec.h"
#include "snug/gpu_link.h"

namespace snug::cuda {
namespace {

using wire::kMaxChunkBytes;
constexpr Status kFailed{Code::kNoDevice, "the GPU reported an error"};

Status check(cudaError_t error) { return error == cudaSuccess ? Status{} : kFailed; }

// What one lane needs while it works on a chunk.
struct LaneBuffers {
  cudaStream_t stream = nullptr;
  void* tensor = nullptr;     // a chunk in one piece
  void* frame = nullptr;      // its frame
  void* workspace = nullptr;  // of either direction
  std::size_t frame_bytes = 0, workspace_bytes = 0;
  DeviceResult* result = nullptr;       // device
  DeviceResult* host_result = nullptr;  // pinned
  void* host = nullptr;                 // pinned, for frames and raw chunks

  LaneBuffers() = default;
  LaneBuffers(const LaneBuffers&) = delete;
  ~LaneBuffers() {
    if (stream != nullptr) cudaStreamDestroy(stream);
    for (void* memory : {tensor, frame, workspace, static_cast<void*>(result)}) cudaFree(memory);
    cudaFreeHost(host_result);
    cudaFreeHost(host);
  }

  Status allocate(DType dtype) {
    EncodeOptions encode_options;
    DecodeOptions decode_options;
    encode_options.dtype = decode_options.dtype = dtype;
    frame_bytes = encode_bound(kMaxChunkBytes, {.dtype = dtype, .log2_block = 12});
    for (const Codec codec : {Codec::kFixed, Codec::kEntropy}) {
      encode_options.codec = decode_options.codec = codec;
      workspace_bytes =
          std::max({workspace_bytes, encode_workspace_bytes(kMaxChunkBytes, encode_options),
                    decode_workspace_bytes(kMaxChunkBytes, decode_options)});
    }
    const bool ok = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess &&
                    cudaMalloc(&tensor, kMaxChunkBytes) == cudaSuccess &&
                    cudaMalloc(&frame, frame_bytes) == cudaSuccess &&
                    cudaMalloc(&workspace, workspace_bytes) == cudaSuccess &&
                    cudaMalloc(reinterpret_cast<void**>(&result), sizeof *result) == cudaSuccess &&
                    cudaMallocHost(reinterpret_cast<void**>(&host_result), sizeof *host_result) ==
                        cudaSuccess &&
                    cudaMallocHost(&host, frame_bytes) == cudaSuccess;
    return ok ? Status{} : kFailed;
  }
};

// Segments on one device, and buffers for the lanes that come.
class DeviceMemory {
 public:
  DeviceMemory(DType dtype, std::span<const Segment> segments)
      : dtype_(dtype), segments_(segments) {}
  Status open() { return check(cudaGetDevice(&device_)); }
  DType dtype() const { return dtype_; }
  std::uint64_t num_bytes() const { return segments_.num_bytes(); }

  // The chunk as one piece of device memory if it is one, else nullptr.
  std::byte* in_one_piece(std::uint64_t offset, std::size_t num_bytes) const {
    return segments_.in_one_piece(offset, num_bytes);
  }

  // Copies between `memory`, on either side of the bus, and the chunk's segments.
  enum class Way { kGather, kScatter };
  Status copy(Way way, std::uint64_t offset, std::size_t num_bytes, void* memory,
              cudaStream_t stream) const {
    std::vector<Segment> pieces(segments_.cut(offset, num_bytes, {}));
    (void)segments_.cut(offset, num_bytes, pieces);
    auto* place = static_cast<std::byte*>(memory);
    for (const Segment& piece : pieces) {
      const auto n = static_cast<std::size_t>(piece.num_bytes);
      const cudaError_t error =
          way == Way::kGather ? cudaMemcpyAsync(place, piece.data, n, cudaMemcpyDefault, stream)
                              : cudaMemcpyAsync(piece.data, place, n, cudaMemcpyDefault, stream);
      if (error != cudaSuccess) return kFailed;
      place += n;
    }
    return {};
  }

  // Runs body(buffers) with buffers that no other lane uses.
  template <class Body>
  auto with_buffers(Body body) -> decltype(body(std::declval<LaneBuffers&>())) {
    if (enter_thread(device_) != cudaSuccess) return kFailed;
    std::unique_ptr<LaneBuffers> buffers;
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        buffers = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (!buffers) {
      buffers = std::make_unique<LaneBuffers>();
      if (Status s = buffers->allocate(dtype_); !s.ok()) return s;
    }
    auto result = body(*buffers);
    // What an error left on the stream must not outlive the transfer or meet the next one.
    if (!result.ok()) (void)cudaStreamSynchronize(buffers->stream);
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(buffers));
    return result;
  }

 private:
  const DType dtype_;
  const SegmentList segments_;
  int device_ = 0;
  std::mutex mutex_;
  std::vector<std::unique_ptr<LaneBuffers>> free_;
};

using Way = DeviceMemory::Way;

class DeviceSource : public wire::Source {
 public:
  DeviceSource(DType dtype, std::span<const Segment> segments) : memory_(dtype, segments) {}
  Status open() { return memory_.open(); }

  std::vector<wire::Extent> extents() const override {
    return {{memory_.dtype(), memory_.num_bytes()}};
  }
  std::span<const std::byte> view(std::uint64_t, std::size_t) override { return {}; }
  Status read(std::uint64_t offset, std::span<std::byte> dst) override {
    return memory_.with_buffers([&](LaneBuffers& lane) -> Status {
      if (Status s = memory_.copy(Way::kGather, offset, dst.size(), lane.host, lane.stream);
          !s.ok())
        return s;
      if (cudaStreamSynchronize(lane.stream) != cudaSuccess) return kFailed;
      std::copy_n(static_cast<const std::byte*>(lane.host), dst.size(), dst.data());
      return {};
    });
  }

  bool encodes() const override { return true; }
  Result<std::size_t> encode(std::uint64_t offset, std::size_t num_bytes, Codec codec,
                             std::span<std::byte> dst) override {
    return memory_.with_buffers([&](LaneBuffers& lane) -> Result<std::size_t> {
      void* tensor = memory_.in_one_piece(offset, num_bytes);
      if (tensor == nullptr) {
        tensor = lane.tensor;
        if (Status s = memory_.copy(Way::kGather, offset, num_bytes, tensor, lane.stream); !s.ok())
          return s;
      }
      EncodeOptions options;
      options.dtype = memory_.dtype();
      options.codec = codec;
      options.host_result = lane.host_result;
      if (Status s = cuda::encode({tensor, num_bytes}, {lane.frame, lane.frame_bytes},
                                  {lane.workspace, lane.workspace_bytes}, lane.result, options,
                                  lane.stream);
          !s.ok())
        return s;
      if (cudaStreamSynchronize(lane.stream) != cudaSuccess) return kFailed;
      if (Status s = to_status(*lane.host_result); !s.ok()) return s;
      const auto n = static_cast<std::size_t>(lane.host_result->num_bytes);
      if (n > dst.size() || n >= num_bytes) return num_bytes;  // goes raw
      if (cudaMemcpyAsync(lane.host, lane.frame, n, cudaMemcpyDeviceToHost, lane.stream) !=
              cudaSuccess ||
          cudaStreamSynchronize(lane.stream) != cudaSuccess)
        return kFailed;
      std::copy_n(static_cast<const std::byte*>(lane.host), n, dst.data());
      return n;
    });
  }

 private:
  DeviceMemory memory_;
};

class DeviceSink : public wire::Sink {
 public:
  DeviceSink(DType dtype, std::span<const Segment> segments) : memory_(dtype, segments) {}
  Status open() { return memory_.open(); }

  Status begin(std::span<const wire::Extent> extents, std::uint64_t num_bytes) override {
    if (Status s = wire::check_size(num_bytes, memory_.num_bytes()); !s.ok()) return s;
    for (const wire::Extent& extent : extents)
      if (extent.dtype != memory_.dtype()) return wire::kOtherDType;
    return {};
  }
  std::span<std::byte> view(std::uint64_t, std::size_t) override { return {}; }
  Status write(std::uint64_t offset, std::span<const std::byte> src) override {
    return memory_.with_buffers([&](LaneBuffers& lane) -> Status {
      std::copy(src.begin(), src.end(), static_cast<std::byte*>(lane.host));
      if (Status s = memory_.copy(Way::kScatter, offset, src.size(), lane.host, lane.stream);
          !s.ok())
        return s;
      return check(cudaStreamSynchronize(lane.stream));
    });
  }

  bool decodes() const override { return true; }
  Status decode(std::uint64_t offset, std::size_t num_bytes,
                std::span<const std::byte> frame) override {
    return memory_.with_buffers([&](LaneBuffers& lane) -> Status {
      std::copy(frame.begin(), frame.end(), static_cast<std::byte*>(lane.host));
      if (cudaMemcpyAsync(lane.frame, lane.host, frame.size(), cudaMemcpyHostToDevice,
                          lane.stream) != cudaSuccess)
        return kFailed;
      void* tensor = memory_.in_one_piece(offset, num_bytes);
      const bool scatter = tensor == nullptr;
      if (scatter) tensor = lane.tensor;
      DecodeOptions options;
      options.dtype = memory_.dtype();
      options.host_result = lane.host_result;
      if (Status s = cuda::decode({lane.frame, frame.size()}, {tensor, num_bytes},
                                  {lane.workspace, lane.workspace_bytes}, lane.result, options,
                                  lane.stream);
          !s.ok())
        return s;
      if (scatter)
        if (Status s = memory_.copy(Way::kScatter, offset, num_bytes, tensor, lane.stream); !s.ok())
          return s;
      if (cudaStreamSynchronize(lane.stream) != cudaSuccess) return kFailed;
      return to_status(*lane.host_result);
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
