#include "store/plain_file.h"

#include <algorithm>
#include <cstring>

#include "store/block_scan.h"
#include "store/file_hash.h"
#include "store/read_tensor.h"

namespace snug::store {

StoreResult<std::unique_ptr<PlainFile>> PlainFile::open(const std::string& path, bool restore) {
  auto self = std::make_unique<PlainFile>();
  auto file = File::open(path);
  if (!file) return file.status();
  self->file_ = std::move(*file);
  self->num_bytes_ = self->file_.num_bytes();
  // What does not parse has no tensors to compare, and is still a file.
  auto tensors = TensorFile::open(path);
  if (!tensors || ((*tensors)->compressed() && !restore)) return self;
  self->tensors_ = std::move(*tensors);
  self->num_bytes_ = self->tensors_->plain().file_bytes;
  return self;
}

StoreStatus PlainFile::read_at(std::uint64_t offset, std::span<std::byte> dst) const {
  if (!compressed()) return file().read_at(offset, dst.data(), dst.size());
  const Layout& plain = tensors_->plain();
  if (offset < plain.data_start && !dst.empty()) {
    const auto n =
        static_cast<std::size_t>(std::min<std::uint64_t>(dst.size(), plain.data_start - offset));
    if (StoreStatus s = tensors_->read_header(offset, dst.first(n)); !s.ok()) return s;
    offset += n;
    dst = dst.subspan(n);
  }
  // The first tensor that ends behind the offset, and those that follow it.
  std::size_t idx = dst.empty() ? 0 : plain.slots.first_behind(offset - plain.data_start);
  for (; !dst.empty() && idx < plain.slots.size(); ++idx) {
    const std::uint64_t first = offset - plain.data_start - plain.slots.begin_of(idx);
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(
        dst.size(), plain.slots.end_of(idx) - plain.slots.begin_of(idx) - first));
    if (StoreStatus s = read_tensor(*tensors_, idx, first, dst.first(n), 1); !s.ok()) return s;
    offset += n;
    dst = dst.subspan(n);
  }
  if (dst.empty()) return {};
  return {{Code::kIo, "file became shorter while it was read", kNowhere, offset}, path()};
}

StoreResult<std::string> PlainFile::hash() const {
  if (compressed()) return tensors_->recorded_hash();
  FileHash hash;
  Buffer buffer;
  for (std::uint64_t at = 0; at < num_bytes_; at += kChunkBytes) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(kChunkBytes, num_bytes_ - at));
    std::byte* bytes = buffer.span(n).data();
    if (StoreStatus s = file().read_at(at, bytes, n); !s.ok()) return s;
    hash.update(bytes, n);
  }
  if (StoreStatus s = file().check_unchanged(); !s.ok()) return s;
  return hash.hex();
}

}  // namespace snug::store
