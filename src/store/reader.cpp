// Reader: any tensor, or part of one, out of a plain or compressed file.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <new>

#include "store/block_scan.h"
#include "store/tensor_file.h"
#include "store/value_stats.h"

namespace snug {
namespace {

using namespace store;
using frame::failure;

const StoreStatus kNoMemory{{Code::kInternal, "out of memory"}};

// The bytes [first, first + dst.size()) of one tensor, a few blocks at a time.
class RangeRead {
 public:
  RangeRead(const TensorFile& file, std::size_t idx, std::uint64_t first, std::span<std::byte> dst)
      : file_(file), idx_(idx), first_(first), dst_(dst.data()), end_(first + dst.size()) {}

  StoreStatus run(int num_threads) {
    if (file_.compressed()) {
      auto head = file_.load_head(idx_);
      if (!head) return head.status();
      head_ = std::move(*head);
      const std::uint64_t block_bytes = head_->header.block_bytes();
      step_ = std::max<std::uint64_t>(1, kChunkBytes / block_bytes) * block_bytes;
    }
    next_ = first_ / step_;
    const std::uint64_t num_steps = (end_ + step_ - 1) / step_ - next_;
    return workers_.run(codec::thread_count(store_threads(num_threads), num_steps),
                        [this] { return work(); });
  }

 private:
  StoreStatus work() {
    const std::unique_ptr<codec::Workspace> workspace(file_.compressed() ? new codec::Workspace
                                                                         : nullptr);
    Buffer payload, partial;
    for (std::uint64_t i; !workers_.failed() && (i = next_.fetch_add(1)) * step_ < end_;) {
      const std::uint64_t from = std::max(first_, i * step_), to = std::min(end_, (i + 1) * step_);
      StoreStatus status =
          file_.compressed()
              ? decode(from, to, payload, partial, *workspace)
              : file_.file().read_at(file_.stored_offset(idx_) + from, dst_ + (from - first_),
                                     static_cast<std::size_t>(to - from));
      if (!status.ok()) return status;
    }
    return {};
  }

  StoreStatus decode(std::uint64_t from, std::uint64_t to, Buffer& payload, Buffer& partial,
                     codec::Workspace& workspace) {
    const frame::Header& header = head_->header;
    const std::uint64_t block_bytes = header.block_bytes();
    const std::uint64_t blocks_end = header.num_elems * elem_bytes(header.dtype);
    std::byte* out = dst_ + (from - first_);
    if (to > blocks_end) {  // the tail of less than an element
      const std::uint64_t tail_from = std::max(from, blocks_end);
      std::memcpy(out + (tail_from - from), header.tail + (tail_from - blocks_end),
                  static_cast<std::size_t>(to - tail_from));
      to = blocks_end;
      if (from >= to) return {};
    }
    const std::uint64_t block = from / block_bytes,
                        block_end = (to + block_bytes - 1) / block_bytes;
    const std::uint64_t covered_from = block * block_bytes,
                        covered_to = std::min(block_end * block_bytes, blocks_end);
    if (covered_from == from && covered_to == to)
      return read_blocks(file_, idx_, *head_, block, block_end - block, out, payload, workspace);
    std::byte* all = partial.span(static_cast<std::size_t>(covered_to - covered_from)).data();
    if (StoreStatus s =
            read_blocks(file_, idx_, *head_, block, block_end - block, all, payload, workspace);
        !s.ok())
      return s;
    std::memcpy(out, all + (from - covered_from), static_cast<std::size_t>(to - from));
    return {};
  }

  const TensorFile& file_;
  const std::size_t idx_;
  const std::uint64_t first_;
  std::byte* const dst_;
  const std::uint64_t end_;
  std::shared_ptr<const FrameHead> head_;
  std::uint64_t step_ = kChunkBytes;
  std::atomic<std::uint64_t> next_{0};
  Workers workers_;
};

// Counters of tensors in progress; a tensor's are dropped when it is complete.
class StatsCollector {
 public:
  explicit StatsCollector(const Layout& plain) : plain_(plain), stats_(plain.slots.size()) {}

  void add(const Chunk& chunk) {
    const Slot& slot = plain_.slots[chunk.tensor_idx];
    ValueCounter counter(dtype_of(slot.dtype));
    counter.add(chunk.raw);
    const std::lock_guard lock(mutex_);
    ValueCounter& sum = open_.try_emplace(chunk.tensor_idx, dtype_of(slot.dtype)).first->second;
    sum.merge(counter);
    if (sum.num_bytes() < slot.num_bytes()) return;
    stats_[chunk.tensor_idx] = sum.stats();
    open_.erase(chunk.tensor_idx);
  }
  std::vector<TensorStats> take() { return std::move(stats_); }

 private:
  const Layout& plain_;
  std::mutex mutex_;
  std::map<std::size_t, ValueCounter> open_;
  std::vector<TensorStats> stats_;
};

}  // namespace

struct Reader::Impl {
  std::unique_ptr<TensorFile> file;
  std::vector<TensorEntry> entries;

