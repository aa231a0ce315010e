// store/block_scan.h - one pass over all tensors of a file on several threads.
//
// Workers take chunks in the order of the plain file, bring their bytes into
// memory (reading or decoding) and show them to a visitor. Memory is a
// workspace and two chunks a thread, whatever the file size.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>

#include "codec/block.h"
#include "store/tensor_file.h"
#include "store/workers.h"

namespace snug::store {

// Most bytes of plain data a worker handles at a time: two default blocks, because
// blocks are coded faster in pairs. Single blocks of foreign frames may be larger.
inline constexpr std::size_t kChunkBytes = std::size_t{512} << 10;

struct Chunk {
  std::uint64_t ticket = 0;  // chunks of the whole file, counted
  std::size_t tensor_idx = 0;
  std::uint64_t offset = 0;          // bytes from the start of the tensor
  bool first = false, last = false;  // of its tensor
  std::span<const std::byte> raw = {};
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
  // Fails if the caller wants to stop, naming `path`.
  StoreStatus add(std::uint64_t num_bytes, const std::string& path);

 private:
  const std::function<bool(const Progress&)>& callback_;
  const std::uint64_t total_, num_passes_;
  const char* phase_ = "";
  std::mutex mutex_;
  std::uint64_t work_ = 0, reported_ = 0, num_adds_ = 0;
  bool stopped_ = false;
};

// Called by several threads at once. `turn` lets chunks pass one by one in file order: a visit that
// waits for its turn either passes on or returns an error. One whose wait_for says false
// returns ok: another one has failed.
using Visit =
    std::function<StoreStatus(const Chunk& chunk, codec::Turnstile& turn, codec::Workspace&)>;

// `start` is where `turn` begins to count. The error of the earliest chunk wins.
StoreStatus scan_tensors(const TensorFile& file, int num_threads, std::uint64_t start,
                         ProgressMeter& meter, const Visit& visit);

// Reads blocks [first, first + count) of tensor `idx` and decodes them to dst.
StoreStatus read_blocks(const TensorFile& file, std::size_t idx, const FrameHead& head,
                        std::uint64_t first, std::uint64_t count, std::byte* dst, Buffer& payload,
                        codec::Workspace& workspace);

// The same; block i goes to place(i).
using BlockPlace = std::function<std::byte*(std::uint64_t block)>;
StoreStatus read_blocks(const TensorFile& file, std::size_t idx, const FrameHead& head,
                        std::uint64_t first, std::uint64_t count, const BlockPlace& place,
                        Buffer& payload, codec::Workspace& workspace);

}  // namespace snug::store
