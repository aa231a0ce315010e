// gpu_link/cuda/chunk_coder.h - encodes or decodes chunks of a message, whole or in pieces, on a
// stream of its own.
#pragma once
#include <vector>

#include "codec/cuda/codec_graph.h"
#include "gpu/owners.h"
#include "gpu_link/cuda/segment_copy.h"
#include "gpu_link/link_engine.h"

namespace snug::cuda {

// Pieces of a chunk of a link; pages of 1 KiB and more are fewer.
inline constexpr std::size_t kMaxLinkPieces = (std::size_t{1} << 12) + 2;

inline Target target_of(const Memory& memory) { return {memory.as(), memory.num_bytes()}; }

// The pieces of one chunk, in pinned memory: kernels read them there. Copying them to the device
// first would take longer, for it would wait behind copies of chunks. Not to be loaded again before
// these kernels end.
class PieceTable {
 public:
  cudaError_t ensure(std::size_t num_pieces) { return host_.ensure(num_pieces * sizeof(Segment)); }
  // The address of the span if it is one piece; otherwise null, and its pieces are in the table.
  Result<std::byte*> load(const SegmentList& segments, gpu_link::LinkSpan span);
  // Copies the span that was loaded.
  Status copy(CopyWay way, void* memory, CopySum* sum, cudaStream_t stream) const {
    const std::span<const Segment> all = whole_.data != nullptr
                                             ? std::span<const Segment>{&whole_, 1}
                                             : std::span<const Segment>{list(), num_pieces_};
    return from_cuda(copy_segments(way, all, memory, sum, stream));
  }
  const Segment* list() const { return host_.as<Segment>(); }
  std::size_t num_pieces() const { return num_pieces_; }

 private:
  Memory host_{Memory::Where::kHost};
  std::size_t num_pieces_ = 0;
  Segment whole_{};  // the span, if it is one piece
};

class ChunkCoder {
 public:
  enum class Way { kEncode, kDecode };
  explicit ChunkCoder(Way way) : way_(way) {}

  // One chunk: its tensor (null: the pieces in the table), its frame, and where the result goes.
  struct Chunk {
    void* tensor = nullptr;
    std::size_t num_bytes = 0;
    Target frame;
    DeviceResult* result = nullptr;
  };

  // Enqueues the call, by a graph if there is one for such chunks.
  Status start(const Chunk& chunk, DType dtype, Codec codec);

  // Loads the code of the usual kernels, which takes a hundred times as long as they run. Zeroes
  // the tensor and waits.
  Status load_kernels(const Chunk& chunk, DType dtype);
  // Records graphs for chunks of this type, of all sizes of a link and both codecs, whole and in
  // pieces. `chunk` is what they are recorded with.
  void record_graphs(const Chunk& chunk, DType dtype);

  StreamOwner stream;
  PieceTable pieces;
  Target workspace;

 private:
  struct Entry {
    Codec codec;
    std::size_t num_bytes;
    bool is_paged;
    CodecGraph graph;
  };
  CodecGraph* find_graph(const Chunk& chunk, DType dtype, Codec codec);
  Status enqueue(const Chunk& chunk, std::size_t num_pieces, DType dtype, Codec codec);

  const Way way_;
  DType dtype_ = DType::kBytes;  // of the graphs
  std::vector<Entry> graphs_;
};

}  // namespace snug::cuda
