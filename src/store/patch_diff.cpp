// Two versions to one patch: find for every stretch of NEW what BASE has in its place.
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "snug/delta.h"
#include "store/file_hash.h"
#include "store/patch_jobs.h"
#include "store/stop.h"

namespace snug::store {
namespace {

constexpr int kZstdLevel = 9;  // headers and small files

// One stretch of NEW that is compared at once.
struct DiffTask {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::size_t num_bytes = 0;
  DType dtype = DType::kBytes;
  bool is_tensor = false;
  bool has_base = false;
  std::uint32_t base_file = 0;
  std::uint64_t base_offset = 0;
};

// Looks up the base of every tensor of NEW, and hands out tasks of at most kChunkBytes.
class TaskList {
 public:
  TaskList(const OpenVersion& base, const OpenVersion& next) : base_(base), next_(next) {
    for (std::uint32_t i = 0; i < base.files.size(); ++i)
      if (const Layout* layout = base.files[i]->layout())
        for (const Slot& slot : layout->slots)
          tensors_.push_back({slot.name, i, layout->data_start + slot.begin, slot.num_bytes()});
    // Stable: of equal names the first file's counts.
    std::ranges::stable_sort(tensors_, {}, &BaseTensor::name);
    // Incomplete if the caller wants to stop: the first read then fails.
    for (std::uint32_t i = 0; i < next.files.size(); ++i) add_file(i);
    tensors_ = {};
  }
  std::uint64_t size() const noexcept { return num_tasks_; }
  DiffTask operator[](std::uint64_t idx) const noexcept {
    const Stretch& stretch = *(std::ranges::upper_bound(stretches_, idx, {}, &Stretch::first) - 1);
    const std::uint64_t at = (idx - stretch.first) * kChunkBytes;
    const auto n =
        static_cast<std::size_t>(std::min<std::uint64_t>(kChunkBytes, stretch.num_bytes - at));
    return {stretch.file,      stretch.offset + at,     n,
            stretch.dtype,     stretch.is_tensor,       stretch.base.found,
            stretch.base.file, stretch.base.offset + at};
  }

 private:
  struct BaseTensor {
    std::string_view name;
    std::uint32_t file = 0;
    std::uint64_t offset = 0, num_bytes = 0;
  };
  struct BasePlace {
    bool found = false;
    std::uint32_t file = 0;
    std::uint64_t offset = 0;
  };
  // A tensor, or what is no tensor: tasks [first, ...).
  struct Stretch {
    std::uint64_t first = 0, offset = 0, num_bytes = 0;
    BasePlace base;
    std::uint32_t file = 0;
    DType dtype = DType::kBytes;
    bool is_tensor = false;
  };

  // The file of BASE with the same name, or the only one.
  const PlainFile* same_file(std::uint32_t file, std::uint32_t& base_file) const {
    const auto at = std::lower_bound(base_.names.begin(), base_.names.end(), next_.names[file]);
    if (at == base_.names.end() || *at != next_.names[file]) return nullptr;
    base_file = static_cast<std::uint32_t>(at - base_.names.begin());
    return base_.files[base_file].get();
  }

  void add_file(std::uint32_t file) {
    const PlainFile& in = *next_.files[file];
    std::uint32_t base_file = 0;
    const PlainFile* same = same_file(file, base_file);
    const Layout* layout = in.layout();
    if (layout == nullptr) {
      // Neighbours of the same place are all that is known.
      const bool comparable = same != nullptr && same->num_bytes() == in.num_bytes();
      return add(file, 0, in.num_bytes(), DType::kBytes, false, {comparable, base_file, 0});
    }
    const bool same_header = same != nullptr && same->layout() != nullptr &&
                             same->layout()->data_start == layout->data_start;
    add(file, 0, layout->data_start, DType::kBytes, false, {same_header, base_file, 0});
    for (const Slot& slot : layout->slots) {
      if (is_stopped()) return;
      add(file, layout->data_start + slot.begin, slot.num_bytes(), dtype_of(slot.dtype), true,
          find_tensor(slot.name, slot.num_bytes(), same != nullptr ? base_file : kNoFile));
    }
  }

  // The tensor of that name in the file `preferred`, or in any other.
  BasePlace find_tensor(std::string_view name, std::uint64_t num_bytes,
                        std::uint32_t preferred) const {
    // Not equal_range: clang 14 cannot compile the subranges of GCC 12's library.
    const auto first = std::ranges::lower_bound(tensors_, name, {}, &BaseTensor::name);
    if (first == tensors_.end() || first->name != name) return {};
    auto best = first;
    while (best != tensors_.end() && best->name == name && best->file != preferred) ++best;
    if (best == tensors_.end() || best->name != name) best = first;
    if (best->num_bytes != num_bytes) return {};
    return {true, best->file, best->offset};
  }

