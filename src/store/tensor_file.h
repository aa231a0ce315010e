// store/tensor_file.h - an open safetensors file, plain or compressed, whose
// header was checked. What a compressed file adds:
//
//   __metadata__  "snug.format"    "1"
//                 "snug.size"      bytes of the original file
//                 "snug.xxh3_128"  hash of the original file, 32 hex digits
//                 "snug.header"    name of the tensor with the original header
//   tensors       each one frame (U8), in the order of the original data; the
//                 last one the original header (length and JSON) under zstd
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "codec/frame_reader.h"
#include "store/file_io.h"
#include "store/safetensors.h"

namespace snug::store {

inline constexpr char kFormatKey[] = "snug.format";
inline constexpr char kSizeKey[] = "snug.size";
inline constexpr char kHashKey[] = "snug.xxh3_128";
inline constexpr char kHeaderKey[] = "snug.header";
inline constexpr char kKeyPrefix[] = "snug.";
inline constexpr char kFormatVersion[] = "1";
inline constexpr char kHeaderTensor[] = "__snug__.header";

// Header and block index of one frame, checked.
struct FrameHead {
  frame::Header header;
  std::vector<std::byte> bytes;

  codec::FrameReader reader() const noexcept { return {header, bytes}; }
};

class TensorFile {
 public:
  static StoreResult<std::unique_ptr<TensorFile>> open(const std::string& path);

  bool compressed() const noexcept { return compressed_; }
  const File& file() const noexcept { return file_; }
  const std::string& path() const noexcept { return file_.path(); }

  // The layout of the plain file, which a compressed file only describes.
  const Layout& plain() const noexcept { return compressed_ ? original_ : stored_; }
  // The plain file from its first byte up to its data.
  const std::string& plain_header() const noexcept { return plain_header_; }
  const std::string& recorded_hash() const noexcept { return recorded_hash_; }

  // Bytes of this file that hold tensor `idx` of plain().slots.
  const Slot& stored_slot(std::size_t idx) const noexcept {
    return compressed_ ? stored_.slots[stored_idx_[idx]] : stored_.slots[idx];
  }
  std::uint64_t stored_offset(std::size_t idx) const noexcept {
    return stored_.data_start + stored_slot(idx).begin;
  }

  // Reads and checks header and index of a frame; only for compressed files.
  StoreResult<std::shared_ptr<const FrameHead>> load_head(std::size_t idx) const;

  // Fails if the file is compressed and should not be, or the other way round.
  StoreStatus check_kind(bool expect_compressed) const;

  // Adds file and tensor to what went wrong inside the bytes of tensor `idx`.
  StoreStatus blame(std::size_t idx, Status status) const;

 private:
  StoreStatus read_layout();
  StoreStatus read_plain_header();
  StoreStatus match_tensors();
  StoreStatus bad(const char* what, const std::string& detail = {}) const;

  File file_;
  bool compressed_ = false;
  Layout stored_;
  Layout original_;                        // compressed files only
  std::vector<std::uint32_t> stored_idx_;  // original slot to stored slot
  std::string plain_header_;
  std::string recorded_hash_;
};

}  // namespace snug::store
