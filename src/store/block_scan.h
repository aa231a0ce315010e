// store/block_scan.h - one pass over all tensors of a file on several threads.
//
// Workers take chunks in the order of the plain file, bring their bytes into
// memory (reading or decoding) and show them to a visitor. Memory is a
// workspace and two chunks a thread, whatever the file size.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>

#include "codec/block.h"
#include "codec/parallel.h"
#include "store/tensor_file.h"

namespace snug::store {

// Most bytes of plain data a worker handles at a time: two default blocks, because
// blocks are coded faster in pairs. Single blocks of foreign frames may be larger.
inline constexpr std::size_t kChunkBytes = std::size_t{512} << 10;

struct Chunk {
  std::uint64_t ticket = 0;  // chunks of the whole file, counted
  std::size_t tensor_idx = 0;
  std::uint64_t offset = 0;          // bytes from the start of the tensor
  bool first = false, last = false;  // of its tensor
  std::span<const std::uint8_t> raw;
};

// Reports progress and lets the caller stop. One for a whole job, which may
// pass over the same bytes several times.
class ProgressMeter {
 public:
  ProgressMeter(const StoreOptions& options, std::uint64_t total_bytes, int num_passes)
      : callback_(options.progress),
        total_(total_bytes),
        num_passes_(static_cast<std::uint64_t>(num_passes)) {}

  void set_phase(const char* phase) noexcept { phase_ = phase; }
  // False if the caller wants to stop.
  bool add(std::uint64_t num_bytes);

 private:
  const std::function<bool(const Progress&)>& callback_;
  const std::uint64_t total_, num_passes_;
  const char* phase_ = "";
  std::mutex mutex_;
  std::uint64_t work_ = 0, reported_ = 0;
  bool stopped_ = false;
};

// One per thread. `turn` lets chunks pass one by one in file order: every visit
// either passes its ticket or returns an error. A visit whose wait_for says
// false returns ok: another one has failed.
class ChunkVisitor {
 public:
  virtual ~ChunkVisitor() = default;
  virtual StoreStatus visit(const Chunk& chunk, codec::Turnstile& turn,
                            codec::Workspace& workspace) = 0;
};
using MakeVisitor = std::function<std::unique_ptr<ChunkVisitor>()>;

// `start` is where `turn` begins to count. The error of the earliest chunk wins.
StoreStatus scan_tensors(const TensorFile& file, int num_threads, std::uint64_t start,
                         ProgressMeter& meter, const MakeVisitor& make_visitor);

// A buffer that grows and whose bytes are not touched before they are used.
class Buffer {
 public:
  std::uint8_t* ensure(std::size_t num_bytes) {
    if (num_bytes > size_ || bytes_ == nullptr) {
      bytes_ = std::make_unique_for_overwrite<std::uint8_t[]>(num_bytes);
      size_ = num_bytes;
    }
    return bytes_.get();
  }

 private:
  std::unique_ptr<std::uint8_t[]> bytes_;
  std::size_t size_ = 0;
};

// Reads blocks [first, first + count) of tensor `idx` and decodes them to dst.
StoreStatus read_blocks(const TensorFile& file, std::size_t idx, const FrameHead& head,
                        std::uint64_t first, std::uint64_t count, std::uint8_t* dst,
                        Buffer& payload, codec::Workspace& workspace);

int store_threads(int asked) noexcept;

}  // namespace snug::store
