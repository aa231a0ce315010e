#include "store/tensor_file.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "store/file_hash.h"
#include "store/range_text.h"
#include "store/stop.h"

namespace snug::store {
namespace {

StoreResult<Layout> parse(const ReadRange& read, std::uint64_t json_bytes, std::uint64_t file_bytes,
                          const std::string& path) {
  RangeText text(read, kLengthBytes, kLengthBytes + json_bytes);
  auto layout = parse_layout(text, json_bytes, file_bytes);
  if (!text.status().ok()) return text.status();
  // Tables that were not sorted to the end prove nothing.
  if (StoreStatus s = check_stop(path); !s.ok()) return s;
  return layout;
}

void hash_number(FileHash& hash, std::uint64_t number) { hash.update(&number, sizeof number); }

bool is_number(std::string_view text) noexcept {
  return !text.empty() && text[0] != '0' &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::uint64_t tensor_tie(const Slot& slot, std::span<const std::byte> start) {
  FileHash hash;
  for (const std::string_view text : {slot.name, slot.dtype}) {
    hash_number(hash, text.size());
    hash.update(text.data(), text.size());
  }
  const std::vector<std::uint64_t> shape = slot.shape();
  hash_number(hash, shape.size());
  for (const std::uint64_t dim : shape) hash_number(hash, dim);
  hash.update(start.data(), start.size());
  const std::array<unsigned char, kHashBytes> bytes = hash.bytes();
  std::uint64_t tie;
  std::memcpy(&tie, bytes.data(), kTieBytes);
  return tie;
}

StoreStatus TensorFile::bad(const char* what, std::string_view detail) const {
  return failure(Code::kCorrupt, what, path(), std::string(detail));
}

StoreStatus TensorFile::check_kind(bool expect_compressed) const {
  if (compressed_ == expect_compressed) return {};
  return {compressed_ ? Status{Code::kUsage, "already compressed by Snug"}
                      : Status{Code::kBadMagic, "plain safetensors, not compressed by Snug"},
          path()};
}

StoreStatus TensorFile::blame(std::size_t idx, Status status) const {
  if (status.byte != kNowhere) status.byte += stored_offset(idx);
  return {status, path(), std::string(plain_.slots[idx].name)};
}

StoreResult<std::unique_ptr<TensorFile>> TensorFile::open(const std::string& path,
                                                          bool* is_safetensors) {
  auto opened = File::open(path);
  if (!opened) return opened.status();
  auto self = std::make_unique<TensorFile>();
  self->file_ = std::move(*opened);
  auto stored = self->read_layout();
  if (!stored) return stored.status();
  if (is_safetensors != nullptr) *is_safetensors = true;
  if (StoreStatus s = self->find_mark(*stored); !s.ok()) return s;
  if (!self->compressed_) {
    self->plain_ = std::move(*stored);
    return self;
  }
  if (StoreStatus s = self->read_original(*stored); !s.ok()) return s;
  if (StoreStatus s = self->match_tensors(*stored); !s.ok()) return s;
  return self;
}

StoreResult<Layout> TensorFile::read_layout() const {
  if (file_.num_bytes() < kLengthBytes)
    return StoreStatus{{Code::kBadMagic, "not a safetensors file: shorter than 8 bytes", kNowhere,
                        0, file_.num_bytes()},
                       path()};
  std::byte length[kLengthBytes];
  if (StoreStatus s = file_.read_at(0, length, sizeof length); !s.ok()) return s;
  const auto json_bytes = check_header_length(length, file_.num_bytes());
  if (!json_bytes) return StoreStatus{json_bytes.status(), path()};
  const ReadRange read = [this](std::uint64_t offset, std::span<std::byte> dst) {
    return file_.read_at(offset, dst.data(), dst.size());
  };
  auto layout = parse(read, *json_bytes, file_.num_bytes(), path());
  if (layout) return layout;
  StoreStatus status = layout.status();
  status.file = path();
  return status;
}

// One damaged bit must not turn a compressed file into a plain one full of frames, so all that it
// has and plain files lack is asked for.
StoreStatus TensorFile::find_mark(const Layout& stored) {
  const auto format = stored.metadata.find(kFormatKey);
  if (!format) {
    if (stored.metadata.has_prefix(kKeyPrefix) || stored.slots.has_prefix(kTensorPrefix))
      return bad(
          "names that Snug reserves (snug., __snug__.), but not its mark: damaged, or not "
          "made by Snug",
          kFormatKey);
    return {};
  }
  if (!is_number(*format)) return bad("damaged: the format is no number", *format);
  if (*format != kFormatVersion)
    return failure(Code::kUnsupportedVersion, "file format not known to this Snug; update it",
                   path(), std::string(*format));
  compressed_ = true;
  return {};
}

// Ties and header of the original, which fill one tensor. Frees the metadata of `stored`: that of
// the original may take as much memory again.
StoreStatus TensorFile::read_original(Layout& stored) {
  const auto found_size = stored.metadata.find(kSizeKey), hash = stored.metadata.find(kHashKey);
  if (!found_size || !hash)
    return bad("metadata of Snug incomplete", !found_size ? kSizeKey : kHashKey);
  const std::string size(*found_size);
  recorded_hash_ = *hash;
  forget(stored.metadata);
  const auto idx = stored.slots.find(kHeaderTensor);
  if (!idx || stored.slots[*idx].dtype != "U8")
    return bad("original header missing", kHeaderTensor);
  const std::uint64_t begin = stored.data_start + stored.slots.begin_of(*idx),
                      end = stored.data_start + stored.slots.end_of(*idx);
  // Counted before memory is taken: the other tensors have taken up as much of the file's header.
  const std::uint64_t num_tensors = stored.slots.size() - 1;
  if (end - begin < num_tensors * kTieBytes) return bad("original header missing", kHeaderTensor);
  ties_.resize(num_tensors);
  if (StoreStatus s = file_.read_at(begin, ties_.data(), num_tensors * kTieBytes); !s.ok())
    return s;
  if (StoreStatus s = packed_.open(file_, begin + num_tensors * kTieBytes, end); !s.ok()) return s;

  const std::uint64_t plain_bytes = std::strtoull(size.c_str(), nullptr, 10);
  if (std::to_string(plain_bytes) != size || plain_bytes < packed_.num_bytes())
    return bad("original size not valid", size);
  const ReadRange read = [this](std::uint64_t offset, std::span<std::byte> dst) {
    return packed_.read(file_, offset, dst);
  };
  std::byte length[kLengthBytes];
  if (StoreStatus s = read(0, length); !s.ok()) return s;
  const auto json_bytes = check_header_length(length, plain_bytes);
  if (!json_bytes || *json_bytes != packed_.num_bytes() - kLengthBytes)
    return bad("original header damaged: length does not match");
  auto layout = parse(read, *json_bytes, plain_bytes, path());
  if (!layout) {
    const StoreStatus& status = layout.status();
    if (!status.file.empty()) return status;  // it could not be read
    return {{Code::kCorrupt, "original header damaged"}, path(), status.tensor, status.status.what};
  }
  plain_ = std::move(*layout);
  if (plain_.metadata.has_prefix(kKeyPrefix) || plain_.slots.has_prefix(kTensorPrefix))
    return bad("original header damaged: it uses names that Snug reserves");
  return {};
}

StoreStatus TensorFile::match_tensors(const Layout& stored) {
  // All but the original header must be accounted for.
  if (stored.slots.size() != plain_.slots.size() + 1)
    return bad("tensors that the original header does not list, or fewer");
  stored_.reserve(plain_.slots.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < plain_.slots.size(); ++i) {
    const Slot slot = plain_.slots[i];
    const auto fail = [&](const char* what) -> StoreStatus {
      return {{Code::kCorrupt, what}, path(), std::string(slot.name)};
    };
    if (StoreStatus s = check_stop(path()); !s.ok()) return s;
    const auto idx = stored.slots.find(slot.name, next);
    if (!idx) return fail("tensor missing");
    next = *idx + 1;
    const Slot found = stored.slots[*idx];
    stored_.push_back({stored.data_start + found.begin, found.num_bytes()});
    if (is_frame(i)) {
      if (found.dtype != "U8") return fail("tensor is no frame: dtype is not U8");
    } else if (found.dtype != slot.dtype || found.shape() != slot.shape()) {
      return fail("dtype or shape is not the original's");
    }
  }
  return {};
}

StoreStatus TensorFile::read_header(std::uint64_t offset, std::span<std::byte> dst) const {
  return compressed_ ? packed_.read(file_, offset, dst)
                     : file_.read_at(offset, dst.data(), dst.size());
}

StoreStatus TensorFile::check_tie(std::size_t idx, std::span<const std::byte> start) const {
  if (tensor_tie(plain_.slots[idx], start) == ties_[idx]) return {};
  return blame(idx, frame::corrupt("not the bytes that were stored under this name", 0));
}

StoreStatus TensorFile::read_unframed(std::size_t idx, std::uint64_t first,
                                      std::span<std::byte> dst) const {
  if (!compressed_) return file_.read_at(stored_offset(idx) + first, dst.data(), dst.size());
  std::byte all[kMaxKeptBytes];
  const auto num_bytes = static_cast<std::size_t>(raw_bytes(idx));
  if (StoreStatus s = file_.read_at(stored_offset(idx), all, num_bytes); !s.ok()) return s;
  if (StoreStatus s = check_tie(idx, {all, num_bytes}); !s.ok()) return s;
  if (!dst.empty()) std::memcpy(dst.data(), all + first, dst.size());
  return {};
}

}  // namespace snug::store
