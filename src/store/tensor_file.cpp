#include "store/tensor_file.h"

#include <zstd.h>

#include <cstring>

namespace snug::store {
namespace {

// zstd never gets beyond this ratio; a larger claim is a lie.
constexpr std::uint64_t kMaxZstdRatio = 1 << 17;

}  // namespace

StoreStatus TensorFile::bad(const char* what, const std::string& detail) const {
  return failure(Code::kCorrupt, what, path(), detail);
}

StoreStatus TensorFile::check_kind(bool expect_compressed) const {
  if (compressed_ == expect_compressed) return {};
  return {compressed_ ? Status{Code::kUsage, "already compressed by Snug"}
                      : Status{Code::kBadMagic, "plain safetensors, not compressed by Snug"},
          path()};
}

StoreStatus TensorFile::blame(std::size_t idx, Status status) const {
  if (status.byte != kNowhere) status.byte += stored_offset(idx);
  return {status, path(), plain().slots[idx].name};
}

StoreResult<std::unique_ptr<TensorFile>> TensorFile::open(const std::string& path) {
  auto opened = File::open(path);
  if (!opened) return opened.status();
  auto self = std::make_unique<TensorFile>();
  self->file_ = std::move(*opened);
  if (StoreStatus s = self->read_layout(); !s.ok()) return s;
  const std::string* format = self->stored_.find_metadata(kFormatKey);
  if (format == nullptr) return self;
  if (*format != kFormatVersion)
    return failure(Code::kUnsupportedVersion, "file format not known to this Snug; update it", path,
                   *format);
  self->compressed_ = true;
  if (StoreStatus s = self->read_plain_header(); !s.ok()) return s;
  if (StoreStatus s = self->match_tensors(); !s.ok()) return s;
  return self;
}

StoreStatus TensorFile::read_layout() {
  if (file_.num_bytes() < kLengthBytes)
    return {{Code::kBadMagic, "not a safetensors file: shorter than 8 bytes", kNowhere, 0,
             file_.num_bytes()},
            path()};
  std::byte length[kLengthBytes];
  if (StoreStatus s = file_.read_at(0, length, sizeof length); !s.ok()) return s;
  const auto json_bytes = check_header_length(length, file_.num_bytes());
  if (!json_bytes) return {json_bytes.status(), path()};
  plain_header_.resize(kLengthBytes + *json_bytes);
  if (StoreStatus s = file_.read_at(0, plain_header_.data(), plain_header_.size()); !s.ok())
    return s;
  auto layout =
      parse_layout(std::string_view(plain_header_).substr(kLengthBytes), file_.num_bytes());
  if (!layout) {
    StoreStatus status = layout.status();
    status.file = path();
    return status;
  }
  stored_ = std::move(*layout);
  return {};
}

// Replaces plain_header_, so far the header of this file, by the original's.
StoreStatus TensorFile::read_plain_header() {
  const std::string* tensor = stored_.find_metadata(kHeaderKey);
  const std::string* size = stored_.find_metadata(kSizeKey);
  const std::string* hash = stored_.find_metadata(kHashKey);
  if (tensor == nullptr || size == nullptr || hash == nullptr)
    return bad("metadata of Snug incomplete", tensor == nullptr ? kHeaderKey
                                              : size == nullptr ? kSizeKey
                                                                : kHashKey);
  recorded_hash_ = *hash;
  const Slot* slot = stored_.find(*tensor);
  if (slot == nullptr) return bad("original header missing", *tensor);
  std::string packed(slot->num_bytes(), '\0');
  const std::uint64_t at = stored_.data_start + slot->begin;
  if (packed.size() > ZSTD_compressBound(kLengthBytes + kMaxHeaderBytes))
    return bad("original header too long");
  if (StoreStatus s = file_.read_at(at, packed.data(), packed.size()); !s.ok()) return s;
  const unsigned long long raw = ZSTD_getFrameContentSize(packed.data(), packed.size());
  if (raw < kLengthBytes || raw > kLengthBytes + kMaxHeaderBytes ||
      raw / kMaxZstdRatio > packed.size())
    return {{Code::kCorrupt, "original header of impossible size", kNowhere, at}, path(), *tensor};
  plain_header_.assign(raw, '\0');
  const std::size_t got = ZSTD_decompress(plain_header_.data(), raw, packed.data(), packed.size());
  if (ZSTD_isError(got) || got != raw)
    return {{Code::kCorrupt, "original header damaged", kNowhere, at}, path(), *tensor};

  std::byte length[kLengthBytes];
  std::memcpy(length, plain_header_.data(), sizeof length);
  const std::uint64_t plain_bytes = std::strtoull(size->c_str(), nullptr, 10);
  if (std::to_string(plain_bytes) != *size || plain_bytes < raw)
    return bad("original size not valid", *size);
  const auto json_bytes = check_header_length(length, plain_bytes);
  if (!json_bytes || *json_bytes != raw - kLengthBytes)
    return bad("original header damaged: length does not match");
  auto layout = parse_layout(std::string_view(plain_header_).substr(kLengthBytes), plain_bytes);
  if (!layout)
    return {{Code::kCorrupt, "original header damaged"},
            path(),
            layout.status().tensor,
            layout.status().status.what};
  original_ = std::move(*layout);
  return {};
}

StoreStatus TensorFile::match_tensors() {
  stored_idx_.reserve(original_.slots.size());
  for (const Slot& slot : original_.slots) {
    const Slot* found = stored_.find(slot.name);
    if (found == nullptr) return {{Code::kCorrupt, "tensor missing"}, path(), slot.name};
    if (found->dtype != "U8")
      return {{Code::kCorrupt, "tensor is no frame: dtype is not U8"}, path(), slot.name};
    stored_idx_.push_back(static_cast<std::uint32_t>(found - stored_.slots.data()));
  }
  // All but the original header must be accounted for.
  if (stored_.slots.size() != original_.slots.size() + 1)
    return bad("tensors that the original header does not list");
  return {};
}

StoreResult<std::shared_ptr<const FrameHead>> TensorFile::load_head(std::size_t idx) const {
  const std::uint64_t at = stored_offset(idx), size = stored_slot(idx).num_bytes();
  auto head = std::make_shared<FrameHead>();
  std::byte first[frame::kHeaderBytes];
  const std::size_t num_first = size < sizeof first ? static_cast<std::size_t>(size) : sizeof first;
  if (StoreStatus s = file_.read_at(at, first, num_first); !s.ok()) return s;
  auto header = frame::read_header({first, num_first});
  if (!header) return blame(idx, header.status());
  if (header->frame_bytes != size)
    return blame(idx, frame::corrupt("frame size does not match the tensor's", 16,
                                     header->frame_bytes, size));
  if (header->raw_bytes() != plain().slots[idx].num_bytes())
    return blame(idx, frame::corrupt("frame holds another number of bytes", 8, header->raw_bytes(),
                                     plain().slots[idx].num_bytes()));
  head->header = *header;
  head->bytes.resize(header->payload_start());
  if (StoreStatus s = file_.read_at(at, head->bytes.data(), head->bytes.size()); !s.ok()) return s;
  if (Status s = frame::check_index(head->header, head->bytes); !s.ok()) return blame(idx, s);
  return std::shared_ptr<const FrameHead>(std::move(head));
}

}  // namespace snug::store
