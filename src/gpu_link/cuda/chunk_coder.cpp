#include "gpu_link/cuda/chunk_coder.h"

#include <algorithm>

#include "gpu_link/link_scheduler.h"

namespace snug::cuda {
namespace {

constexpr Codec kCodecs[] = {Codec::kFixed, Codec::kEntropy};

CodecGraph::Call graph_call(const ChunkCoder::Chunk& chunk, std::size_t num_pieces) {
  return {chunk.tensor, chunk.frame.data, chunk.frame.num_bytes, chunk.result, num_pieces};
}

}  // namespace

Result<std::byte*> PieceTable::load(const SegmentList& segments, gpu_link::LinkSpan span) {
  std::byte* const whole = segments.in_one_piece(span.offset, span.num_bytes);
  whole_ = {whole, span.num_bytes};
  if (whole != nullptr) return whole;
  for (;;) {
    const std::span<Segment> room{host_.as<Segment>(), host_.num_bytes() / sizeof(Segment)};
    num_pieces_ = segments.cut(span.offset, span.num_bytes, room);
    if (num_pieces_ <= room.size()) return nullptr;
    if (Status s = from_cuda(ensure(std::max(num_pieces_, kMaxLinkPieces))); !s.ok()) return s;
  }
}

Status ChunkCoder::enqueue(const Chunk& chunk, std::size_t num_pieces, DType dtype, Codec codec) {
  const auto& [tensor, num_bytes, frame, result] = chunk;
  if (way_ == Way::kEncode) {
    EncodeOptions options;
    options.dtype = dtype;
    options.codec = codec;
    return tensor != nullptr
               ? encode({tensor, num_bytes}, frame, workspace, result, options, stream.get())
               : encode_paged(pieces.list(), num_pieces, num_bytes, frame, workspace, result,
                              options, stream.get());
  }
  const Source source{frame.data, frame.num_bytes};
  DecodeOptions options;
  options.dtype = dtype;
  options.codec = codec;
  return tensor != nullptr
             ? decode(source, {tensor, num_bytes}, workspace, result, options, stream.get())
             : decode_paged(source, pieces.list(), num_pieces, num_bytes, workspace, result,
                            options, stream.get());
}

CodecGraph* ChunkCoder::find_graph(const Chunk& chunk, DType dtype, Codec codec) {
  if (dtype != dtype_ || !is_aligned(chunk.tensor, 16)) return nullptr;
  for (Entry& entry : graphs_)
    if (entry.codec == codec && entry.num_bytes == chunk.num_bytes &&
        entry.is_paged == (chunk.tensor == nullptr) && entry.graph.exists())
      return &entry.graph;
  return nullptr;
}

Status ChunkCoder::start(const Chunk& chunk, DType dtype, Codec codec) {
  const std::size_t num_pieces = chunk.tensor == nullptr ? pieces.num_pieces() : 0;
  CodecGraph* graph = find_graph(chunk, dtype, codec);
  if (graph != nullptr && graph->launch(graph_call(chunk, num_pieces), stream.get())) return {};
  return enqueue(chunk, num_pieces, dtype, codec);
}

Status ChunkCoder::load_kernels(const Chunk& chunk, DType dtype) {
  if (Status s = from_cuda(cudaMemsetAsync(chunk.tensor, 0, chunk.num_bytes, stream.get()));
      !s.ok())
    return s;
  for (const Codec codec : kCodecs)
    if (Status s = enqueue(chunk, 0, dtype, codec); !s.ok()) return s;
  return from_cuda(stream.wait());
}

void ChunkCoder::record_graphs(const Chunk& chunk, DType dtype) {
  if (pieces.ensure(kMaxLinkPieces) != cudaSuccess) return;
  dtype_ = dtype;
  for (const Codec codec : kCodecs)
    for (const std::size_t num_bytes : gpu_link::LinkScheduler::kChunks)
      for (const bool is_paged : {false, true}) {
        Entry& entry = graphs_.emplace_back(Entry{codec, num_bytes, is_paged, {}});
        const Chunk recorded{is_paged ? nullptr : chunk.tensor, num_bytes, chunk.frame,
                             chunk.result};
        const std::size_t num_pieces = is_paged ? kMaxLinkPieces : 0;
        entry.graph.record(graph_call(recorded, num_pieces), stream.get(), [&](cudaStream_t) {
          return enqueue(recorded, num_pieces, dtype, codec);
        });
      }
}

}  // namespace snug::cuda
