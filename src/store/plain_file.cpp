#include "store/plain_file.h"

#include <algorithm>
#include <cstring>

#include "store/block_scan.h"
#include "store/file_hash.h"

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
  if (self->compressed()) {
    auto reader = Reader::open(path);
    if (!reader) return reader.status();
    self->reader_ = std::move(*reader);
  }
  return self;
}

StoreStatus PlainFile::read_at(std::uint64_t offset, std::span<std::byte> dst) const {
  if (!compressed()) return file().read_at(offset, dst.data(), dst.size());
  const std::string& header = tensors_->plain_header();
  if (offset < header.size() && !dst.empty()) {
    const std::size_t n = std::min<std::size_t>(dst.size(), header.size() - offset);
    std::memcpy(dst.data(), header.data() + offset, n);
    offset += n;
    dst = dst.subspan(n);
  }
  const Layout& plain = tensors_->plain();
  // The first tensor that ends behind the offset, and those that follow it.
  auto slot = std::upper_bound(
      plain.slots.begin(), plain.slots.end(), offset,
      [&](std::uint64_t at, const Slot& s) { return at < plain.data_start + s.end; });
  for (; !dst.empty() && slot != plain.slots.end(); ++slot) {
    const std::uint64_t first = offset - plain.data_start - slot->begin;
    const auto n =
        static_cast<std::size_t>(std::min<std::uint64_t>(dst.size(), slot->num_bytes() - first));
    const TensorEntry* entry = reader_.find(slot->name);
    if (StoreStatus s = reader_.read_bytes(*entry, first, dst.first(n)); !s.ok()) return s;
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
