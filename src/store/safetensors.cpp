#include "store/safetensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace snug::store {
namespace {

// Far more than any framework has; without it a small hostile header could ask for any amount of
// memory.
constexpr std::size_t kMaxDims = 64;
constexpr std::size_t kMaxNameBytes = std::size_t{64} << 10;

Status corrupt(const char* what, std::uint64_t byte, std::uint64_t found = kNowhere,
               std::uint64_t expected = kNowhere) noexcept {
  return {Code::kCorrupt, what, kNowhere, byte, found, expected};
}

StoreStatus blame(Status status, std::string_view tensor) {
  return {status, {}, std::string(tensor)};
}

// One tensor while it is read.
struct OpenSlot {
  std::string dtype;
  std::uint64_t shape[kMaxDims];
  std::size_t num_dims = 0;
  std::uint64_t begin = 0, end = 0;

  std::span<const std::uint64_t> dims() const noexcept { return {shape, num_dims}; }
};

bool read_metadata(JsonReader& json, MetadataTable& metadata) {
  if (json.try_null()) return true;
  if (!json.expect('{')) return false;
  for (bool first = true; json.next_member('}', first);) {
    if (metadata.size() == kMaxMetadata) return json.fail("more than a million metadata entries");
    if (!json.append_string(metadata.text()) || !json.expect(':')) return false;
    metadata.done();
    if (!json.append_string(metadata.text())) return false;
    metadata.done();
  }
  if (!json.ok()) return false;
  return !metadata.any_twice() || json.fail("__metadata__ has a key twice");
}

bool read_shape(JsonReader& json, OpenSlot& slot) {
  if (!json.expect('[')) return false;
  slot.num_dims = 0;
  for (bool first = true; json.next_member(']', first);) {
    if (slot.num_dims == kMaxDims) return json.fail("tensor with more than 64 dimensions");
    if (!json.read_uint(slot.shape[slot.num_dims++])) return false;
  }
  return json.ok();
}

bool read_slot(JsonReader& json, OpenSlot& slot) {
  if (!json.expect('{')) return false;
  bool has_dtype = false, has_shape = false, has_offsets = false;
  std::string key;
  for (bool first = true; json.next_member('}', first);) {
    if (!json.read_short_key(key)) return false;
    bool* seen = key == "dtype"          ? &has_dtype
                 : key == "shape"        ? &has_shape
                 : key == "data_offsets" ? &has_offsets
                                         : nullptr;
    if (seen != nullptr && std::exchange(*seen, true)) return json.fail("key given twice");
    if (seen == &has_dtype) {
      if (!json.read_short(slot.dtype)) return false;
      if (slot.dtype.size() > kMaxDTypeBytes) return json.fail("dtype of more than 255 bytes");
    } else if (seen == &has_shape) {
      if (!read_shape(json, slot)) return false;
    } else if (seen == &has_offsets) {
      if (!json.expect('[') || !json.read_uint(slot.begin) || !json.expect(',') ||
          !json.read_uint(slot.end) || !json.expect(']'))
        return false;
    } else if (!json.skip_value()) {
      return false;
    }
  }
  if (json.ok() && !(has_dtype && has_shape && has_offsets))
    return json.fail("tensor without dtype, shape or data_offsets");
  return json.ok();
}

// False on overflow.
bool bits_of(std::span<const std::uint64_t> shape, std::uint64_t bits_per_elem,
             std::uint64_t& bits) noexcept {
  bits = bits_per_elem;
  // A zero dimension makes the product zero, however large the others are.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return (bits = 0, true);
  for (const std::uint64_t dim : shape)
    if (__builtin_mul_overflow(bits, dim, &bits)) return false;
  return true;
}

Status check_slot(const OpenSlot& slot, std::uint64_t data_bytes, std::uint64_t byte) noexcept {
  if (slot.begin > slot.end)
    return corrupt("data_offsets run backwards", byte, slot.begin, slot.end);
  if (slot.end > data_bytes)
    return corrupt("tensor reaches beyond the end of the file", byte, slot.end, data_bytes);
  const std::uint64_t bits_per_elem = dtype_bits(slot.dtype);
  if (bits_per_elem == 0) return {};
  std::uint64_t bits;
  if (!bits_of(slot.dims(), bits_per_elem, bits)) return corrupt("shape too large", byte);
  if (bits % 8 != 0) return corrupt("tensor ends inside a byte", byte, bits);
  if (bits / 8 != slot.end - slot.begin)
    return corrupt("size does not agree with dtype and shape", byte, slot.end - slot.begin,
                   bits / 8);
  return {};
}

// Data must be covered without holes and overlaps.
StoreStatus check_cover(const Layout& layout) {
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < layout.slots.size(); ++i) {
    const std::uint64_t begin = layout.slots.begin_of(i), at = layout.data_start + begin;
    if (begin < end)
      return blame(corrupt("tensor overlaps the one before it", at, begin, end),
                   layout.slots[i].name);
    if (begin > end)
      return blame(corrupt("hole before the tensor", at, begin, end), layout.slots[i].name);
    end = layout.slots.end_of(i);
  }
  const std::uint64_t data_bytes = layout.file_bytes - layout.data_start;
  if (end != data_bytes)
    return blame(corrupt("bytes after the last tensor", layout.data_start + end, data_bytes, end),
                 {});
  return {};
}

