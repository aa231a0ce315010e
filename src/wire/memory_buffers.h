// wire/memory_buffers.h - messages in memory, in one or many pieces.
#pragma once
#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "snug/wire.h"
#include "wire/message_rules.h"

namespace snug::wire {

// Consecutive pieces of a message that lie anywhere in memory.
template <class Byte>
class Segments {
 public:
  explicit Segments(std::span<const std::span<Byte>> pieces) {
    for (const std::span<Byte> piece : pieces) {
      if (piece.empty()) continue;
      starts_.push_back(num_bytes_);
      pieces_.push_back(piece);
      num_bytes_ += piece.size();
    }
  }

  std::uint64_t num_bytes() const noexcept { return num_bytes_; }

  // [offset, offset + num_bytes) if one piece holds it.
  std::span<Byte> view(std::uint64_t offset, std::size_t num_bytes) const noexcept {
    const std::size_t i = piece_at(offset);
    const std::uint64_t inside = offset - starts_[i];
    if (pieces_[i].size() - inside < num_bytes) return {};
    return pieces_[i].subspan(static_cast<std::size_t>(inside), num_bytes);
  }

  // Calls visit(piece, position) for the pieces of [offset, offset + num_bytes).
  template <class Visit>
  void visit(std::uint64_t offset, std::size_t num_bytes, Visit visit) const {
    std::size_t done = 0;
    for (std::size_t i = piece_at(offset); done < num_bytes; ++i) {
      const auto inside = static_cast<std::size_t>(offset + done - starts_[i]);
      const std::size_t n = std::min(num_bytes - done, pieces_[i].size() - inside);
      visit(pieces_[i].subspan(inside, n), done);
      done += n;
    }
  }

 private:
  std::size_t piece_at(std::uint64_t offset) const noexcept {
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), offset);
    return static_cast<std::size_t>(next - starts_.begin() - 1);
  }
  std::vector<std::span<Byte>> pieces_;
  std::vector<std::uint64_t> starts_;
  std::uint64_t num_bytes_ = 0;
};

class MemorySource : public Source {
 public:
  MemorySource(DType dtype, std::span<const std::span<const std::byte>> segments)
      : dtype_(dtype), segments_(segments) {}

  std::vector<Extent> extents() const override { return {{dtype_, segments_.num_bytes()}}; }
  std::span<const std::byte> view(std::uint64_t offset, std::size_t num_bytes) override {
    return segments_.view(offset, num_bytes);
  }
  Status read(std::uint64_t offset, std::span<std::byte> dst) override {
    segments_.visit(offset, dst.size(), [&](std::span<const std::byte> piece, std::size_t at) {
      std::memcpy(dst.data() + at, piece.data(), piece.size());
    });
    return {};
  }

 private:
  const DType dtype_;
  const Segments<const std::byte> segments_;
};

class MemorySink : public Sink {
 public:
  explicit MemorySink(std::span<const std::span<std::byte>> segments) : segments_(segments) {}

  Status begin(std::span<const Extent>, std::uint64_t num_bytes) override {
    return check_size(num_bytes, segments_.num_bytes());
  }
  std::span<std::byte> view(std::uint64_t offset, std::size_t num_bytes) override {
    return segments_.view(offset, num_bytes);
  }
  Status write(std::uint64_t offset, std::span<const std::byte> src) override {
    segments_.visit(offset, src.size(), [&](std::span<std::byte> piece, std::size_t at) {
      std::memcpy(piece.data(), src.data() + at, piece.size());
    });
    return {};
  }

 private:
  const Segments<std::byte> segments_;
};

}  // namespace snug::wire
