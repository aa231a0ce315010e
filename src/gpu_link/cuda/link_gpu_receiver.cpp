#include <algorithm>

#include "gpu_link/cuda/link_graphs.h"
#include "gpu_link/cuda/link_gpu_parts.h"

namespace snug::cuda {
namespace {

constexpr int kNumPlacers = 4;
constexpr DType kUsualType = DType::kBF16;
constexpr int kSmallestBlock = 12;  // has the most of them
constexpr Status kDamaged{Code::kCorrupt, "a chunk was damaged on its way"};

// What calls with any dtype and codec need for the largest chunk in the most pieces.
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
  return most + 8 * (kMaxPipePieces + 64);
}

struct Placer {
  StreamOwner stream;
  EventOwner event;
  Memory workspace;
  CodecCall call;
  PieceTable pieces;
  GraphSet graphs;
  CopyGraph copy;
  bool is_frame = false;
  std::size_t num_bytes = 0;

  Status ensure(std::size_t room) {
    return from_cuda({stream.ensure(), event.ensure(), call.ensure(), workspace.ensure(room)});
  }
};

class GpuReceiveEngine : public gpu_link::ReceiveEngine {
 public:
  // What fails here fails again where a chunk needs it, and is reported then.
  explicit GpuReceiveEngine(const void* staging) : staging_(staging) {
    for (Placer& placer : placers_)
      if (!placer.ensure(room_).ok()) return;
    load_kernels();
    for (Placer& placer : placers_) record_graphs(placer);
  }

  int num_placers() const override { return kNumPlacers; }

  Status place(int idx, const gpu_link::LinkTensor& tensor, gpu_link::LinkSpan span,
               wire::Mode mode, std::size_t place, std::size_t payload_bytes) override {
    Placer& placer = placers_[idx];
    placer.is_frame = mode != wire::Mode::kRaw;
    placer.num_bytes = span.num_bytes;
    const Source from{static_cast<const std::byte*>(staging_) + place, payload_bytes};
    return start(placer, static_cast<const GpuTensor&>(tensor), span, from, mode);
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
  // Kernels are loaded when they are first used, which takes a hundred times as long as they do:
  // the usual ones, by frames that are none.
  void load_kernels() {
    Placer& placer = placers_[0];
    const cudaStream_t stream = placer.stream.get();
    const Target room = target_of(placers_[1].workspace);
    if (cudaMemsetAsync(room.data, 0, room.num_bytes, stream) != cudaSuccess) return;
    for (const Codec codec : {Codec::kFixed, Codec::kEntropy}) {
      DecodeOptions options;
      options.codec = codec;
      (void)decode({room.data, 4096}, {room.data, 4096}, target_of(placer.workspace),
                   placer.call.expect_result(), options, stream);
    }
    (void)placer.stream.wait();
  }

  void record_graphs(Placer& placer) {
    if (placer.pieces.ensure() != cudaSuccess) return;
    placer.graphs.record(kUsualType, [&](Codec codec, std::size_t num_bytes, bool is_paged) {
      const Target room = target_of(placer.workspace);
      const CodecGraph::Call call{is_paged ? nullptr : room.data, const_cast<void*>(staging_),
                                  num_bytes / 2, placer.call.expect_result(),
                                  is_paged ? kMaxPipePieces : 0};
      const Source frame{call.frame, call.frame_bytes};
      DecodeOptions options;
      options.dtype = kUsualType;
      options.codec = codec;
      CodecGraph graph;
      graph.record(call, placer.stream.get(), [&](cudaStream_t stream) {
        return is_paged
                   ? decode_paged(frame, placer.pieces.list(), kMaxPipePieces, num_bytes, room,
                                  call.result, options, stream)
                   : decode(frame, {call.tensor, num_bytes}, room, call.result, options, stream);
      });
      return graph;
    });
  }

  Status start(Placer& placer, const GpuTensor& tensor, gpu_link::LinkSpan span, Source from,
               wire::Mode mode) {
    if (Status s = placer.ensure(room_); !s.ok()) return s;
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
    const Target workspace = target_of(placer.workspace);
    const std::size_t num_pieces = to == nullptr ? placer.pieces.num_pieces() : 0;
    if (CodecGraph* graph = placer.graphs.find(dtype, options.codec, placer.num_bytes, to)) {
      const CodecGraph::Call call{to, const_cast<void*>(frame.data), frame.num_bytes, result,
                                  num_pieces};
      if (graph->launch(call, stream)) return placer.call.started({}, stream);
    }
    if (to != nullptr)
      return placer.call.started(
          decode(frame, {to, placer.num_bytes}, workspace, result, options, stream), stream);
    return placer.call.started(decode_paged(frame, placer.pieces.list(), placer.pieces.num_pieces(),
                                            placer.num_bytes, workspace, result, options, stream),
                               stream);
  }

  Status copy_raw(Placer& placer, const void* from, void* to) {
    const cudaStream_t stream = placer.stream.get();
    const Status s = to == nullptr
                         ? placer.pieces.copy(CopyWay::kScatter, const_cast<void*>(from), stream)
                         : from_cuda(placer.copy.copy(to, from, placer.num_bytes, stream));
    return s.ok() ? from_cuda(placer.event.record(stream)) : s;
  }

  const void* const staging_;
  const std::size_t room_ = decode_room();
  Placer placers_[kNumPlacers];
};

}  // namespace

std::unique_ptr<gpu_link::ReceiveEngine> make_gpu_receiver(const void* staging) {
  return std::make_unique<GpuReceiveEngine>(staging);
}

}  // namespace snug::cuda
