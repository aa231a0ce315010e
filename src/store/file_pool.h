// store/file_pool.h - many files, few descriptors: a folder may have thousands of files, and a
// process may mostly have 1024 open.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "snug/store.h"

namespace snug::store {

// A descriptor that is closed with its last user.
class SharedDescriptor {
 public:
  explicit SharedDescriptor(int fd) noexcept : fd_(fd) {}
  SharedDescriptor(const SharedDescriptor&) = delete;
  ~SharedDescriptor();
  int get() const noexcept { return fd_; }

 private:
  const int fd_;
};

// Keeps the descriptors that were used last. All functions may be called from any thread.
class FilePool {
 public:
  using Lease = std::shared_ptr<const SharedDescriptor>;
  using Open = std::function<StoreResult<Lease>()>;

  FilePool() { open_.reserve(kMaxOpen); }

  // Takes over an open descriptor; returns the number that stands for its file.
  std::uint64_t add(int fd);
  void remove(std::uint64_t id) noexcept;
  // The descriptor of file `id`. If it was closed meanwhile, `open` opens it again.
  StoreResult<Lease> get(std::uint64_t id, const Open& open);

 private:
  struct Entry {
    std::uint64_t id;
    Lease lease;
  };
  // Enough for the threads of a machine, each at one file; far below any limit.
  static constexpr std::size_t kMaxOpen = 32;
  void keep(Entry entry);

  std::mutex mutex_;
  std::vector<Entry> open_;  // the one used last is at the end
  std::uint64_t next_id_ = 0;
};

}  // namespace snug::store