// Everything but the order of the tensors.
StoreStatus read_members(JsonReader& json, Layout& layout) {
  if (json.peek() != '{' || json.position() != kLengthBytes)
    return blame({Code::kBadMagic, "not a safetensors file: header is no JSON object", kNowhere,
                  kLengthBytes},
                 {});
  json.expect('{');
  OpenSlot slot;
  bool has_metadata = false;
  for (bool first = true; json.next_member('}', first);) {
    json.peek();
    const std::uint64_t key_at = json.position();
    if (!json.append_string(layout.slots.text()) || !json.expect(':')) break;
    if (layout.slots.open_name() == "__metadata__") {
      layout.slots.drop_name();
      if (std::exchange(has_metadata, true)) json.fail("__metadata__ given twice");
      if (!json.ok() || !read_metadata(json, layout.metadata)) break;
      continue;
    }
    if (layout.slots.open_name().size() > kMaxNameBytes) {
      json.fail("tensor with a name of more than 64 KiB");
      break;
    }
    if (!read_slot(json, slot)) return blame(json.status(), layout.slots.open_name());
    if (Status s = check_slot(slot, layout.file_bytes - layout.data_start, key_at); !s.ok())
      return blame(s, layout.slots.open_name());
    layout.slots.add(slot.dtype, slot.dims(), slot.begin, slot.end);
  }
  return json.expect_end() ? StoreStatus{} : blame(json.status(), {});
}

StoreResult<Layout> parse(JsonReader json, std::uint64_t json_bytes, std::uint64_t file_bytes) {
  Layout layout;
  layout.slots = SlotTable(json_bytes);
  layout.metadata = MetadataTable(json_bytes);
  layout.data_start = kLengthBytes + json_bytes;
  layout.file_bytes = file_bytes;
  if (StoreStatus s = read_members(json, layout); !s.ok()) return s;
  layout.slots.sort();
  if (const auto twice = layout.slots.index_names())
    return blame({Code::kCorrupt, "tensor listed twice"}, layout.slots[*twice].name);
  if (StoreStatus s = check_cover(layout); !s.ok()) return s;
  return layout;
}

}  // namespace

Result<std::uint64_t> check_header_length(std::span<const std::byte, kLengthBytes> length,
                                          std::uint64_t file_bytes) noexcept {
  std::uint64_t json_bytes;
  std::memcpy(&json_bytes, length.data(), sizeof json_bytes);
  if (json_bytes > kMaxHeaderBytes)
    return Status{Code::kBadMagic, "not a safetensors file: header too long",
                  kNowhere,        0,
                  json_bytes,      kMaxHeaderBytes};
  if (json_bytes > file_bytes - kLengthBytes)
    return corrupt("file ends inside its header", file_bytes, file_bytes,
                   kLengthBytes + json_bytes);
  return json_bytes;
}

StoreResult<Layout> parse_layout(TextSource& source, std::uint64_t json_bytes,
                                 std::uint64_t file_bytes) {
  return parse(JsonReader(source, kLengthBytes), json_bytes, file_bytes);
}

StoreResult<Layout> parse_layout(std::string_view json, std::uint64_t file_bytes) {
  return parse(JsonReader(json, kLengthBytes), json.size(), file_bytes);
}

DType dtype_of(std::string_view name) noexcept {
  const std::uint8_t number = dtype_number(name);
  return number != 0 ? known_dtype(number).dtype : DType::kBytes;
}

std::uint64_t dtype_bits(std::string_view name) noexcept {
  const std::uint8_t number = dtype_number(name);
  return number != 0 ? known_dtype(number).bits : 0;
}

}  // namespace snug::store
