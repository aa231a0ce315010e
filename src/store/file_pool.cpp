#include "store/file_pool.h"

#include <algorithm>

namespace snug::store {

void FilePool::keep(Entry entry) {
  if (open_.size() == kMaxOpen) open_.erase(open_.begin());
  open_.push_back(std::move(entry));
}

std::uint64_t FilePool::add(int fd) {
  Lease lease = std::make_shared<os::Descriptor>(fd);
  const std::lock_guard lock(mutex_);
  keep({next_id_, std::move(lease)});
  return next_id_++;
}

void FilePool::remove(std::uint64_t id) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(open_, [id](const Entry& entry) { return entry.id == id; });
}

std::uint64_t FilePool::add_memory(std::uint64_t num_bytes) {
  const std::lock_guard lock(mutex_);
  return memory_bytes_ += num_bytes;
}

StoreResult<FilePool::Lease> FilePool::get(std::uint64_t id, const Open& open) {
  const std::lock_guard lock(mutex_);
  const auto at = std::ranges::find(open_, id, &Entry::id);
  if (at != open_.end()) {
    std::rotate(at, at + 1, open_.end());
    return open_.back().lease;
  }
  auto lease = open();
  if (!lease) return lease.status();
  keep({id, *lease});
  return lease;
}

}  // namespace snug::store