  // The entry's place among ours, or npos; entries may be copies.
  static constexpr std::size_t npos = ~std::size_t{0};
  std::size_t index_of(std::string_view name) const noexcept {
    const Slot* slot = file->plain().find(name);
    return slot == nullptr ? npos : static_cast<std::size_t>(slot - file->plain().slots.data());
  }
  StoreStatus not_found(const TensorEntry& entry) const {
    return {{Code::kNotFound, "no such tensor"}, file->path(), entry.name};
  }
};

Reader::Reader() noexcept = default;
Reader::Reader(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Reader::Reader(Reader&&) noexcept = default;
Reader& Reader::operator=(Reader&&) noexcept = default;
Reader::~Reader() = default;

StoreResult<Reader> Reader::open(const std::string& path) noexcept try {
  auto file = TensorFile::open(path);
  if (!file) return file.status();
  auto impl = std::make_unique<Impl>();
  impl->file = std::move(*file);
  const Layout& plain = impl->file->plain();
  for (std::size_t i = 0; i < plain.slots.size(); ++i) {
    const Slot& slot = plain.slots[i];
    impl->entries.push_back({slot.name, slot.dtype, dtype_of(slot.dtype), slot.shape,
                             slot.num_bytes(), impl->file->stored_slot(i).num_bytes(),
                             impl->file->stored_offset(i)});
  }
  return Reader(std::move(impl));
} catch (const std::bad_alloc&) {
  return kNoMemory;
}

bool Reader::compressed() const noexcept { return impl_->file->compressed(); }
const std::string& Reader::path() const noexcept { return impl_->file->path(); }
std::uint64_t Reader::raw_bytes() const noexcept { return impl_->file->plain().file_bytes; }
std::uint64_t Reader::stored_bytes() const noexcept { return impl_->file->file().num_bytes(); }
std::span<const TensorEntry> Reader::tensors() const noexcept { return impl_->entries; }
std::span<const std::pair<std::string, std::string>> Reader::metadata() const noexcept {
  return impl_->file->plain().metadata;
}

const TensorEntry* Reader::find(std::string_view name) const noexcept {
  const std::size_t idx = impl_->index_of(name);
  return idx == Impl::npos ? nullptr : &impl_->entries[idx];
}

StoreStatus Reader::read(const TensorEntry& tensor, std::span<std::byte> dst,
                         int num_threads) const noexcept {
  if (dst.size() != tensor.raw_bytes)
    return {
        failure(Code::kUsage, "buffer is not as large as the tensor", dst.size(), tensor.raw_bytes),
        path(), tensor.name};
  return read_bytes(tensor, 0, dst, num_threads);
}

StoreStatus Reader::read_bytes(const TensorEntry& tensor, std::uint64_t first,
                               std::span<std::byte> dst, int num_threads) const noexcept try {
  const std::size_t idx = impl_->index_of(tensor.name);
  if (idx == Impl::npos) return impl_->not_found(tensor);
  const std::uint64_t total = impl_->entries[idx].raw_bytes;
  if (first > total || dst.size() > total - first)
    return {failure(Code::kUsage, "range outside the tensor", first + dst.size(), total), path(),
            tensor.name};
  if (dst.empty()) return {};
  return RangeRead(*impl_->file, idx, first, dst).run(num_threads);
} catch (const std::bad_alloc&) {
  return kNoMemory;
}

StoreResult<std::pair<std::uint64_t, std::uint64_t>> Reader::row_bytes(
    const TensorEntry& tensor, std::uint64_t first_row, std::uint64_t last_row) const noexcept try {
  const std::uint64_t num_rows = tensor.num_rows();
  if (first_row > last_row)
    return StoreStatus{{Code::kUsage, "the rows end before they start"}, path(), tensor.name};
  if (last_row > num_rows)
    return StoreStatus{failure(Code::kUsage, "rows outside the tensor", last_row, num_rows), path(),
                       tensor.name};
  if (num_rows == 0) return std::pair{std::uint64_t{0}, std::uint64_t{0}};
  if (tensor.raw_bytes % num_rows != 0)
    return StoreStatus{
        {Code::kUsage, "rows of this tensor are no whole bytes"}, path(), tensor.name};
  const std::uint64_t row = tensor.raw_bytes / num_rows;
  return std::pair{first_row * row, (last_row - first_row) * row};
} catch (const std::bad_alloc&) {
  return kNoMemory;
}

StoreResult<FrameStats> Reader::frame_stats(const TensorEntry& tensor) const noexcept try {
  const std::size_t idx = impl_->index_of(tensor.name);
  if (idx == Impl::npos) return impl_->not_found(tensor);
  if (!compressed())
    return StoreStatus{{Code::kUsage, "plain file: no frames in it"}, path(), tensor.name};
  auto head = impl_->file->load_head(idx);
  if (!head) return head.status();
  return (*head)->reader().stats();
} catch (const std::bad_alloc&) {
  return kNoMemory;
}

StoreResult<std::vector<TensorStats>> Reader::stats(const StoreOptions& options) const noexcept
    try {
  StatsCollector collector(impl_->file->plain());
  std::uint64_t total = 0;
  for (const TensorEntry& entry : impl_->entries) total += entry.raw_bytes;
  ProgressMeter meter(options, total, 1);
  meter.set_phase("reading");
  const Visit visit = [&](const Chunk& chunk, codec::Turnstile&, codec::Workspace&) {
    collector.add(chunk);
    return StoreStatus{};
  };
  if (StoreStatus s = scan_tensors(*impl_->file, options.num_threads, 0, meter, visit); !s.ok())
    return s;
  return collector.take();
} catch (const std::bad_alloc&) {
  return kNoMemory;
}

}  // namespace snug
