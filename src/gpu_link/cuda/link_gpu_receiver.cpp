#include <algorithm>

#include "gpu_link/cuda/link_gpu_parts.h"

namespace snug::cuda {
namespace {

constexpr int kNumPlacers = 4;
constexpr DType kUsualType = DType::kBF16;
constexpr int kSmallestBlock = 12;  // makes the most blocks
constexpr Status kDamaged{Code::kCorrupt, "a chunk was damaged on its way"};
constexpr const char* kRawDamaged =
    "raw bytes were damaged between the two GPUs: their checksum does not match";

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
    const Status s = from_cuda({stream.ensure(), event.ensure(), call.ensure(), memory.ensure(room),
                                sum.ensure(kMaxLinkPieces)});
    workspace = target_of(memory);
    return s;
  }

  EventOwner event;
  Memory memory;
  CodecCall call;
  CopySum sum;  // of raw bytes
  bool is_frame = false;
  std::size_t num_bytes = 0;
  std::uint64_t checksum = 0;  // that raw bytes should have
};

class GpuReceiveEngine : public gpu_link::ReceiveEngine {
 public:
  // What fails here fails again when a chunk needs it, and is reported then.
  explicit GpuReceiveEngine(void* staging) : staging_(static_cast<std::byte*>(staging)) {
    for (Placer& placer : placers_)
      if (!placer.ensure(room_).ok() || load_copy_kernels() != cudaSuccess) return;
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

  Status place(int idx, const gpu_link::LinkTensor& tensor,
               const gpu_link::LinkChunk& chunk) override {
    Placer& placer = placers_[idx];
    const auto mode = static_cast<wire::Mode>(chunk.mode);
    const gpu_link::LinkSpan span = span_of(chunk);
    placer.is_frame = mode != wire::Mode::kRaw;
    placer.num_bytes = span.num_bytes;
    placer.checksum = chunk.checksum;
    if (Status s = placer.ensure(room_); !s.ok()) return s;
    const auto& gpu_tensor = static_cast<const GpuTensor&>(tensor);
    const auto to = placer.pieces.load(gpu_tensor.segments, span);
    if (!to) return to.status();
    std::byte* from = staging_ + chunk.place;
    const cudaStream_t stream = placer.stream.get();
    if (placer.is_frame) {
      const ChunkCoder::Chunk coded{*to,
                                    span.num_bytes,
                                    {from, static_cast<std::size_t>(chunk.payload_bytes)},
                                    placer.call.expect_result()};
      return placer.call.started(placer.start(coded, tensor.dtype, wire::codec_of(mode)), stream);
    }
    // By a kernel, which makes the checksum of what it copies.
    const Status s = placer.pieces.copy(CopyWay::kScatter, from, &placer.sum, stream);
    return s.ok() ? from_cuda(placer.event.record(stream)) : s;
  }

  Result<bool> placed(int idx) override {
    Placer& placer = placers_[idx];
    if (!placer.is_frame) {
      const auto done = placer.event.happened();
      if (!done || !*done) return done;
      const std::uint64_t found = placer.sum.checksum(placer.num_bytes);
      if (found != placer.checksum)
        return Status{Code::kCorrupt, kRawDamaged, kNowhere, kNowhere, found, placer.checksum};
      return true;
    }
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
