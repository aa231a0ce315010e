// transfer/file_buffers.h - messages whose bytes lie in files.
#pragma once
#include <atomic>
#include <mutex>

#include "snug/wire.h"
#include "store/file_io.h"
#include "transfer/part_folder.h"

namespace snug::transfer {

using wire::Extent;
using wire::Sink;
using wire::Source;

// Keeps the first error with its names, for which a Status has no room.
class ErrorKeeper {
 public:
  Status keep(StoreStatus status) {
    const std::lock_guard lock(mutex_);
    const Status plain = status.status;
    if (!plain.ok() && error_.ok()) error_ = std::move(status);
    return plain;
  }
  StoreStatus error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  mutable std::mutex mutex_;
  StoreStatus error_;
};

// Safetensors files are sent with their dtypes, all others as bytes.
class FileSource : public Source {
 public:
  static StoreResult<std::shared_ptr<FileSource>> open(const std::string& path);

  std::vector<Extent> extents() const override { return extents_; }
  std::span<const std::byte> view(std::uint64_t, std::size_t) override { return {}; }
  Status read(std::uint64_t offset, std::span<std::byte> dst) override {
    return errors_.keep(file_.read_at(offset, dst.data(), dst.size()));
  }
  const store::File& file() const noexcept { return file_; }
  StoreStatus error() const { return errors_.error(); }

 private:
  store::File file_;
  std::vector<Extent> extents_;
  ErrorKeeper errors_;
};

// A file of a PartFolder, with what an earlier attempt left in it.
class FileSink : public Sink {
 public:
  FileSink(const PartFolder& folder, ManifestFile announced)
      : folder_(folder), announced_(std::move(announced)) {}

  Status begin(std::span<const Extent> extents, std::uint64_t num_bytes) override;
  std::span<std::byte> view(std::uint64_t, std::size_t) override { return {}; }
  Status write(std::uint64_t offset, std::span<const std::byte> src) override {
    return errors_.keep(file_.write_at(offset, src.data(), src.size()));
  }
  std::uint64_t existing_bytes() override { return file_.num_bytes(); }
  Status read_back(std::uint64_t offset, std::span<std::byte> dst) override {
    return errors_.keep(file_.read_at(offset, dst.data(), dst.size()));
  }

  StoreStatus error() const { return errors_.error(); }
  bool has_begun() const noexcept { return begun_; }

 private:
  const PartFolder& folder_;
  const ManifestFile announced_;
  store::File file_;
  std::atomic<bool> begun_{false};
  ErrorKeeper errors_;
};

}  // namespace snug::transfer
