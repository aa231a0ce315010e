#include "store/plain_file.h"

#include <algorithm>
#include <cstring>

#include "store/file_hash.h"
#include "store/file_jobs.h"

namespace snug::store {
namespace {

constexpr std::string_view kCompressedSuffix = ".snug.safetensors";

// Whether Snug wrote this file, going by its name or by keys that are the first in its header. One
// damaged byte does not hide all of them.
StoreResult<bool> looks_compressed(const File& file) {
  if (file.path().ends_with(kCompressedSuffix)) return true;
  std::string start(std::min<std::uint64_t>(file.num_bytes(), 256), '\0');
  if (StoreStatus s = file.read_at(0, start.data(), start.size()); !s.ok()) return s;
  for (const char* key : {kFormatKey, kSizeKey, kHashKey})
    if (start.find("\"" + std::string(key) + "\":") != std::string::npos) return true;
  return false;
}

}  // namespace

StoreResult<std::unique_ptr<TensorFile>> open_if_tensors(const std::string& path) {
  bool is_safetensors = false;
  auto tensors = TensorFile::open(path, &is_safetensors);
  if (tensors || is_safetensors) return tensors;  // its header was read: no plain bytes
  const Code code = tensors.status().status.code;
  if (code != Code::kBadMagic && code != Code::kCorrupt) return tensors;
  const auto file = File::open(path);
  if (!file) return file.status();
  const auto is_damaged = looks_compressed(*file);
  if (!is_damaged) return is_damaged.status();
  if (!*is_damaged) return std::unique_ptr<TensorFile>();
  StoreStatus status = tensors.status();
  status.status.code = Code::kCorrupt;
  return status;
}

StoreResult<std::string> hash_stored(const File& file, ProgressMeter& meter) {
  FileHash hash;
  Buffer buffer;
  for (std::uint64_t at = 0; at < file.num_bytes(); at += kChunkBytes) {
    const auto n =
        static_cast<std::size_t>(std::min<std::uint64_t>(kChunkBytes, file.num_bytes() - at));
    std::byte* bytes = buffer.span(n).data();
    if (StoreStatus s = file.read_at(at, bytes, n); !s.ok()) return s;
    hash.update(bytes, n);
    if (StoreStatus s = meter.add(n, file.path()); !s.ok()) return s;
  }
  if (StoreStatus s = file.check_unchanged(); !s.ok()) return s;
  return hash.hex();
}

StoreResult<std::unique_ptr<PlainFile>> PlainFile::open(const std::string& path, bool restore,
                                                        const std::shared_ptr<FilePool>& pool) {
  auto self = std::make_unique<PlainFile>();
  auto tensors = restore ? open_if_tensors(path) : TensorFile::open(path);
  const Code code = tensors.status().status.code;
  // Bytes that are taken as they are may be anything, but they must be readable.
  const bool is_bytes = !restore && (code == Code::kBadMagic || code == Code::kCorrupt ||
                                     code == Code::kUnsupportedVersion);
  if (!tensors && !is_bytes) return tensors.status();
  if (tensors && *tensors && (restore || !(*tensors)->compressed())) {
    self->tensors_ = std::move(*tensors);
    self->tensors_->share(pool);
    self->tensors_->forget_metadata();
    self->num_bytes_ = self->tensors_->plain().file_bytes;
    return self;
  }
  auto file = File::open(path);
  if (!file) return file.status();
  self->file_ = std::move(*file);
  self->file_.share(pool);
  self->num_bytes_ = self->file_.num_bytes();
  return self;
}

StoreResult<std::unique_ptr<PlainFile>> PlainFile::open_config(
    const std::string& path, const std::shared_ptr<FilePool>& pool) {
  auto self = open(path, false, pool);
  if (!self) return self;
  const auto mark = find_mark((*self)->file());
  if (!mark) return mark.status();
  if (mark->state == ConfigState::kMarked) {
    (*self)->mark_begin_ = mark->begin;
    (*self)->mark_bytes_ = mark->end - mark->begin;
    (*self)->num_bytes_ -= (*self)->mark_bytes_;
  }
  return self;
}

StoreStatus PlainFile::read_at(std::uint64_t offset, std::span<std::byte> dst) const {
  if (!compressed()) {
    if (offset < mark_begin_) {
      const auto n =
          static_cast<std::size_t>(std::min<std::uint64_t>(dst.size(), mark_begin_ - offset));
      if (StoreStatus s = file().read_at(offset, dst.data(), n); !s.ok()) return s;
      offset += n;
      dst = dst.subspan(n);
    }
    return file().read_at(offset + mark_bytes_, dst.data(), dst.size());
  }
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
    const LoadTarget target{idx, first, dst.first(n)};
    if (StoreStatus s = load_tensors(*tensors_, {&target, 1}, workspaces_, 1); !s.ok()) return s;
    offset += n;
    dst = dst.subspan(n);
  }
  if (dst.empty()) return {};
  return {{Code::kIo, "file became shorter while it was read", kNowhere, offset}, path()};
}

StoreResult<std::string> PlainFile::hash(const StoreOptions& options, ProgressMeter& meter) const {
  if (mark_bytes_ > 0) {
    std::string text(static_cast<std::size_t>(num_bytes_), '\0');
    if (StoreStatus s = read_at(0, std::as_writable_bytes(std::span(text))); !s.ok()) return s;
    if (StoreStatus s = file().check_unchanged(); !s.ok()) return s;
    FileHash hash;
    hash.update(text.data(), text.size());
    return hash.hex();
  }
  if (!compressed()) return hash_stored(file(), meter);
  if (auto verified = verify_file(*tensors_, options, meter); !verified) return verified.status();
  if (StoreStatus s = file().check_unchanged(); !s.ok()) return s;
  return tensors_->recorded_hash();  // which the restored bytes have
}

}  // namespace snug::store
