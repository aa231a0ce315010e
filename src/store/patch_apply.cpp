// One file of NEW out of its pieces.
#include <zstd.h>

#include <algorithm>
#include <mutex>

#include "snug/delta.h"
#include "store/file_hash.h"
#include "store/patch_jobs.h"

namespace snug::store {
namespace {

// Hands out pieces in order; long copies in parts.
class PieceQueue {
 public:
  struct Task {
    Piece piece;  // of a copy, the part to do
    std::uint64_t ticket = 0;
    std::uint64_t target_offset = 0, stored_offset = 0;
  };

  PieceQueue(const PieceList& pieces, std::uint64_t stored_offset)
      : cursor_(pieces), stored_offset_(stored_offset) {}

  bool next(Task& task) {
    const std::lock_guard lock(mutex_);
    if (left_.num_bytes == 0 && !cursor_.next(left_)) return false;
    task = {left_, ticket_++, target_offset_, stored_offset_};
    if (left_.kind == PieceKind::kCopy)
      task.piece.num_bytes = std::min<std::uint64_t>(left_.num_bytes, kChunkBytes);
    left_.num_bytes -= task.piece.num_bytes;
    left_.base_offset += task.piece.num_bytes;
    target_offset_ += task.piece.num_bytes;
    stored_offset_ += task.piece.stored_bytes;  // a copy has none
    return true;
  }

 private:
  std::mutex mutex_;
  PieceCursor cursor_;
  Piece left_;  // what is left of the current piece
  std::uint64_t ticket_ = 0, target_offset_ = 0, stored_offset_;
};

struct ApplyBuffers {
  Buffer base, stored, target;
};

class Apply {
 public:
  Apply(const OpenPatch& patch, std::size_t idx, std::uint64_t pieces_offset, const File& out,
        ProgressMeter& meter)
      : queue_(patch.manifest.files[idx].pieces, pieces_offset),
        patch_(patch.file),
        base_(patch.base),
        out_(out),
        meter_(meter) {}

  StoreStatus run(int num_threads, std::string& hash) {
    StoreStatus status = workers_.run(num_threads, [this] {
      ApplyBuffers buffers;
      PieceQueue::Task task;
      StoreStatus s;
      while (s.ok() && !workers_.failed() && queue_.next(task)) s = restore(task, buffers);
      return s;
    });
    hash = hash_.hex();
    return status;
  }

 private:
  StoreStatus restore(const PieceQueue::Task& task, ApplyBuffers& buffers) {
    const auto num_bytes = static_cast<std::size_t>(task.piece.num_bytes);
    const std::span<std::byte> target = buffers.target.span(num_bytes);
    if (StoreStatus s = decode_piece(task, target, buffers); !s.ok()) return s;
    std::uint64_t at;
    if (!workers_.turn.wait_for(task.ticket, at)) return {};
    hash_.update(target.data(), target.size());
    workers_.turn.pass(at + num_bytes);
    if (StoreStatus s = out_.write_at(task.target_offset, target.data(), num_bytes); !s.ok())
      return s;
    out_.start_writeback(task.target_offset, task.target_offset + num_bytes);
    return meter_.add(num_bytes, out_.path());
  }

  StoreStatus decode_piece(const PieceQueue::Task& task, std::span<std::byte> target,
                           ApplyBuffers& buffers) {
    const Piece& piece = task.piece;
    if (piece.kind == PieceKind::kCopy)
      return base_[piece.base_file]->read_at(piece.base_offset, target);
    const auto stored = buffers.stored.span(static_cast<std::size_t>(piece.stored_bytes));
    if (StoreStatus s = patch_.read_at(task.stored_offset, stored.data(), stored.size()); !s.ok())
      return s;
    if (piece.kind == PieceKind::kDelta) return apply_delta(task, stored, target, buffers);
    if (piece.kind == PieceKind::kFrame) {
      const auto info = inspect(stored);
      if (!info) return blame(task, info.status());
      if (info->raw_bytes != target.size()) return wrong_size(task, info->raw_bytes);
      return blame(task, decode(stored, target).status());
    }
    const std::size_t n =
        ZSTD_decompress(target.data(), target.size(), stored.data(), stored.size());
    if (ZSTD_isError(n)) return blame(task, {Code::kCorrupt, "zstd frame damaged"});
    return n == target.size() ? StoreStatus{} : wrong_size(task, n);
  }

  StoreStatus apply_delta(const PieceQueue::Task& task, std::span<const std::byte> stored,
                          std::span<std::byte> target, ApplyBuffers& buffers) {
    const auto info = delta::inspect(stored);
    if (!info) return blame(task, info.status());
    if (info->raw_bytes != target.size()) return wrong_size(task, info->raw_bytes);
    const std::span<std::byte> base = buffers.base.span(target.size());
    const PlainFile& file = *base_[task.piece.base_file];
    if (StoreStatus s = file.read_at(task.piece.base_offset, base); !s.ok()) return s;
    const auto done = delta::apply(stored, base, target);
    if (done.status().code == Code::kWrongBase)
      return {{Code::kWrongBase, "another version than the patch was made for", kNowhere,
               task.piece.base_offset},
              file.path()};
    return blame(task, done.status());
  }

  StoreStatus wrong_size(const PieceQueue::Task& task, std::uint64_t found) const {
    return blame(task, frame::failure(Code::kCorrupt, "piece of the wrong size", found,
                                      task.piece.num_bytes));
  }

  StoreStatus blame(const PieceQueue::Task& task, Status status) const {
    if (status.ok()) return {};
    status.byte = task.stored_offset + (status.byte == kNowhere ? 0 : status.byte);
    return {status, patch_.path()};
  }

  PieceQueue queue_;
  const File& patch_;
  const std::vector<std::unique_ptr<PlainFile>>& base_;
  const File& out_;
  ProgressMeter& meter_;
  Workers workers_;
  FileHash hash_;
};

}  // namespace

StoreStatus apply_patch(const OpenPatch& patch, std::size_t idx, std::uint64_t pieces_offset,
                        const File& out, int num_threads, ProgressMeter& meter) {
  const PatchFile& file = patch.manifest.files[idx];
  if (StoreStatus s = out.reserve(file.num_bytes); !s.ok()) return s;
  const int n = codec::thread_count(store_threads(num_threads), file.num_bytes / kChunkBytes + 1);
  std::string hash;
  StoreStatus status = Apply(patch, idx, pieces_offset, out, meter).run(n, hash);
  if (!status.ok() || hash == file.hash) return status;
  return failure(Code::kCorrupt, "result differs from NEW: hash does not match", patch.file.path(),
                 file.name);
}

}  // namespace snug::store
