// mount/mounted_file.h - one file of a mounted folder: what it looks like and what is in it.
#pragma once
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "mount/piece_cache.h"
#include "mount/read_ahead.h"
#include "store/plain_file.h"

namespace snug::mount {

class MountedFile {
 public:
  // `idx` is what pieces of this file carry. `pool` limits how many files stay open.
  // A compressed file, shown as its original.
  static StoreResult<std::unique_ptr<MountedFile>> open_tensors(
      const std::string& path, std::size_t idx, const std::shared_ptr<store::FilePool>& pool);
  // Any other file, shown as it is; the config.json of a folder without the mark of compression.
  static StoreResult<std::unique_ptr<MountedFile>> open_other(
      const std::string& path, bool is_config, const std::shared_ptr<store::FilePool>& pool);

  const std::string& path() const noexcept { return file().path(); }
  std::uint64_t num_bytes() const noexcept { return num_bytes_; }
  std::uint64_t stored_bytes() const noexcept { return file().num_bytes(); }
  std::uint64_t header_bytes() const noexcept {
    return tensors_ != nullptr ? tensors_->plain().data_start : 0;
  }
  const struct stat& attributes() const noexcept { return attributes_; }  // of the file at `path`

  // Fails if the file is not any more the one that was mounted.
  StoreStatus check_unchanged() const;

  // Whether it is read in pieces; others are read with `read_other`.
  bool has_pieces() const noexcept { return tensors_ != nullptr; }
  // The piece with byte `offset`, which the file has.
  StoreResult<Piece> piece_at(std::uint64_t offset) const;
  // As PieceSource::decode.
  StoreStatus decode(std::span<const Piece> pieces, std::span<std::byte* const> dst,
                     Scratch& scratch) const;
  StoreStatus read_other(std::uint64_t offset, std::span<std::byte> dst) const;

  ReadAhead& read_ahead() const noexcept { return read_ahead_; }

 private:
  // A stretch of the plain file: one large tensor, which has several pieces, or one piece of small
  // ones.
  struct Run {
    std::uint64_t begin = 0, end = 0;
    std::size_t first = 0, last = 0;                            // tensors; none in the header
    mutable std::shared_ptr<const store::FrameHead> head = {};  // large ones; under the mutex
  };

  StoreStatus read_attributes(const std::string& path);
  void make_runs();
  const store::File& file() const noexcept {
    return tensors_ != nullptr ? tensors_->file() : other_->file();
  }
  const Run& run_at(std::uint64_t offset) const noexcept;
  StoreResult<std::shared_ptr<const store::FrameHead>> head_of(const Run& run) const;
  StoreStatus decode_run(const Run& run, std::span<const Piece> pieces,
                         std::span<std::byte* const> dst, Scratch& scratch) const;
  StoreStatus decode_large(const Run& run, std::span<const Piece> pieces,
                           std::span<std::byte* const> dst, Scratch& scratch) const;
  StoreStatus decode_tensor(std::size_t idx, std::byte* dst, Scratch& scratch) const;

  std::size_t idx_ = 0;
  std::unique_ptr<store::TensorFile> tensors_;  // if it is compressed
  std::unique_ptr<store::PlainFile> other_;     // if it is not
  std::uint64_t num_bytes_ = 0;
  struct stat attributes_ = {};
  std::vector<Run> runs_;
  mutable std::mutex mutex_;
  mutable ReadAhead read_ahead_;
};

}  // namespace snug::mount
