// Reader: any tensor, or part of one, out of a plain or compressed file.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <new>

#include "store/block_scan.h"
#include "store/load_tensors.h"
#include "store/tensor_file.h"
#include "store/value_stats.h"

namespace snug {
namespace {

using namespace store;
using frame::failure;

const StoreStatus kNoMemory{{Code::kInternal, "out of memory"}};

// Counters of tensors in progress; a tensor's are dropped when it is complete.
class StatsCollector {
 public:
  StatsCollector(const Layout& plain, const StatsVisit& visit) : plain_(plain), visit_(visit) {}

  void add(const Chunk& chunk) {
    const Slot slot = plain_.slots[chunk.tensor_idx];
    const DType dtype = dtype_of(slot.dtype);
    ValueCounter counter(dtype);
    counter.add(chunk.raw);
    const std::lock_guard lock(mutex_);
    if (chunk.first && chunk.last) return visit_(chunk.tensor_idx, counter.stats());
    ValueCounter& sum = open_.try_emplace(chunk.tensor_idx, dtype).first->second;
    sum.merge(counter);
    if (sum.num_bytes() < slot.num_bytes()) return;
    visit_(chunk.tensor_idx, sum.stats());
    open_.erase(chunk.tensor_idx);
  }

 private:
  const Layout& plain_;
  const StatsVisit& visit_;
  std::mutex mutex_;
  std::map<std::size_t, ValueCounter> open_;
};

}  // namespace

struct Reader::Impl {
  std::unique_ptr<TensorFile> file;
  mutable WorkspacePool workspaces = {};

  const Layout& plain() const noexcept { return file->plain(); }
  StoreStatus not_found(const TensorEntry& entry) const {
    return {{Code::kNotFound, "no such tensor"}, file->path(), entry.name};
  }
};

const TensorFile& store::file_of(const Reader& reader) noexcept { return *reader.impl_->file; }

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
  return Reader(std::move(impl));
} catch (const std::bad_alloc&) {
  return kNoMemory;
}

bool Reader::compressed() const noexcept { return impl_->file->compressed(); }
const std::string& Reader::path() const noexcept { return impl_->file->path(); }
std::uint64_t Reader::raw_bytes() const noexcept { return impl_->file->plain().file_bytes; }
std::uint64_t Reader::stored_bytes() const noexcept { return impl_->file->file().num_bytes(); }
TensorList Reader::tensors() const noexcept { return TensorList(*this); }
std::size_t Reader::num_tensors() const noexcept { return impl_->plain().slots.size(); }
std::size_t Reader::num_metadata() const noexcept { return impl_->plain().metadata.size(); }
std::pair<std::string_view, std::string_view> Reader::metadata(std::size_t idx) const noexcept {
  return impl_->plain().metadata[idx];
}

TensorEntry Reader::tensor(std::size_t idx) const {
  const Slot slot = impl_->plain().slots[idx];
  return {std::string(slot.name),
          std::string(slot.dtype),
          dtype_of(slot.dtype),
          slot.shape(),
          slot.num_bytes(),
          impl_->file->stored_bytes(idx),
          impl_->file->stored_offset(idx),
          idx};
}

std::optional<TensorEntry> Reader::find(std::string_view name) const {
  const auto idx = impl_->plain().slots.find(name);
  return idx ? std::optional(tensor(*idx)) : std::nullopt;
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
  const auto idx = impl_->plain().slots.find(tensor.name);
  if (!idx) return impl_->not_found(tensor);
  const std::uint64_t total = impl_->plain().slots[*idx].num_bytes();
  if (first > total || dst.size() > total - first)
    return {failure(Code::kUsage, "range outside the tensor", first + dst.size(), total), path(),
            tensor.name};
  const LoadTarget target{*idx, first, dst};
  return load_tensors(*impl_->file, {&target, 1}, impl_->workspaces, num_threads);
} catch (const std::bad_alloc&) {
  return kNoMemory;
}

StoreStatus Reader::read_all(std::span<const TensorTarget> targets, int num_threads) const noexcept
    try {
  auto checked = whole_tensors(*impl_->file, targets);
  if (!checked) return checked.status();
  return load_tensors(*impl_->file, *checked, impl_->workspaces, num_threads);
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
  const auto idx = impl_->plain().slots.find(tensor.name);
  if (!idx) return impl_->not_found(tensor);
  if (!compressed())
    return StoreStatus{{Code::kUsage, "plain file: no frames in it"}, path(), tensor.name};
  if (!impl_->file->is_frame(*idx)) return FrameStats{};
  auto head = impl_->file->load_head(*idx);
  if (!head) return head.status();
  return (*head)->stats;
} catch (const std::bad_alloc&) {
  return kNoMemory;
}

StoreStatus Reader::visit_stats(const StatsVisit& visit,
                                const StoreOptions& options) const noexcept {
  return guarded([&]() -> StoreStatus {
    StatsCollector collector(impl_->plain(), visit);
    std::uint64_t total = impl_->plain().file_bytes - impl_->plain().data_start;
    ProgressMeter meter(options, total, 1);
    meter.set_phase("reading");
    return scan_tensors(*impl_->file, options.num_threads, 0, meter,
                        [&](const Chunk& chunk, codec::Turnstile&, codec::Workspace&) {
                          collector.add(chunk);
                          return StoreStatus{};
                        });
  });
}

StoreResult<std::vector<TensorStats>> Reader::stats(const StoreOptions& options) const noexcept {
  return guarded([&]() -> StoreResult<std::vector<TensorStats>> {
    std::vector<TensorStats> all(num_tensors());
    StoreStatus status =
        visit_stats([&](std::size_t idx, const TensorStats& stats) { all[idx] = stats; }, options);
    if (!status.ok()) return status;
    return all;
  });
}

}  // namespace snug
