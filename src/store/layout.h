// store/layout.h - what a safetensors header says, in less memory than its text takes.
//
// Names, dtypes and shapes of all tensors are packed into one string, so that a header of 100 MB
// with two million tensors fits beside its threads. Views into it are made on request.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "snug/tensor.h"

namespace snug::store {

// One tensor; valid as long as the table it comes from.
struct Slot {
  std::string_view name;             // a zero byte follows
  std::string_view dtype;            // a zero byte follows
  std::uint64_t begin = 0, end = 0;  // bytes from the start of the data
  std::string_view packed_shape = {};

  std::uint64_t num_bytes() const noexcept { return end - begin; }
  std::vector<std::uint64_t> shape() const;
};

inline constexpr std::size_t kMaxDTypeBytes = 255;

// The tensors of a header. Filled in the order of the header, then sorted into that of their data.
class SlotTable {
 public:
  SlotTable() = default;
  explicit SlotTable(std::size_t header_bytes);

  // To add a tensor: its name is appended to text(), then `add` is called, or `drop_name`.
  std::string& text() noexcept { return text_; }
  std::string_view open_name() const noexcept { return std::string_view(text_).substr(open_at_); }
  void drop_name() noexcept { text_.resize(open_at_); }
  // `dtype` has at most kMaxDTypeBytes.
  void add(std::string_view dtype, std::span<const std::uint64_t> shape, std::uint64_t begin,
           std::uint64_t end);
  void sort();
  // A tensor that is there twice, if there is one.
  std::optional<std::size_t> index_names();

  std::size_t size() const noexcept { return places_.size(); }
  bool empty() const noexcept { return places_.empty(); }
  std::uint64_t memory_bytes() const noexcept {
    return text_.size() + places_.size() * sizeof(Place) + by_name_.size() * sizeof by_name_[0];
  }
  Slot operator[](std::size_t idx) const noexcept { return slot(places_[idx]); }
  std::uint64_t begin_of(std::size_t idx) const noexcept { return places_[idx].begin; }
  std::uint64_t end_of(std::size_t idx) const noexcept { return places_[idx].end; }
  // `hint`: where it may be.
  std::optional<std::size_t> find(std::string_view name,
                                  std::size_t hint = ~std::size_t{0}) const noexcept;
  bool has_prefix(std::string_view prefix) const noexcept;
  // The first tensor that ends behind byte `offset` of the data, or size().
  std::size_t first_behind(std::uint64_t offset) const noexcept;

  class Iterator {
   public:
    Iterator(const SlotTable& table, std::size_t idx) noexcept : table_(table), idx_(idx) {}
    Slot operator*() const noexcept { return table_[idx_]; }
    Iterator& operator++() noexcept { return ++idx_, *this; }
    bool operator!=(const Iterator& other) const noexcept { return idx_ != other.idx_; }

   private:
    const SlotTable& table_;
    std::size_t idx_;
  };
  Iterator begin() const noexcept { return {*this, 0}; }
  Iterator end() const noexcept { return {*this, size()}; }

 private:
  struct Place {
    std::uint64_t begin, end;
    std::uint32_t name_at, name_bytes;
  };
  std::string_view name(const Place& place) const noexcept {
    return std::string_view(text_).substr(place.name_at, place.name_bytes);
  }
  Slot slot(const Place& place) const noexcept;
  std::size_t lower_bound(std::string_view name) const noexcept;

  // For each tensor: name, 0, number of the dtype; if that is 0, length, dtype, 0; then the number
  // of dimensions and the dimensions, as LEB128.
  std::string text_;
  std::vector<Place> places_;
  std::vector<std::uint32_t> by_name_;
  std::size_t open_at_ = 0;  // the name of the tensor that is being added
};

// The entries of __metadata__, in the order of the header.
class MetadataTable {
 public:
  using Item = std::pair<std::string_view, std::string_view>;  // a zero byte follows each

  MetadataTable() = default;
  explicit MetadataTable(std::size_t header_bytes) { text_.reserve(header_bytes); }
  // To add an entry: key and value are appended to text(), each followed by done().
  std::string& text() noexcept { return text_; }
  void done();
  // Whether a key is there twice.
  bool any_twice() const;

  std::size_t size() const noexcept { return ends_.size() / 2; }
  Item operator[](std::size_t idx) const noexcept { return {part(2 * idx), part(2 * idx + 1)}; }
  std::optional<std::string_view> find(std::string_view key) const noexcept;
  bool has_prefix(std::string_view prefix) const noexcept;

 private:
  std::string_view part(std::size_t idx) const noexcept;

  std::string text_;
  std::vector<std::uint32_t> ends_;  // of keys and values in turn
};

struct Layout {
  SlotTable slots;  // in the order of their data
  MetadataTable metadata;
  std::uint64_t data_start = 0;
  std::uint64_t file_bytes = 0;
};

struct KnownDType {
  std::string_view name;
  std::uint64_t bits;
  DType dtype;
};
// The place of a dtype among those known, counted from 1; 0 for all others.
std::uint8_t dtype_number(std::string_view name) noexcept;
const KnownDType& known_dtype(std::uint8_t number) noexcept;

}  // namespace snug::store
