// store/range_text.h - bytes [begin, end) of a file or of an unpacked header, as text to parse.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "store/json_reader.h"
#include "store/packed_header.h"
#include "store/workers.h"

namespace snug::store {

class RangeText : public TextSource {
 public:
  RangeText(const ReadRange& read, std::uint64_t begin, std::uint64_t end)
      : read_(read), end_(end), at_(begin) {}

  std::size_t read(std::span<char> dst) noexcept override {
    if (used_ == size_) refill();
    const std::size_t n = std::min(dst.size(), size_ - used_);
    if (n > 0) std::memcpy(dst.data(), buffer_.span(size_).data() + used_, n);
    used_ += n;
    return n;
  }
  const StoreStatus& status() const noexcept { return status_; }

 private:
  void refill() noexcept {
    if (!status_.ok() || at_ == end_) return;
    // Up to the end of a piece of a packed header, which is unpacked as a whole.
    const std::uint64_t piece_end = (at_ / kHeaderPieceBytes + 1) * kHeaderPieceBytes;
    const auto n = static_cast<std::size_t>(std::min(end_, piece_end) - at_);
    status_ = guarded([&] { return read_(at_, buffer_.span(n)); });
    size_ = status_.ok() ? n : 0;
    used_ = 0;
    at_ += size_;
  }

  const ReadRange& read_;
  const std::uint64_t end_;
  std::uint64_t at_;
  Buffer buffer_;
  std::size_t used_ = 0, size_ = 0;
  StoreStatus status_;
};

}  // namespace snug::store
