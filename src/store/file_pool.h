// store/file_pool.h - many files, few descriptors: a folder may have thousands of files, and a
// process may mostly have 1024 open.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "os/descriptor.h"
#include "snug/store.h"

namespace snug::store {

// Keeps the descriptors that were used last. All functions may be called from any thread.
class FilePool {
 public:
  // Its file stays open until the last user is done.
  using Lease = std::shared_ptr<const os::Descriptor>;
  using Open = std::function<StoreResult<Lease>()>;

  FilePool() { open_.reserve(kMaxOpen); }

  // Takes over an open descriptor; returns the number that stands for its file.
  std::uint64_t add(int fd);
  void remove(std::uint64_t id) noexcept;
  // Counts what is kept of the headers of all files together.
  std::uint64_t add_memory(std::uint64_t num_bytes);
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
  std::uint64_t next_id_ = 0, memory_bytes_ = 0;
};

}  // namespace snug::store
