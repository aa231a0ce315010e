#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "gpu_link/cuda/link_gpu_parts.h"

namespace snug::cuda {
namespace {

// Fewer encoders than frames: they need three times the memory, and for a shorter time.
constexpr int kNumFrames = 4, kMaxEncoding = 3;
constexpr int kNumCopies = 4;  // under way at a time

constexpr std::size_t up(std::size_t n) { return (n + 255) / 256 * 256; }

// Enough for any dtype and codec, the largest chunk and the most pieces.
std::size_t encode_room() {
  std::size_t most = 0;
  for (int dtype = 0; dtype < kNumDTypes; ++dtype)
    for (std::size_t n = kLinkChunkBytes; n >= kLinkChunkBytes / 4; n /= 2)
      most = std::max(most, paged_workspace_bytes(n, kMaxLinkPieces, static_cast<DType>(dtype), 0));
  return up(most);
}

struct Encoder : ChunkCoder {
  Encoder() : ChunkCoder(Way::kEncode) {}
};

struct Frame {
  Target data;  // as large as a chunk: a larger frame is not worth sending
  CodecCall call;
  int encoder = -1;
};

struct Copy {
  EventOwner event;
  PieceTable pieces;
  CopyGraph graph;
  std::size_t raw_bytes = 0;  // 0: a frame, which has checksums of its own
  CopySum sum;
};

class GpuSendEngine : public gpu_link::SendEngine {
 public:
  GpuSendEngine(int device, PeerMemory staging) : device_(device), staging_(staging) {
    for (int i = 0; i < kMaxEncoding; ++i) idle_encoders_.push_back(i);
    // What fails here fails again when a copy needs it, and is reported then.
    for (Copy& slot : copies_) (void)slot.sum.ensure(kMaxLinkPieces);
    (void)load_copy_kernels();
  }
  ~GpuSendEngine() override {
    if (getting_ready_.joinable()) getting_ready_.join();
    release();
  }

  int num_frames() const override { return kNumFrames; }
  int max_encoding() const override { return kMaxEncoding; }

  bool can_encode(const gpu_link::LinkTensor& tensor) override {
    if (is_ready_.load(std::memory_order_acquire)) return true;
    if (std::exchange(is_asked_, true)) return false;
    try {
      getting_ready_ = std::thread([this, dtype = tensor.dtype] { get_ready(dtype); });
    } catch (const std::system_error&) {  // all chunks are sent raw then
    }
    return false;
  }

  Status encode(int idx, const gpu_link::LinkTensor& tensor, gpu_link::LinkSpan span,
                Codec codec) override {
    Frame& frame = frames_[idx];
    frame.encoder = idle_encoders_.back();
    idle_encoders_.pop_back();
    Encoder& encoder = encoders_[frame.encoder];
    const auto from = encoder.pieces.load(static_cast<const GpuTensor&>(tensor).segments, span);
    if (!from) return from.status();
    const ChunkCoder::Chunk chunk{*from, span.num_bytes, frame.data, frame.call.expect_result()};
    return frame.call.started(encoder.start(chunk, tensor.dtype, codec), encoder.stream.get());
  }

  Result<std::size_t> encoded(int idx) override {
    Frame& frame = frames_[idx];
    const auto done = frame.call.is_done();
    if (!done) return done.status();
    if (!*done) return std::size_t{0};
    idle_encoders_.push_back(std::exchange(frame.encoder, -1));
    const DeviceResult& result = frame.call.result();
    if (result.code == static_cast<std::uint32_t>(Code::kDstTooSmall)) return kLinkChunkBytes;
    if (result.code != 0) return to_status(result);
    return static_cast<std::size_t>(result.num_bytes);
  }

  Status copy_frame(int idx, std::size_t num_bytes, std::size_t place) override {
    // Rounded up, as places are multiples of 256 bytes: CUDA splits other sizes into two copies.
    Copy& slot = copies_[next_copy_];
    return copy(place, 0, [&](void* to) {
      return from_cuda(
          slot.graph.copy(to, frames_[idx].data.data, up(num_bytes), copies_stream_.get()));
    });
  }

