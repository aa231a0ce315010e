#include "wire/memory_budget.h"

#include <algorithm>
#include <chrono>

namespace snug::wire {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMiB = std::size_t{1} << 20;
// Sizes are rounded up, so that a buffer fits the next chunk of about that size.
constexpr std::size_t kGrain = std::size_t{64} << 10;

}  // namespace

Status MemoryBudget::take(std::size_t num_bytes, Deadline deadline, const KeepGoing& keep_going) {
  if (num_bytes > limit_)
    return {Code::kUsage, "more memory than all connections together may take",
            kNowhere,     kNowhere,
            num_bytes,    limit_};
  std::unique_lock lock(mutex_);
  const auto place = queue_.insert(queue_.end(), 0);
  Status status;
  const auto fits = [&] { return queue_.begin() == place && num_bytes <= limit_ - used_; };
  while (!fits()) {
    const auto slice = std::min(deadline, Clock::now() + std::chrono::milliseconds(50));
    if (changed_.wait_until(lock, slice, fits)) break;
    lock.unlock();  // callers give back while they hold what keep_going may need
    const bool stop = keep_going && !keep_going();
    lock.lock();
    if (stop) {
      status = {Code::kPeer, "the connection has ended"};
      break;
    }
    if (Clock::now() >= deadline) {
      status = {Code::kTimeout, "other connections hold all the memory that there is for peers"};
      break;
    }
  }
  if (status.ok()) used_ += num_bytes;
  queue_.erase(place);
  if (!queue_.empty()) changed_.notify_all();
  return status;
}

void MemoryBudget::give_back(std::size_t num_bytes) noexcept {
  const std::lock_guard lock(mutex_);
  used_ -= num_bytes;
  if (!queue_.empty()) changed_.notify_all();
}

BufferPool::User::User(BufferPool& pool) noexcept : pool_(pool) {
  const std::lock_guard lock(pool_.mutex_);
  ++pool_.num_users_;
}

BufferPool::User::~User() {
  std::vector<Idle> freed;
  const std::lock_guard lock(pool_.mutex_);
  if (--pool_.num_users_ > 0) return;
  for (const Idle& idle : pool_.idle_) pool_.allocated_ -= idle.num_bytes;
  pool_.num_buffers_ -= pool_.idle_.size();
  freed.swap(pool_.idle_);
}

Result<BufferPool::Buffer> BufferPool::take(std::size_t num_bytes, Deadline deadline,
                                            const KeepGoing& keep_going) {
  num_bytes = (num_bytes + kGrain - 1) / kGrain * kGrain;
  if (Status s = budget_.take(num_bytes, deadline, keep_going); !s.ok()) return s;
  Reservation share(budget_, num_bytes);  // in case there is no memory
  Buffer buffer;
  buffer.pool_ = this;
  buffer.num_bytes_ = num_bytes;
  buffer.bytes_ = find(num_bytes);
  if (!buffer.bytes_) return Status{Code::kInternal, "out of memory"};
  share.release();
  return buffer;
}

// The newest of that size, whose bytes are most likely in a cache, or a new one. What lies idle
// makes room.
std::unique_ptr<std::byte[]> BufferPool::find(std::size_t num_bytes) {
  std::vector<Idle> freed;
  {
    const std::lock_guard lock(mutex_);
    const auto last = std::find_if(idle_.rbegin(), idle_.rend(),
                                   [&](const Idle& idle) { return idle.num_bytes == num_bytes; });
    if (last != idle_.rend()) {
      auto bytes = std::move(last->bytes);
      idle_.erase(std::next(last).base());
      return bytes;
    }
    std::size_t num_freed = 0;
    while (allocated_ + num_bytes > budget_.limit() && num_freed < idle_.size())
      allocated_ -= idle_[num_freed++].num_bytes;
    const auto end = idle_.begin() + static_cast<std::ptrdiff_t>(num_freed);
    freed.assign(std::make_move_iterator(idle_.begin()), std::make_move_iterator(end));
    idle_.erase(idle_.begin(), end);
    num_buffers_ -= num_freed;
    idle_.reserve(num_buffers_ + 1);  // so that put_back has room
    ++num_buffers_;
    allocated_ += num_bytes;
  }
  freed.clear();
  auto bytes = std::unique_ptr<std::byte[]>(new (std::nothrow) std::byte[num_bytes]);
  if (!bytes) {
    const std::lock_guard lock(mutex_);
    allocated_ -= num_bytes;
    --num_buffers_;
  }
  return bytes;
}

void BufferPool::put_back(std::unique_ptr<std::byte[]> bytes, std::size_t num_bytes) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (num_users_ > 0) {
      idle_.push_back({std::move(bytes), num_bytes});
    } else {
      allocated_ -= num_bytes;
      --num_buffers_;
    }
  }
  bytes.reset();
  budget_.give_back(num_bytes);
}

// They are never destroyed: lanes may outlive static objects.
BufferPool& receive_buffers() {
  static BufferPool* const pool = new BufferPool(64 * kMiB);
  return *pool;
}
BufferPool& send_buffers() {
  static BufferPool* const pool = new BufferPool(64 * kMiB);
  return *pool;
}
BufferPool& workspaces() {
  static BufferPool* const pool = new BufferPool(48 * kMiB);
  return *pool;
}
MemoryBudget& table_budget() {
  static MemoryBudget* const budget = new MemoryBudget(56 * kMiB);
  return *budget;
}

}  // namespace snug::wire