  void add(std::uint32_t file, std::uint64_t offset, std::uint64_t num_bytes, DType dtype,
           bool is_tensor, const BasePlace& base) {
    if (num_bytes == 0) return;
    stretches_.push_back({num_tasks_, offset, num_bytes, base, file, dtype, is_tensor});
    num_tasks_ += (num_bytes + kChunkBytes - 1) / kChunkBytes;
  }

  static constexpr std::uint32_t kNoFile = UINT32_MAX;
  const OpenVersion &base_, &next_;
  std::vector<BaseTensor> tensors_;  // by name; empty when the list is complete
  std::vector<Stretch> stretches_;
  std::uint64_t num_tasks_ = 0;
};

// What one thread works with.
struct DiffBuffers {
  Buffer next, base, stored, check;
};

class Diff {
 public:
  Diff(const OpenVersion& base, const OpenVersion& next, const File& patch, Manifest& manifest,
       ProgressMeter& meter)
      : base_(base),
        next_(next),
        patch_(patch),
        manifest_(manifest),
        meter_(meter),
        list_(base, next),
        workers_(kPatchHeaderBytes) {
    manifest_.files.resize(next.files.size());
    for (std::size_t i = 0; i < next.files.size(); ++i) {
      manifest_.files[i].name = next.names[i];
      manifest_.files[i].num_bytes = next.files[i]->num_bytes();
      if (next.files[i]->num_bytes() == 0) manifest_.files[i].hash = FileHash().hex();
    }
  }

  // Returns where the pieces end.
  StoreResult<std::uint64_t> run(int num_threads) {
    const std::uint64_t num_tasks = list_.size();
    StoreStatus status =
        workers_.run(codec::thread_count(store_threads(num_threads), num_tasks), [&] {
          DiffBuffers buffers;
          StoreStatus s;
          for (std::uint64_t i;
               s.ok() && !workers_.failed() && (i = workers_.turn.take_ticket()) < num_tasks;)
            s = compare(i, buffers);
          return s;
        });
    if (!status.ok()) return status;
    return workers_.turn.position();
  }

 private:
  StoreStatus compare(std::uint64_t ticket, DiffBuffers& buffers) {
    const DiffTask task = list_[ticket];
    const std::span<std::byte> next = buffers.next.span(task.num_bytes);
    if (StoreStatus s = next_.files[task.file]->read_at(task.offset, next); !s.ok()) return s;
    Piece piece;
    std::uint64_t num_changed = 0;
    if (StoreStatus s = make_piece(task, next, buffers, piece, num_changed); !s.ok()) return s;
    std::uint64_t at;
    if (!workers_.turn.wait_for(ticket, at)) return {};
    hash_->update(next.data(), next.size());
    add_piece(task, piece);
    manifest_.num_changed += num_changed;
    workers_.turn.pass(at + piece.stored_bytes);
    const auto stored = buffers.stored.span(static_cast<std::size_t>(piece.stored_bytes));
    if (StoreStatus s = patch_.write_at(at, stored.data(), stored.size()); !s.ok()) return s;
    return meter_.add(task.num_bytes, patch_.path());
  }

  // In turn: hashes and pieces are in the order of the files.
  void add_piece(const DiffTask& task, const Piece& piece) {
    PatchFile& file = manifest_.files[task.file];
    const bool continues = last_.num_bytes > 0 && piece.kind == PieceKind::kCopy &&
                           last_.kind == PieceKind::kCopy && last_.base_file == piece.base_file &&
                           last_.base_offset + last_.num_bytes == piece.base_offset;
    if (continues) {
      last_.num_bytes += piece.num_bytes;
    } else {
      if (last_.num_bytes > 0) file.pieces.add(last_);
      last_ = piece;
    }
    if (task.offset + task.num_bytes < file.num_bytes) return;
    file.pieces.add(last_);
    last_ = {};
    file.hash = hash_->hex();
    hash_ = std::make_unique<FileHash>();
  }

  StoreStatus make_piece(const DiffTask& task, std::span<const std::byte> next,
                         DiffBuffers& buffers, Piece& piece, std::uint64_t& num_changed) {
    piece.num_bytes = task.num_bytes;
    if (!task.has_base) return store_full(task, next, buffers, piece);
    const std::span<std::byte> base = buffers.base.span(task.num_bytes);
    if (StoreStatus s = base_.files[task.base_file]->read_at(task.base_offset, base); !s.ok())
      return s;
    piece.base_file = task.base_file;
    piece.base_offset = task.base_offset;
    if (std::memcmp(base.data(), next.data(), next.size()) == 0) return {};
    if (!task.is_tensor && next.size() < kChunkBytes) return store_full(task, next, buffers, piece);
    return store_delta(task, base, next, buffers, piece, num_changed);
  }

