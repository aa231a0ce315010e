// snug/gpu_load.h - tensors of a checkpoint, plain or compressed, straight into GPU memory.
//
// Threads read pieces of the file into pinned memory and send them to the GPU, which decodes them
// into the tensors. Reading, copying and decoding overlap.
//
// Memory:  at most two pieces a thread of pinned host memory, as they are stored: 144 MiB with 12
//          threads and BF16 weights, 192 MiB with plain files. About twice as much GPU memory,
//          until the Loader is destroyed. Neither depends on the size of the tensors.
// Threads: calls of one Loader wait for each other.
// Trust:   as snug/store.h: files may be hostile, and every checksum is checked.
#pragma once
#include <cstddef>
#include <memory>
#include <span>

#include "snug/cuda.h"
#include "snug/store.h"

namespace snug::cuda {

struct LoadOptions {
  int num_threads = 0;  // 0: one per CPU, at most 12
  // Restored data that a thread handles at a time. With header and index, the default fills four
  // huge pages, and three if it is compressed.
  std::size_t piece_bytes = (std::size_t{8} << 20) - (std::size_t{64} << 10);
};

class Loader {
 public:
  // For the device that is current in this call. Takes no memory yet.
  static Result<Loader> open(const LoadOptions& options = {}) noexcept;

  Loader() noexcept;
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;
  ~Loader();

  // Restores tensors to targets in device memory, after what is on `stream` already. Returns when
  // all is done. On an error, what the targets hold is unspecified.
  StoreStatus load(const Reader& reader, std::span<const TensorTarget> targets,
                   Stream stream) noexcept;

 private:
  struct Impl;
  explicit Loader(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace snug::cuda
