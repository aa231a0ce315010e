#include "mount/mounted_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "store/block_scan.h"

namespace snug::mount {

using store::FrameHead;

StoreStatus MountedFile::read_attributes(const std::string& path) {
  if (::stat(path.c_str(), &attributes_) != 0) return store::io_error("cannot open", path, errno);
  return {};
}

StoreResult<std::unique_ptr<MountedFile>> MountedFile::open_tensors(
    const std::string& path, std::size_t idx, const std::shared_ptr<store::FilePool>& pool) {
  auto self = std::make_unique<MountedFile>();
  auto tensors = store::TensorFile::open(path);
  if (!tensors) return tensors.status();
  if (StoreStatus s = (*tensors)->check_kind(true); !s.ok()) return s;
  self->idx_ = idx;
  self->tensors_ = std::move(*tensors);
  self->num_bytes_ = self->tensors_->plain().file_bytes;
  self->make_runs();
  if (StoreStatus s = self->read_attributes(path); !s.ok()) return s;
  self->tensors_->share(pool);
  return self;
}

StoreResult<std::unique_ptr<MountedFile>> MountedFile::open_other(
    const std::string& path, bool is_config, const std::shared_ptr<store::FilePool>& pool) {
  auto self = std::make_unique<MountedFile>();
  auto file = is_config ? store::PlainFile::open_config(path, pool)
                        : store::PlainFile::open(path, false, pool);
  if (!file) return file.status();
  self->other_ = std::move(*file);
  self->num_bytes_ = self->other_->num_bytes();
  if (StoreStatus s = self->read_attributes(path); !s.ok()) return s;
  return self;
}

StoreStatus MountedFile::check_unchanged() const {
  if (!file().same_file(path()) || !file().check_unchanged().ok())
    return {{Code::kIo, "changed since it was mounted; unmount and mount again"}, path()};
  return {};
}

// ---- pieces -----------------------------------------------------------------

void MountedFile::make_runs() {
  const store::Layout& plain = tensors_->plain();
  for (std::uint64_t at = 0; at < plain.data_start; at += store::kHeaderPieceBytes)
    runs_.push_back({at, std::min(plain.data_start, at + store::kHeaderPieceBytes)});
  bool may_grow = false;
  for (std::size_t i = 0; i < plain.slots.size(); ++i) {
    const std::uint64_t begin = plain.data_start + plain.slots.begin_of(i),
                        end = plain.data_start + plain.slots.end_of(i);
    const bool is_small = end - begin <= kPieceBytes;
    if (is_small && may_grow && end - runs_.back().begin <= kPieceBytes) {
      runs_.back().end = end;
      runs_.back().last = i + 1;
    } else {
      runs_.push_back({begin, end, i, i + 1});
    }
    may_grow = is_small;
  }
}

// The first one that ends behind it.
const MountedFile::Run& MountedFile::run_at(std::uint64_t offset) const noexcept {
  const auto behind = std::upper_bound(runs_.begin(), runs_.end(), offset,
                                       [](std::uint64_t o, const Run& run) { return o < run.end; });
  return *behind;
}

StoreResult<std::shared_ptr<const FrameHead>> MountedFile::head_of(const Run& run) const {
  {
    const std::lock_guard lock(mutex_);
    if (run.head != nullptr) return run.head;
  }
  auto head = tensors_->load_head(run.first);
  if (!head) return head;
  const std::lock_guard lock(mutex_);
  return run.head = std::move(*head);
}

StoreResult<Piece> MountedFile::piece_at(std::uint64_t offset) const {
  const Run& run = run_at(offset);
  if (run.last != run.first + 1 || run.end - run.begin <= kPieceBytes)
    return Piece{idx_, run.begin, run.end - run.begin};
  auto head = head_of(run);  // its tensor is too large to be stored without a frame
  if (!head) return head.status();
  // Both are powers of two, so a piece has whole blocks.
  const std::uint64_t step = std::max<std::uint64_t>(kPieceBytes, (*head)->header.block_bytes());
  const std::uint64_t begin = run.begin + (offset - run.begin) / step * step;
  return Piece{idx_, begin, std::min(step, run.end - begin)};
}

// ---- content ----------------------------------------------------------------

StoreStatus MountedFile::read_other(std::uint64_t offset, std::span<std::byte> dst) const {
  if (StoreStatus s = other_->read_at(offset, dst); !s.ok()) return s;
  return file().check_unchanged();
}

StoreStatus MountedFile::decode(std::span<const Piece> pieces, std::span<std::byte* const> dst,
                                Scratch& scratch) const {
  const Run& run = run_at(pieces[0].offset);
  // Neighbours of one tensor have neighbouring blocks.
  const std::size_t num_first = pieces.back().offset < run.end ? pieces.size() : 1;
  if (StoreStatus s = decode_run(run, pieces.first(num_first), dst.first(num_first), scratch);
      !s.ok())
    return s;
  if (num_first < pieces.size())
    if (StoreStatus s = decode_run(run_at(pieces.back().offset), pieces.subspan(num_first),
                                   dst.subspan(num_first), scratch);
        !s.ok())
      return s;
  return tensors_->file().check_unchanged();
}

StoreStatus MountedFile::decode_run(const Run& run, std::span<const Piece> pieces,
                                    std::span<std::byte* const> dst, Scratch& scratch) const {
  if (run.first == run.last)
    return tensors_->read_header(run.begin,
                                 {dst[0], static_cast<std::size_t>(run.end - run.begin)});
  if (run.last == run.first + 1 && tensors_->is_frame(run.first))
    return decode_large(run, pieces, dst, scratch);
  const store::Layout& plain = tensors_->plain();
  for (std::size_t i = run.first; i < run.last; ++i) {
    std::byte* to = dst[0] + (plain.data_start + plain.slots.begin_of(i) - run.begin);
    if (StoreStatus s = decode_tensor(i, to, scratch); !s.ok()) return s;
  }
  return {};
}

StoreStatus MountedFile::decode_tensor(std::size_t idx, std::byte* dst, Scratch& scratch) const {
  const store::Slot slot = tensors_->plain().slots[idx];
  if (!tensors_->is_frame(idx))
    return tensors_->read_unframed(idx, 0, {dst, static_cast<std::size_t>(slot.num_bytes())});
  auto head = tensors_->load_head(idx);
  if (!head) return head.status();
  const frame::Header& header = (*head)->header;
  std::memcpy(dst + (slot.num_bytes() - header.num_tail_bytes), header.tail, header.num_tail_bytes);
  return store::read_blocks(*tensors_, idx, **head, 0, header.num_blocks(), dst, scratch.payload,
                            scratch.workspace);
}

StoreStatus MountedFile::decode_large(const Run& run, std::span<const Piece> pieces,
                                      std::span<std::byte* const> dst, Scratch& scratch) const {
  const auto head = head_of(run);
  if (!head) return head.status();
  const frame::Header& header = (*head)->header;
  const std::uint64_t blocks_end = run.begin + header.num_elems * elem_bytes(header.dtype);
  for (std::size_t i = 0; i < pieces.size(); ++i) {  // a tail of less than an element
    const std::uint64_t from = std::max(pieces[i].offset, blocks_end);
    if (from < pieces[i].end())
      std::memcpy(dst[i] + (from - pieces[i].offset), header.tail + (from - blocks_end),
                  static_cast<std::size_t>(pieces[i].end() - from));
  }
  const std::uint64_t end = std::min(pieces.back().end(), blocks_end);
  if (pieces[0].offset >= end) return {};
  const std::uint64_t block_bytes = header.block_bytes();
  const std::uint64_t first = (pieces[0].offset - run.begin) / block_bytes;
  const std::uint64_t count = (end - run.begin + block_bytes - 1) / block_bytes - first;
  const store::BlockPlace place = [&](std::uint64_t block) {
    const std::uint64_t at = run.begin + block * block_bytes;
    const std::size_t i = at < pieces[0].end() ? 0 : 1;
    return dst[i] + (at - pieces[i].offset);
  };
  return store::read_blocks(*tensors_, run.first, **head, first, count, place, scratch.payload,
                            scratch.workspace);
}

}  // namespace snug::mount