  StoreStatus store_delta(const DiffTask& task, std::span<const std::byte> base,
                          std::span<const std::byte> next, DiffBuffers& buffers, Piece& piece,
                          std::uint64_t& num_changed) {
    piece.kind = PieceKind::kDelta;
    const delta::Options options = {task.dtype, 0, true, 1};
    const std::size_t room = delta::encode_bound(kChunkBytes, options);
    const std::span<std::byte> stored = buffers.stored.span(room);
    const auto num_bytes = delta::encode(base, next, stored, options);
    if (!num_bytes) return blame(task, num_bytes.status());
    piece.stored_bytes = *num_bytes;
    num_changed = delta::inspect(stored)->num_changed;
    const std::span<std::byte> check = buffers.check.span(next.size());
    if (const auto s = delta::apply(stored.first(*num_bytes), base, check); !s)
      return blame(task, s.status());
    return compare_again(task, next, check);
  }

  // Tensors as frames, anything else under zstd.
  StoreStatus store_full(const DiffTask& task, std::span<const std::byte> next,
                         DiffBuffers& buffers, Piece& piece) {
    const EncodeOptions options = {task.dtype, Codec::kEntropy, 0, 1};
    const std::size_t room =
        std::max(ZSTD_compressBound(kChunkBytes), encode_bound(kChunkBytes, options));
    const std::span<std::byte> stored = buffers.stored.span(room);
    const std::span<std::byte> check = buffers.check.span(next.size());
    if (task.is_tensor) {
      piece.kind = PieceKind::kFrame;
      const auto num_bytes = encode(next, stored, options);
      if (!num_bytes) return blame(task, num_bytes.status());
      piece.stored_bytes = *num_bytes;
      if (const auto s = decode(stored.first(*num_bytes), check); !s)
        return blame(task, s.status());
    } else {
      piece.kind = PieceKind::kZstd;
      const std::size_t num_bytes =
          ZSTD_compress(stored.data(), room, next.data(), next.size(), kZstdLevel);
      if (ZSTD_isError(num_bytes))
        return blame(task, {Code::kInternal, ZSTD_getErrorName(num_bytes)});
      const std::size_t restored =
          ZSTD_decompress(check.data(), check.size(), stored.data(), num_bytes);
      if (restored != next.size())
        return blame(task, {Code::kInternal, ZSTD_getErrorName(restored)});
      piece.stored_bytes = num_bytes;
    }
    return compare_again(task, next, check);
  }

  StoreStatus compare_again(const DiffTask& task, std::span<const std::byte> next,
                            std::span<const std::byte> check) const {
    if (std::memcmp(check.data(), next.data(), next.size()) == 0) return {};
    return blame(task, {Code::kInternal, "a piece does not restore what it was made from"});
  }

  StoreStatus blame(const DiffTask& task, Status status) const {
    status.byte = task.offset;
    return {status, next_.files[task.file]->path()};
  }

  const OpenVersion &base_, &next_;
  const File& patch_;
  Manifest& manifest_;
  ProgressMeter& meter_;
  const TaskList list_;
  Workers workers_;
  // Of the current file: its hash so far, and its last piece, which the next one may continue.
  std::unique_ptr<FileHash> hash_ = std::make_unique<FileHash>();
  Piece last_;
};

}  // namespace

StoreResult<PatchInfo> write_patch(const OpenVersion& base, const OpenVersion& next,
                                   const File& patch, const StoreOptions& options,
                                   ProgressMeter& meter) {
  Manifest manifest;
  manifest.is_folder = next.is_folder;
  manifest.sub_folders = next.sub_folders;
  auto base_files = list_version(base, options);
  if (!base_files) return base_files.status();
  manifest.base = std::move(*base_files);
  meter.set_phase("comparing");
  const auto end = Diff(base, next, patch, manifest, meter).run(options.num_threads);
  if (!end) return end.status();
  for (const OpenVersion* version : {&base, &next})
    for (const auto& file : version->files)
      if (StoreStatus s = file->file().check_unchanged(); !s.ok()) return s;
  const auto patch_bytes = write_manifest(patch, manifest, *end);
  if (!patch_bytes) return patch_bytes.status();
  return info_of(manifest, *patch_bytes);
}

}  // namespace snug::store
