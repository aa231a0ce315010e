// store/tensor_file.h - an open safetensors file, plain or compressed, whose header was checked.
// docs/store.md says what a compressed file adds.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "codec/frame_reader.h"
#include "store/file_io.h"
#include "store/packed_header.h"
#include "store/safetensors.h"

namespace snug::store {

inline constexpr char kFormatKey[] = "snug.format";
inline constexpr char kSizeKey[] = "snug.size";
inline constexpr char kHashKey[] = "snug.xxh3_128";
inline constexpr char kFormatVersion[] = "1";
inline constexpr char kHeaderTensor[] = "__snug__.header";
// Reserved in plain files: what has one of these, and no format, is a damaged compressed file.
inline constexpr char kKeyPrefix[] = "snug.";
inline constexpr char kTensorPrefix[] = "__snug__.";

// The size of the smallest frame that is not empty: tensors up to it are stored as they are.
inline constexpr std::uint64_t kMinFrameBytes = 96;
// Larger tensors are always frames, so that what is stored as it is can be checked in one read.
inline constexpr std::uint64_t kMaxKeptBytes = 4096;

inline constexpr std::size_t kTieBytes = 8;

// Ties the stored bytes of a tensor to its name, dtype and shape. `start` is the header of its
// frame, or the whole tensor if it is stored as it is.
std::uint64_t tensor_tie(const Slot& slot, std::span<const std::byte> start);

// Header and block index of one frame, checked.
struct FrameHead {
  frame::Header header;
  // Header and index; empty if the index is too long to be kept.
  std::vector<std::byte> bytes;
  FrameStats stats;
};

class TensorFile {
 public:
  static StoreResult<std::unique_ptr<TensorFile>> open(const std::string& path,
                                                       bool* is_safetensors = nullptr);
  // See File::share.
  void share(std::shared_ptr<FilePool> pool) { file_.share(std::move(pool)); }

  bool compressed() const noexcept { return compressed_; }
  const File& file() const noexcept { return file_; }
  const std::string& path() const noexcept { return file_.path(); }

  // The layout of the plain file, which a compressed file only describes.
  const Layout& plain() const noexcept { return plain_; }
  // Frees the layout's memory; from here on plain() is empty.
  void forget_layout() noexcept {
    const Layout gone = std::move(plain_);  // assigning an empty one would keep the memory
    plain_ = {};
  }
  // Frees the metadata, of which a file of some KB may have 100 MB.
  void forget_metadata() noexcept { forget(plain_.metadata); }
  // What names and places of its tensors take.
  std::uint64_t memory_bytes() const noexcept {
    return plain_.slots.memory_bytes() + stored_.size() * sizeof(Place) + ties_.size() * kTieBytes;
  }
  // Bytes [offset, offset + dst.size()) of the plain file, all of them before plain().data_start.
  StoreStatus read_header(std::uint64_t offset, std::span<std::byte> dst) const;
  // All of it, in pieces.
  template <class Visit>
  StoreStatus visit_header(Visit visit) const;
  const std::string& recorded_hash() const noexcept { return recorded_hash_; }

  // Bytes of this file that hold tensor `idx` of plain().slots.
  std::uint64_t stored_offset(std::size_t idx) const noexcept {
    return compressed_ ? stored_[idx].offset : plain_.data_start + plain_.slots.begin_of(idx);
  }
  std::uint64_t stored_bytes(std::size_t idx) const noexcept {
    return compressed_ ? stored_[idx].num_bytes : raw_bytes(idx);
  }
  // Whether they are a frame, and not the tensor itself.
  bool is_frame(std::size_t idx) const noexcept {
    return compressed_ && !(raw_bytes(idx) <= kMaxKeptBytes && stored_bytes(idx) == raw_bytes(idx));
  }

  // Reads and checks header and index of a frame. The last one is remembered, for those who read a
  // tensor piece by piece.
  StoreResult<std::shared_ptr<const FrameHead>> load_head(std::size_t idx) const;
  // The entries of `count` blocks from `first` on. `window` is where they are put if `head` does
  // not have them.
  StoreResult<codec::FrameReader> index_of(std::size_t idx, const FrameHead& head,
                                           std::uint64_t first, std::uint64_t count,
                                           std::vector<std::byte>& window) const;
  // Reads part of a tensor that is no frame. In a compressed file all of it is checked.
  StoreStatus read_unframed(std::size_t idx, std::uint64_t first, std::span<std::byte> dst) const;

  // Fails if the file is compressed and should not be, or the other way round.
  StoreStatus check_kind(bool expect_compressed) const;

  // Adds file and tensor to what went wrong inside the bytes of tensor `idx`.
  StoreStatus blame(std::size_t idx, Status status) const;

 private:
  struct Place {
    std::uint64_t offset, num_bytes;
  };
  static void forget(MetadataTable& table) noexcept {
    const MetadataTable gone = std::move(table);  // assigning an empty one would keep the memory
    table = {};
  }
  StoreResult<Layout> read_layout() const;
  StoreStatus find_mark(const Layout& stored);
  StoreStatus read_original(Layout& stored);
  StoreStatus match_tensors(const Layout& stored);
  StoreStatus check_tie(std::size_t idx, std::span<const std::byte> start) const;
  StoreResult<std::shared_ptr<const FrameHead>> read_head(std::size_t idx) const;
  StoreStatus load_long_index(std::size_t idx, FrameHead& head) const;
  StoreStatus bad(const char* what, std::string_view detail = {}) const;
  std::uint64_t raw_bytes(std::size_t idx) const noexcept {
    return plain_.slots.end_of(idx) - plain_.slots.begin_of(idx);
  }

  File file_;
  bool compressed_ = false;
  Layout plain_;
  // The rest is for compressed files. Vectors have one element a tensor of the original.
  std::vector<Place> stored_;
  std::vector<std::uint64_t> ties_;
  PackedHeader packed_;
  std::string recorded_hash_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const FrameHead> last_head_;  // under the mutex
  mutable std::size_t last_idx_ = 0;
};

template <class Visit>
StoreStatus TensorFile::visit_header(Visit visit) const {
  Buffer buffer;
  for (std::uint64_t at = 0; at < plain_.data_start; at += kHeaderPieceBytes) {
    const std::span<std::byte> piece = buffer.span(static_cast<std::size_t>(
        std::min<std::uint64_t>(kHeaderPieceBytes, plain_.data_start - at)));
    if (StoreStatus s = read_header(at, piece); !s.ok()) return s;
    if (StoreStatus s = visit(at, std::span<const std::byte>(piece)); !s.ok()) return s;
  }
  return {};
}

}  // namespace snug::store
