#include "store/layout.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <numeric>
#include <tuple>

#include "store/stop.h"

namespace snug::store {
namespace {

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

// The shortest text of a tensor: "":{"dtype":"","shape":[],"data_offsets":[0,0]},
constexpr std::size_t kMinTensorText = 48;

void put_number(std::string& out, std::uint64_t n) {
  for (; n >= 0x80; n >>= 7) out.push_back(static_cast<char>(0x80 | (n & 0x7F)));
  out.push_back(static_cast<char>(n));
}

std::uint64_t take_number(std::string_view& from) noexcept {
  std::uint64_t n = 0;
  for (unsigned shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(from.front());
    from.remove_prefix(1);
    n |= std::uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return n;
  }
}

}  // namespace

std::uint8_t dtype_number(std::string_view name) noexcept {
  for (std::size_t i = 0; i < std::size(kKnownDTypes); ++i)
    if (name == kKnownDTypes[i].name) return static_cast<std::uint8_t>(i + 1);
  return 0;
}

const KnownDType& known_dtype(std::uint8_t number) noexcept {
  assert(number > 0 && number <= std::size(kKnownDTypes));
  return kKnownDTypes[number - 1];
}

std::vector<std::uint64_t> Slot::shape() const {
  std::string_view from = packed_shape;
  std::vector<std::uint64_t> dims(take_number(from));
  for (std::uint64_t& dim : dims) dim = take_number(from);
  return dims;
}

// Reserved memory costs nothing until it is used, and growing would need both old and new.
SlotTable::SlotTable(std::size_t header_bytes) {
  text_.reserve(header_bytes);
  places_.reserve(header_bytes / kMinTensorText + 1);
}

void SlotTable::add(std::string_view dtype, std::span<const std::uint64_t> shape,
                    std::uint64_t begin, std::uint64_t end) {
  assert(dtype.size() <= kMaxDTypeBytes);
  places_.push_back({begin, end, static_cast<std::uint32_t>(open_at_),
                     static_cast<std::uint32_t>(text_.size() - open_at_)});
  const std::uint8_t number = dtype_number(dtype);
  text_.push_back('\0');
  text_.push_back(static_cast<char>(number));
  if (number == 0) {
    text_.push_back(static_cast<char>(dtype.size()));
    text_.append(dtype);
    text_.push_back('\0');
  }
  put_number(text_, shape.size());
  for (const std::uint64_t dim : shape) put_number(text_, dim);
  open_at_ = text_.size();
}

Slot SlotTable::slot(const Place& place) const noexcept {
  std::string_view rest =
      std::string_view(text_).substr(place.name_at + std::size_t{place.name_bytes} + 1);
  const auto number = static_cast<std::uint8_t>(rest.front());
  rest.remove_prefix(1);
  std::string_view dtype;
  if (number != 0) {
    dtype = known_dtype(number).name;
  } else {
    dtype = rest.substr(1, static_cast<unsigned char>(rest.front()));
    rest.remove_prefix(dtype.size() + 2);
  }
  return {name(place), dtype, place.begin, place.end, rest};
}

void SlotTable::sort() {
  const auto before = [](const Place& a, const Place& b) {
    return std::tuple(a.begin, a.end, a.name_at) < std::tuple(b.begin, b.end, b.name_at);
  };
  if (!std::is_sorted(places_.begin(), places_.end(), before)) sort_or_stop(places_, before);
}

std::optional<std::size_t> SlotTable::index_names() {
  by_name_.resize(places_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  const auto name_of = [this](std::uint32_t i) { return name(places_[i]); };
  const auto before = [&](std::uint32_t a, std::uint32_t b) { return name_of(a) < name_of(b); };
  // Frameworks write names in order: millions of them need not be sorted then.
  if (!std::is_sorted(by_name_.begin(), by_name_.end(), before)) sort_or_stop(by_name_, before);
  for (std::size_t i = 1; i < by_name_.size(); ++i)
    if (name_of(by_name_[i - 1]) == name_of(by_name_[i])) return by_name_[i];
  return std::nullopt;
}

std::size_t SlotTable::lower_bound(std::string_view wanted) const noexcept {
  const auto at = std::lower_bound(
      by_name_.begin(), by_name_.end(), wanted,
      [this](std::uint32_t i, std::string_view n) { return name(places_[i]) < n; });
  return static_cast<std::size_t>(at - by_name_.begin());
}

std::optional<std::size_t> SlotTable::find(std::string_view wanted,
                                           std::size_t hint) const noexcept {
  if (hint < places_.size() && name(places_[hint]) == wanted) return hint;
  const std::size_t at = lower_bound(wanted);
  if (at == by_name_.size() || name(places_[by_name_[at]]) != wanted) return std::nullopt;
  return by_name_[at];
}

bool SlotTable::has_prefix(std::string_view prefix) const noexcept {
  const std::size_t at = lower_bound(prefix);
  return at < by_name_.size() && name(places_[by_name_[at]]).starts_with(prefix);
}

std::size_t SlotTable::first_behind(std::uint64_t offset) const noexcept {
  const auto at =
      std::upper_bound(places_.begin(), places_.end(), offset,
                       [](std::uint64_t o, const Place& place) { return o < place.end; });
  return static_cast<std::size_t>(at - places_.begin());
}

void MetadataTable::done() {
  ends_.push_back(static_cast<std::uint32_t>(text_.size()));
  text_.push_back('\0');
}

std::string_view MetadataTable::part(std::size_t idx) const noexcept {
  const std::size_t begin = idx == 0 ? 0 : std::size_t{ends_[idx - 1]} + 1;
  return std::string_view(text_).substr(begin, ends_[idx] - begin);
}

bool MetadataTable::any_twice() const {
  std::vector<std::uint32_t> sorted(size());
  std::iota(sorted.begin(), sorted.end(), 0u);
  const auto key = [this](std::uint32_t i) { return part(2 * std::size_t{i}); };
  sort_or_stop(sorted, [&](std::uint32_t a, std::uint32_t b) { return key(a) < key(b); });
  return std::adjacent_find(sorted.begin(), sorted.end(), [&](std::uint32_t a, std::uint32_t b) {
           return key(a) == key(b);
         }) != sorted.end();
}

std::optional<std::string_view> MetadataTable::find(std::string_view key) const noexcept {
  for (std::size_t i = 0; i < size(); ++i)
    if (part(2 * i) == key) return part(2 * i + 1);
  return std::nullopt;
}

bool MetadataTable::has_prefix(std::string_view prefix) const noexcept {
  for (std::size_t i = 0; i < size(); ++i)
    if (part(2 * i).starts_with(prefix)) return true;
  return false;
}

}  // namespace snug::store
