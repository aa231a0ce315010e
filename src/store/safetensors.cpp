#include "store/safetensors.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "store/json_reader.h"

namespace snug::store {
namespace {

struct KnownDType {
  const char* name;
  std::uint64_t bits;
  DType dtype;
};

constexpr KnownDType kKnownDTypes[] = {
    {"BF16", 16, DType::kBF16},     {"F16", 16, DType::kF16},
    {"F32", 32, DType::kF32},       {"F64", 64, DType::kF64},
    {"F8_E4M3", 8, DType::kF8E4M3}, {"F8_E4M3FN", 8, DType::kF8E4M3},
    {"F8_E5M2", 8, DType::kF8E5M2}, {"F8_E4M3FNUZ", 8, DType::kF8E4M3},
    {"F8_E8M0", 8, DType::kBytes},  {"F8_E5M2FNUZ", 8, DType::kF8E5M2},
    {"F4", 4, DType::kF4},          {"F6_E2M3", 6, DType::kBytes},
    {"F6_E3M2", 6, DType::kBytes},  {"BOOL", 8, DType::kBool},
    {"U8", 8, DType::kBytes},       {"I8", 8, DType::kI8},
    {"U16", 16, DType::kI16},       {"I16", 16, DType::kI16},
    {"U32", 32, DType::kI32},       {"I32", 32, DType::kI32},
    {"U64", 64, DType::kI64},       {"I64", 64, DType::kI64},
    {"C64", 64, DType::kBytes},
};

static_assert(
    [] {
      for (const DTypeInfo& info : kDTypes) {
        bool named = false;
        for (const KnownDType& known : kKnownDTypes) named |= known.dtype == info.dtype;
        if (!named) return false;
      }
      return true;
    }(),
    "every DType has a name in safetensors files");

const KnownDType* find_dtype(std::string_view name) noexcept {
  for (const KnownDType& known : kKnownDTypes)
    if (name == known.name) return &known;
  return nullptr;
}

Status corrupt(const char* what, std::uint64_t byte, std::uint64_t found = kNowhere,
               std::uint64_t expected = kNowhere) noexcept {
  return {Code::kCorrupt, what, kNowhere, byte, found, expected};
}

bool read_metadata(JsonReader& json, Metadata& metadata) {
  if (json.try_null()) return true;
  if (!json.expect('{')) return false;
  for (bool first = true; json.next_member('}', first);) {
    std::pair<std::string, std::string> item;
    if (!json.read_key(item.first) || !json.read_string(item.second)) return false;
    metadata.push_back(std::move(item));
  }
  return json.ok();
}

// Far more than any framework has; without it a small hostile header could ask
// for any amount of memory.
constexpr std::size_t kMaxDims = 64;

bool read_shape(JsonReader& json, std::vector<std::uint64_t>& shape) {
  if (!json.expect('[')) return false;
  for (bool first = true; json.next_member(']', first);) {
    if (shape.size() == kMaxDims) return json.fail("tensor with more than 64 dimensions");
    shape.emplace_back();
    if (!json.read_uint(shape.back())) return false;
  }
  return json.ok();
}

bool read_slot(JsonReader& json, Slot& slot) {
  if (!json.expect('{')) return false;
  bool has_dtype = false, has_shape = false, has_offsets = false;
  std::string key;
  for (bool first = true; json.next_member('}', first);) {
    if (!json.read_key(key)) return false;
    bool* seen = key == "dtype"          ? &has_dtype
                 : key == "shape"        ? &has_shape
                 : key == "data_offsets" ? &has_offsets
                                         : nullptr;
    if (seen != nullptr && std::exchange(*seen, true)) return json.fail("key given twice");
    if (seen == &has_dtype) {
      if (!json.read_string(slot.dtype)) return false;
    } else if (seen == &has_shape) {
      if (!read_shape(json, slot.shape)) return false;
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
bool bits_of(const Slot& slot, std::uint64_t bits_per_elem, std::uint64_t& bits) noexcept {
  bits = bits_per_elem;
  // A zero dimension makes the product zero, however large the others are.
  if (std::find(slot.shape.begin(), slot.shape.end(), 0) != slot.shape.end())
    return (bits = 0, true);
  for (const std::uint64_t dim : slot.shape)
    if (__builtin_mul_overflow(bits, dim, &bits)) return false;
  return true;
}

Status check_slot(const Slot& slot, std::uint64_t data_bytes, std::uint64_t byte) noexcept {
  if (slot.begin > slot.end)
    return corrupt("data_offsets run backwards", byte, slot.begin, slot.end);
  if (slot.end > data_bytes)
    return corrupt("tensor reaches beyond the end of the file", byte, slot.end, data_bytes);
  const std::uint64_t bits_per_elem = dtype_bits(slot.dtype);
  if (bits_per_elem == 0) return {};
  std::uint64_t bits;
  if (!bits_of(slot, bits_per_elem, bits)) return corrupt("shape too large", byte);
  if (bits % 8 != 0) return corrupt("tensor ends inside a byte", byte, bits);
  if (bits / 8 != slot.num_bytes())
    return corrupt("size does not agree with dtype and shape", byte, slot.num_bytes(), bits / 8);
  return {};
}

StoreStatus blame(Status status, const std::string& tensor) { return {status, {}, tensor}; }

// Data must be covered without holes and overlaps.
StoreStatus check_cover(const Layout& layout) {
  std::uint64_t end = 0;
  for (const Slot& slot : layout.slots) {
    const std::uint64_t at = layout.data_start + slot.begin;
    if (slot.begin < end)
      return blame(corrupt("tensor overlaps the one before it", at, slot.begin, end), slot.name);
    if (slot.begin > end)
      return blame(corrupt("hole before the tensor", at, slot.begin, end), slot.name);
    end = slot.end;
  }
  const std::uint64_t data_bytes = layout.file_bytes - layout.data_start;
  if (end != data_bytes)
    return blame(corrupt("bytes after the last tensor", layout.data_start + end, data_bytes, end),
                 {});
  return {};
}

StoreStatus index_names(Layout& layout) {
  layout.by_name.resize(layout.slots.size());
  std::iota(layout.by_name.begin(), layout.by_name.end(), 0u);
  const auto name = [&layout](std::uint32_t i) -> const std::string& {
    return layout.slots[i].name;
  };
  std::sort(layout.by_name.begin(), layout.by_name.end(),
            [&](std::uint32_t a, std::uint32_t b) { return name(a) < name(b); });
  for (std::size_t i = 1; i < layout.by_name.size(); ++i)
    if (name(layout.by_name[i - 1]) == name(layout.by_name[i]))
      return blame({Code::kCorrupt, "tensor listed twice"}, name(layout.by_name[i]));
  return {};
}

// Sorts a copy: metadata keeps its order for display.
Status check_metadata(const Metadata& metadata, std::uint64_t byte) {
  std::vector<std::string_view> keys;
  for (const auto& item : metadata) keys.push_back(item.first);
  std::sort(keys.begin(), keys.end());
  if (std::adjacent_find(keys.begin(), keys.end()) != keys.end())
    return corrupt("__metadata__ has a key twice", byte);
  return {};
}

}  // namespace

const Slot* Layout::find(std::string_view name) const noexcept {
  const auto at =
      std::lower_bound(by_name.begin(), by_name.end(), name,
                       [this](std::uint32_t i, std::string_view n) { return slots[i].name < n; });
  return at != by_name.end() && slots[*at].name == name ? &slots[*at] : nullptr;
}

const std::string* Layout::find_metadata(std::string_view key) const noexcept {
  for (const auto& item : metadata)
    if (item.first == key) return &item.second;
  return nullptr;
}

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

StoreResult<Layout> parse_layout(std::string_view json_text, std::uint64_t file_bytes) {
  JsonReader json(json_text, kLengthBytes);
  Layout layout;
  layout.data_start = kLengthBytes + json_text.size();
  layout.file_bytes = file_bytes;
  if (json_text.empty() || json_text[0] != '{')
    return blame({Code::kBadMagic, "not a safetensors file: header is no JSON object", kNowhere,
                  kLengthBytes},
                 {});
  json.expect('{');
  std::string key;
  bool has_metadata = false;
  for (bool first = true; json.next_member('}', first);) {
    json.peek();
    const std::uint64_t key_at = json.position();
    if (!json.read_key(key)) break;
    if (key == "__metadata__") {
      if (std::exchange(has_metadata, true)) json.fail("__metadata__ given twice");
      if (!json.ok() || !read_metadata(json, layout.metadata)) break;
      if (Status s = check_metadata(layout.metadata, key_at); !s.ok()) return blame(s, {});
      continue;
    }
    Slot& slot = layout.slots.emplace_back();
    slot.name = std::move(key);
    if (!read_slot(json, slot)) return blame(json.status(), slot.name);
    if (Status s = check_slot(slot, file_bytes - layout.data_start, key_at); !s.ok())
      return blame(s, slot.name);
  }
  if (!json.expect_end()) return blame(json.status(), {});
  std::stable_sort(layout.slots.begin(), layout.slots.end(), [](const Slot& a, const Slot& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  if (StoreStatus s = index_names(layout); !s.ok()) return s;
  if (StoreStatus s = check_cover(layout); !s.ok()) return s;
  return layout;
}

DType dtype_of(std::string_view name) noexcept {
  const KnownDType* known = find_dtype(name);
  return known != nullptr ? known->dtype : DType::kBytes;
}

std::uint64_t dtype_bits(std::string_view name) noexcept {
  const KnownDType* known = find_dtype(name);
  return known != nullptr ? known->bits : 0;
}

}  // namespace snug::store
