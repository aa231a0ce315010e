#include "store/load_tensors.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "store/block_scan.h"

namespace snug::store {
namespace {

constexpr std::size_t kMaxIdle = 16;  // 80 MiB

// Has the system give fresh memory its pages in one call: one fault a page takes longer than to
// decode it. Where that cannot be done, pages come when they are written to. Memory whose last page
// is there is not fresh.
void populate(std::byte* data, std::uint64_t num_bytes) noexcept {
#ifdef MADV_POPULATE_WRITE
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(data) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(data) + num_bytes) / page * page;
  unsigned char has_last = 1;
  if (begin < end && ::mincore(reinterpret_cast<void*>(end - page), page, &has_last) == 0 &&
      (has_last & 1) == 0)
    (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);
#else
  (void)data, (void)num_bytes;
#endif
}

class Load {
 public:
  Load(const TensorFile& file, std::span<const LoadTarget> targets, WorkspacePool& workspaces)
      : file_(file), queue_(file, targets, kChunkBytes), workspaces_(workspaces) {}

  StoreStatus run(int num_threads) {
    return workers_.run(codec::thread_count(store_threads(num_threads), queue_.num_pieces()),
                        [this] { return work(); });
  }

 private:
  StoreStatus work() {
    std::unique_ptr<codec::Workspace> workspace;
    Buffer payload, partial;
    LoadPiece piece;
    StoreStatus status;
    while (status.ok() && !workers_.failed() && queue_.next(piece, status)) {
      populate(piece.dst, piece.to - piece.from);
      if (piece.head == nullptr) {
        status = file_.read_unframed(piece.idx, piece.from,
                                     {piece.dst, static_cast<std::size_t>(piece.to - piece.from)});
        continue;
      }
      if (workspace == nullptr) workspace = workspaces_.take();
      status = decode(piece, payload, partial, *workspace);
    }
    workspaces_.give_back(std::move(workspace));
    return status;
  }

  StoreStatus decode(const LoadPiece& piece, Buffer& payload, Buffer& partial,
                     codec::Workspace& workspace) {
    const frame::Header& header = piece.head->header;
    const std::uint64_t block_bytes = header.block_bytes();
    const std::uint64_t blocks_end = header.num_elems * elem_bytes(header.dtype);
    const std::uint64_t from = piece.from;
    std::uint64_t to = piece.to;
    if (to > blocks_end) {  // the tail of less than an element
      const std::uint64_t tail_from = std::max(from, blocks_end);
      std::memcpy(piece.dst + (tail_from - from), header.tail + (tail_from - blocks_end),
                  static_cast<std::size_t>(to - tail_from));
      to = blocks_end;
      if (from >= to) return {};
    }
    const std::uint64_t block = from / block_bytes,
                        block_end = (to + block_bytes - 1) / block_bytes;
    const std::uint64_t covered_from = block * block_bytes,
                        covered_to = std::min(block_end * block_bytes, blocks_end);
    const auto read = [&](std::byte* dst) {
      return read_blocks(file_, piece.idx, *piece.head, block, block_end - block, dst, payload,
                         workspace);
    };
    if (covered_from == from && covered_to == to) return read(piece.dst);
    std::byte* all = partial.span(static_cast<std::size_t>(covered_to - covered_from)).data();
    if (StoreStatus s = read(all); !s.ok()) return s;
    std::memcpy(piece.dst, all + (from - covered_from), static_cast<std::size_t>(to - from));
    return {};
  }

  const TensorFile& file_;
  LoadQueue queue_;
  WorkspacePool& workspaces_;
  Workers workers_;
};

}  // namespace

std::unique_ptr<codec::Workspace> WorkspacePool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto workspace = std::move(idle_.back());
      idle_.pop_back();
      return workspace;
    }
  }
  return std::unique_ptr<codec::Workspace>(new codec::Workspace);
}

void WorkspacePool::give_back(std::unique_ptr<codec::Workspace> workspace) noexcept try {
  const std::lock_guard lock(mutex_);
  if (workspace != nullptr && idle_.size() < kMaxIdle) idle_.push_back(std::move(workspace));
} catch (const std::bad_alloc&) {
  // Then it is freed.
}

StoreStatus load_tensors(const TensorFile& file, std::span<const LoadTarget> targets,
                         WorkspacePool& workspaces, int num_threads) {
  return Load(file, targets, workspaces).run(num_threads);
}

}  // namespace snug::store
