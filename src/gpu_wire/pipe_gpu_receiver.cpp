#include <algorithm>

#include "gpu_wire/launcher.h"
#include "gpu_wire/pipe_gpu_parts.h"

namespace snug::cuda {
namespace {

constexpr int kNumPlacers = 4;
constexpr Status kDamaged{Code::kCorrupt, "a chunk was damaged on its way"};

std::size_t decode_room(DType dtype) {
  std::size_t most = 0;
  for (const Codec codec : {Codec::kFixed, Codec::kEntropy}) {
    DecodeOptions options;
    options.dtype = dtype;
    options.codec = codec;
    most = std::max(most, decode_workspace_bytes(kPipeChunkBytes, options));
  }
  return most + 8 * (kMaxPipePieces + 64);
}

struct Placer {
  StreamOwner stream;
  EventOwner event;
  Memory workspace;
  CodecCall call;
  PieceTable pieces;
  bool is_frame = false;
  std::size_t num_bytes = 0;

  Status ensure(DType dtype) {
    return cuda_status(
        {stream.ensure(), event.ensure(), call.ensure(), workspace.ensure(decode_room(dtype))});
  }
};

class GpuReceiveEngine : public wire::ReceiveEngine {
 public:
  GpuReceiveEngine(int device, const void* staging) : device_(device), staging_(staging) {}

  int num_placers() const override { return kNumPlacers; }

  Status place(int idx, const wire::PipeTensor& tensor, wire::PipeSpan span, wire::Mode mode,
               std::size_t place, std::size_t payload_bytes) override {
    Placer& placer = placers_[idx];
    placer.is_frame = mode != wire::Mode::kRaw;
    placer.call.prepare();
    placer.num_bytes = span.num_bytes;
    const Source from{static_cast<const std::byte*>(staging_) + place, payload_bytes};
    if (!placer.is_frame) return start(placer, static_cast<const GpuTensor&>(tensor), span, from);
    launcher_.add([this, &placer, &tensor, span, from, mode] {
      return start(placer, static_cast<const GpuTensor&>(tensor), span, from, mode);
    });
    return {};
  }

  Result<bool> placed(int idx) override {
    Placer& placer = placers_[idx];
    if (!placer.is_frame) return placer.event.happened();
    if (Status s = launcher_.status(); !s.ok()) return s;
    const auto done = placer.call.is_done();
    if (!done || !*done) return done;
    const DeviceResult& result = placer.call.result();
    if (result.code != 0 || result.num_bytes != placer.num_bytes) return kDamaged;
    return true;
  }

  void drain() noexcept override {
    launcher_.stop();
    for (const Placer& placer : placers_) placer.stream.wait();
  }

 private:
  // For frames on the launcher's thread: they take more calls.
  Status start(Placer& placer, const GpuTensor& tensor, wire::PipeSpan span, Source from,
               wire::Mode mode = wire::Mode::kRaw) {
    if (Status s = cuda_status(cudaSetDevice(device_)); !s.ok()) return s;
    if (Status s = placer.ensure(tensor.dtype); !s.ok()) return s;
    const auto paged = placer.pieces.load(tensor.segments, span);
    if (!paged) return paged.status();
    void* to = *paged ? nullptr : tensor.segments.in_one_piece(span.offset, span.num_bytes);
    return mode == wire::Mode::kRaw ? copy_raw(placer, from.data, to)
                                    : decode_frame(placer, from, to, tensor.dtype, mode);
  }

  Status decode_frame(Placer& placer, Source frame, void* to, DType dtype, wire::Mode mode) {
    DecodeOptions options;
    options.dtype = dtype;
    options.codec = wire::codec_of(mode);
    const cudaStream_t stream = placer.stream.get();
    DeviceResult* result = placer.call.expect_result();
    const Target workspace = placer.workspace.target();
    if (to != nullptr)
      return placer.call.started(
          decode(frame, {to, placer.num_bytes}, workspace, result, options, stream), stream);
    if (Status s = placer.pieces.upload(stream); !s.ok()) return s;
    return placer.call.started(
        decode_paged(frame, placer.pieces.on_device(), placer.pieces.num_pieces(), placer.num_bytes,
                     workspace, result, options, stream),
        stream);
  }

  Status copy_raw(Placer& placer, const void* from, void* to) {
    const cudaStream_t stream = placer.stream.get();
    const Status s = to == nullptr
                         ? placer.pieces.copy(CopyWay::kScatter, const_cast<void*>(from), stream)
                         : cuda_status(cudaMemcpyAsync(to, from, placer.num_bytes,
                                                       cudaMemcpyDeviceToDevice, stream));
    return s.ok() ? cuda_status(placer.event.record(stream)) : s;
  }

  const int device_;
  const void* const staging_;
  Placer placers_[kNumPlacers];
  Launcher launcher_;
};

}  // namespace

std::unique_ptr<wire::ReceiveEngine> make_gpu_receiver(int device, const void* staging) {
  return std::make_unique<GpuReceiveEngine>(device, staging);
}

}  // namespace snug::cuda