  // By a kernel, which makes the checksum of what it copies: a second call beside a copy engine
  // would take this thread longer than the checksum takes the kernel.
  Status copy_raw(const gpu_link::LinkTensor& tensor, gpu_link::LinkSpan span,
                  std::size_t place) override {
    Copy& slot = copies_[next_copy_];
    const auto loaded = slot.pieces.load(static_cast<const GpuTensor&>(tensor).segments, span);
    if (!loaded) return loaded.status();
    return copy(place, span.num_bytes, [&](void* to) {
      return slot.pieces.copy(CopyWay::kGather, to, &slot.sum, copies_stream_.get());
    });
  }

  Result<bool> copied(std::uint64_t& checksum) override {
    if (on_their_way_.empty()) return false;
    const Copy& slot = copies_[on_their_way_.front()];
    const auto happened = slot.event.happened();
    if (!happened || !*happened) return happened;
    checksum = slot.raw_bytes == 0 ? 0 : slot.sum.checksum(slot.raw_bytes);
    on_their_way_.pop_front();
    return true;
  }

  void drain() noexcept override {
    if (getting_ready_.joinable()) getting_ready_.join();
    for (const Encoder& encoder : encoders_) (void)encoder.stream.wait();
    (void)copies_stream_.wait();
    release();
  }

 private:
  // On a thread of its own, before the first frame, for the type of the first tensor. If it fails,
  // for example for lack of memory, all chunks are sent raw.
  void get_ready(DType dtype) noexcept try {
    if (enter_thread(device_) == cudaSuccess && allocate().ok()) {
      const ChunkCoder::Chunk chunk{frames_[0].data.data, kLinkChunkBytes / 4, frames_[1].data,
                                    frames_[1].call.expect_result()};
      if (encoders_[0].load_kernels(chunk, dtype).ok()) {
        for (Encoder& encoder : encoders_) encoder.record_graphs(chunk, dtype);
        is_ready_.store(true, std::memory_order_release);
      }
    }
    (void)cudaGetLastError();
  } catch (const std::exception&) {
  }

  // One allocation: small ones would be rounded up.
  Status allocate() {
    const std::size_t room = encode_room();
    if (Status s = from_cuda(memory_.ensure(kNumFrames * kLinkChunkBytes + kMaxEncoding * room));
        !s.ok())
      return s;
    auto* at = memory_.as<std::byte>();
    for (Frame& frame : frames_) {
      frame.data = {at, kLinkChunkBytes};
      at += kLinkChunkBytes;
      if (Status s = from_cuda(frame.call.ensure()); !s.ok()) return s;
    }
    for (Encoder& encoder : encoders_) {
      encoder.workspace = {at, room};
      at += room;
      if (Status s = from_cuda(encoder.stream.ensure()); !s.ok()) return s;
    }
    return {};
  }

  template <class Start>
  Status copy(std::size_t place, std::size_t raw_bytes, Start start) {
    Copy& slot = copies_[next_copy_];
    slot.raw_bytes = raw_bytes;
    if (Status s = from_cuda({copies_stream_.ensure(), slot.event.ensure()}); !s.ok()) return s;
    if (Status s = start(static_cast<std::byte*>(staging_.data) + place); !s.ok()) return s;
    on_their_way_.push_back(next_copy_);
    next_copy_ = (next_copy_ + 1) % kNumCopies;
    return from_cuda(slot.event.record(copies_stream_.get()));
  }

  void release() noexcept {
    if (staging_.is_mapped) (void)cudaIpcCloseMemHandle(staging_.data);
    staging_.is_mapped = false;
  }

  const int device_;
  PeerMemory staging_;
  Memory memory_;
  bool is_asked_ = false;
  std::atomic<bool> is_ready_{false};
  Encoder encoders_[kMaxEncoding];
  std::vector<int> idle_encoders_;
  Frame frames_[kNumFrames];
  std::thread getting_ready_;
  StreamOwner copies_stream_;
  Copy copies_[kNumCopies];
  int next_copy_ = 0;
  std::deque<int> on_their_way_;
};

}  // namespace

std::unique_ptr<gpu_link::SendEngine> make_gpu_sender(int device, PeerMemory staging) {
  return std::make_unique<GpuSendEngine>(device, staging);
}

}  // namespace snug::cuda
