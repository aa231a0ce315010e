// gpu_link/cuda/segment_copy.h - pieces of a message in device memory: finds those of a chunk,
// gathers or scatters them, and makes their checksum on the way.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/owners.h"
#include "snug/cuda.h"

namespace snug::cuda {

// kUsage if the sum of their sizes wraps around.
Status check_segments(std::span<const Segment> segments);

enum class CopyWay { kGather, kScatter };

// Segments that follow each other in a message but lie anywhere in device memory.
class SegmentList {
 public:
  explicit SegmentList(std::span<const Segment> segments);

  std::uint64_t num_bytes() const noexcept { return num_bytes_; }
  // [offset, offset + num_bytes) if one segment holds it, else nullptr.
  std::byte* in_one_piece(std::uint64_t offset, std::size_t num_bytes) const;
  // Writes the pieces of [offset, offset + num_bytes), at most out.size(); returns their number.
  std::size_t cut(std::uint64_t offset, std::size_t num_bytes, std::span<Segment> out) const;
  // The most pieces of any stretch of this length.
  std::size_t max_pieces(std::size_t num_bytes) const;

 private:
  std::size_t segment_at(std::uint64_t offset) const;

  std::vector<Segment> segments_;  // none of them empty
  std::vector<std::uint64_t> starts_;
  std::uint64_t num_bytes_ = 0;
};

// Where one launch leaves its sum: counters in device memory, which are 0 before and after it, and
// the two halves of the sum in pinned memory, to be added as low + (high << 32).
struct SumOfLaunch {
  unsigned long long* counters = nullptr;
  std::uint64_t* halves = nullptr;
};

// The checksum of one chunk, made by the kernel that copies it.
class CopySum {
 public:
  // Room for the sums of a chunk in so many pieces.
  cudaError_t ensure(std::size_t num_pieces);
  // Valid when the work of copy_segments has ended.
  std::uint64_t checksum(std::uint64_t num_bytes) const;

 private:
  friend cudaError_t copy_segments(CopyWay, std::span<const Segment>, void*, CopySum*,
                                   cudaStream_t);
  cudaError_t expect(std::size_t num_pieces, cudaStream_t stream);
  SumOfLaunch next_launch();

  Memory counters_;
  Memory halves_{Memory::Where::kHost};
  std::size_t num_launches_ = 0;
  bool are_zero_ = false;  // the counters
};

// Copies between `memory`, where the pieces follow each other, and the pieces; with `sum`, it gets
// the checksum, and must not be used again before that work has ended. `pieces` is in host memory
// and passed as kernel arguments, kPiecesALaunch a launch: it may be freed at once.
inline constexpr std::size_t kPiecesALaunch = 250;
cudaError_t copy_segments(CopyWay way, std::span<const Segment> pieces, void* memory, CopySum* sum,
                          cudaStream_t stream);

// Loads the code of the kernels; otherwise the first copy does, which takes milliseconds.
cudaError_t load_copy_kernels();

}  // namespace snug::cuda
