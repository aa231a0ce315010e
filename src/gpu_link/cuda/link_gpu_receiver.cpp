#include <algorithm>

#include "gpu_link/cuda/link_gpu_parts.h"

namespace snug::cuda {
namespace {

constexpr int kNumPlacers = 4;
constexpr DType kUsualType = DType::kBF16;
constexpr int kSmallestBlock = 12;  // makes the most blocks
constexpr Status kDamaged{Code::kCorrupt, "a chunk was damaged on its way"};

// Enough for any dtype and codec, the largest chunk and the most pieces.
std::size_t decode_room() {
  std::size_t most = 0;
  for (int dtype = 0; dtype < kNumDTypes; ++dtype)
    for (const Codec codec : {Codec::kFixed, Codec::kEntropy}) {
      DecodeOptions options;
      options.dtype = static_cast<DType>(dtype);
      options.codec = codec;
      options.log2_block = kSmallestBlock;
      most = std::max(most, decode_workspace_bytes(kLinkChunkBytes, options));
    }
  return most + 8 * (kMaxLinkPieces + 64);
}

struct Placer : ChunkCoder {
  Placer() : ChunkCoder(Way::kDecode) {}
  Status ensure(std::size_t room) {
    const Status s =
        from_cuda({stream.ensure(), event.ensure(), call.ensure(), memory.ensure(room)});
    workspace = target_of(memory);
    return s;
  }

  EventOwner event;
  Memory memory;
  CodecCall call;
  CopyGraph copy;
  bool is_frame = false;
  std::size_t num_bytes = 0;
};

class GpuReceiveEngine : public gpu_link::ReceiveEngine {
 public:
  // What fails here fails again when a chunk needs it, and is reported then.
  explicit GpuReceiveEngine(void* staging) : staging_(static_cast<std::byte*>(staging)) {
    for (Placer& placer : placers_)
      if (!placer.ensure(room_).ok()) return;
    // Loads kernels with a frame of zeros, which is refused.
    Placer& first = placers_[0];
    const Target room = placers_[1].workspace;
    (void)first.load_kernels({room.data, 4096, {room.data, 4096}, first.call.expect_result()},
                             kUsualType);
    for (Placer& placer : placers_)
      placer.record_graphs(
          {placer.workspace.data, 0, {staging, kLinkChunkBytes}, placer.call.expect_result()},
          kUsualType);
  }

  int num_placers() const override { return kNumPlacers; }

  Status place(int idx, const gpu_link::LinkTensor& tensor, gpu_link::LinkSpan span,
               wire::Mode mode, std::size_t place, std::size_t payload_bytes) override {
    Placer& placer = placers_[idx];
    placer.is_frame = mode != wire::Mode::kRaw;
    placer.num_bytes = span.num_bytes;
    if (Status s = placer.ensure(room_); !s.ok()) return s;
    const auto& gpu_tensor = static_cast<const GpuTensor&>(tensor);
    const auto to = placer.pieces.load(gpu_tensor.segments, span);
    if (!to) return to.status();
    std::byte* from = staging_ + place;
    const cudaStream_t stream = placer.stream.get();
    if (placer.is_frame) {
      const ChunkCoder::Chunk chunk{
          *to, span.num_bytes, {from, payload_bytes}, placer.call.expect_result()};
      return placer.call.started(placer.start(chunk, tensor.dtype, wire::codec_of(mode)), stream);
    }
    const Status s = *to == nullptr
                         ? placer.pieces.copy(CopyWay::kScatter, from, stream)
                         : from_cuda(placer.copy.copy(*to, from, span.num_bytes, stream));
    return s.ok() ? from_cuda(placer.event.record(stream)) : s;
  }

  Result<bool> placed(int idx) override {
    Placer& placer = placers_[idx];
    if (!placer.is_frame) return placer.event.happened();
    const auto done = placer.call.is_done();
    if (!done || !*done) return done;
    const DeviceResult& result = placer.call.result();
    if (result.code != 0 || result.num_bytes != placer.num_bytes) return kDamaged;
    return true;
  }

  void drain() noexcept override {
    for (const Placer& placer : placers_) (void)placer.stream.wait();
  }

 private:
  std::byte* const staging_;
  const std::size_t room_ = decode_room();
  Placer placers_[kNumPlacers];
};

}  // namespace

std::unique_ptr<gpu_link::ReceiveEngine> make_gpu_receiver(void* staging) {
  return std::make_unique<GpuReceiveEngine>(staging);
}

}  // namespace snug::cuda
