// store/plain_file.h - the plain content of any file: of one compressed by Snug what it
// restores to, of all others the bytes as they are.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "store/block_scan.h"
#include "store/config_mark.h"
#include "store/file_io.h"
#include "store/load_tensors.h"
#include "store/tensor_file.h"

namespace snug::store {

// The tensors of a file, or nullptr if these bytes are no safetensors file. A file that Snug has
// compressed, as far as one can tell, and that does not open is an error, as is everything that
// keeps the file from being read.
StoreResult<std::unique_ptr<TensorFile>> open_if_tensors(const std::string& path);

// XXH3-128 of the stored bytes of `file`, 32 hexadecimal digits.
StoreResult<std::string> hash_stored(const File& file, ProgressMeter& meter);

class PlainFile {
 public:
  // `restore`: see through compression by Snug. Files that are no valid safetensors
  // have no tensors. `pool` limits how many stay open.
  static StoreResult<std::unique_ptr<PlainFile>> open(const std::string& path, bool restore,
                                                      const std::shared_ptr<FilePool>& pool);

  // The config.json of a folder: its plain content lacks the mark.
  static StoreResult<std::unique_ptr<PlainFile>> open_config(const std::string& path,
                                                             const std::shared_ptr<FilePool>& pool);

  const std::string& path() const noexcept { return file().path(); }
  const File& file() const noexcept { return tensors_ != nullptr ? tensors_->file() : file_; }
  std::uint64_t num_bytes() const noexcept { return num_bytes_; }
  // Null if it has no tensors. Without metadata. Offsets in it are those of the plain content.
  const Layout* layout() const noexcept {
    return tensors_ != nullptr ? &tensors_->plain() : nullptr;
  }

  // What is kept of its header.
  std::uint64_t memory_bytes() const noexcept {
    return tensors_ != nullptr ? tensors_->memory_bytes() : 0;
  }

  // [offset, offset + dst.size()) of the plain content, which has them.
  StoreStatus read_at(std::uint64_t offset, std::span<std::byte> dst) const;

  // XXH3-128 of the plain content, 32 hexadecimal digits. All of it is read, and restored if it is
  // compressed; kCorrupt if that does not give the hash that the file records.
  StoreResult<std::string> hash(const StoreOptions& options, ProgressMeter& meter) const;

 private:
  bool compressed() const noexcept { return tensors_ != nullptr && tensors_->compressed(); }

  File file_;                            // if it has no tensors
  std::unique_ptr<TensorFile> tensors_;  // if it has
  mutable WorkspacePool workspaces_;
  std::uint64_t num_bytes_ = 0;
  std::uint64_t mark_begin_ = 0, mark_bytes_ = 0;  // of a config.json
};

}  // namespace snug::store
