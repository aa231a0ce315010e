// wire/memory_budget.h - how much memory the peers of a process can make it hold, over all its
// connections together. Whoever wants more waits its turn: honest peers become slower, and are not
// refused.
//
//   receive_buffers   what arrives, as it is and decoded; held while a chunk arrives
//   send_buffers      what is sent, as it is and encoded; held while a chunk is sent
//   workspaces        of encoders and decoders; held while a CPU works
//   table_budget      offers, tables of chunks, hashes, notes, manifests
//
// A lane takes from one of the first two, all that a chunk needs at once, and then perhaps a
// workspace, which nobody holds while it waits for a peer. Senders and receivers have separate
// buffers because a sender may wait for a receiver of the same process. So nobody waits in a
// circle.
#pragma once
#include <array>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "net/socket.h"
#include "snug/status.h"

namespace snug::wire {

using net::Deadline;
using net::KeepGoing;

class MemoryBudget {
 public:
  explicit MemoryBudget(std::size_t limit) noexcept : limit_(limit) {}

  // Waits for its turn, first come, first served. kTimeout past the deadline, kPeer if keep_going,
  // called many times a second, returns false; kUsage for more than there is in all.
  Status take(std::size_t num_bytes, Deadline deadline, const KeepGoing& keep_going = {});
  void give_back(std::size_t num_bytes) noexcept;
  std::size_t limit() const noexcept { return limit_; }

 private:
  const std::size_t limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<int> queue_;  // only the places matter
  std::size_t used_ = 0;
};

// A share of a budget, given back by the destructor.
class Reservation {
 public:
  Reservation() noexcept = default;
  Reservation(MemoryBudget& budget, std::size_t num_bytes) noexcept
      : budget_(&budget), num_bytes_(num_bytes) {}
  Reservation(Reservation&& other) noexcept
      : budget_(other.budget_), num_bytes_(std::exchange(other.num_bytes_, 0)) {}
  Reservation& operator=(Reservation&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
  }
  ~Reservation() { shrink_to(0); }

  void shrink_to(std::size_t num_bytes) noexcept {
    if (num_bytes >= num_bytes_) return;
    budget_->give_back(num_bytes_ - num_bytes);
    num_bytes_ = num_bytes;
  }
  void release() noexcept { num_bytes_ = 0; }  // somebody else gives it back

 private:
  MemoryBudget* budget_ = nullptr;
  std::size_t num_bytes_ = 0;
};

// Buffers that are used again, in use or not no more than `limit` bytes. They are freed when the
// last User has gone.
class BufferPool {
 public:
  explicit BufferPool(std::size_t limit) noexcept : budget_(limit) {}

  // A thread that will take buffers.
  class User {
   public:
    explicit User(BufferPool& pool) noexcept;
    ~User();
    User(const User&) = delete;
    User& operator=(const User&) = delete;

   private:
    BufferPool& pool_;
  };

  class Buffer {
   public:
    Buffer() noexcept = default;
    Buffer(Buffer&& other) noexcept { *this = std::move(other); }
    Buffer& operator=(Buffer&& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(bytes_, other.bytes_);
      std::swap(num_bytes_, other.num_bytes_);
      return *this;
    }
    ~Buffer() { reset(); }
    void reset() noexcept {
      if (bytes_) pool_->put_back(std::move(bytes_), num_bytes_);
    }
    explicit operator bool() const noexcept { return bytes_ != nullptr; }
    std::byte* data() const noexcept { return bytes_.get(); }
    std::span<std::byte> span() const noexcept { return {bytes_.get(), num_bytes_}; }

   private:
    friend class BufferPool;
    BufferPool* pool_ = nullptr;
    std::unique_ptr<std::byte[]> bytes_;
    std::size_t num_bytes_ = 0;
  };

  // At least num_bytes, uninitialised; waits as MemoryBudget::take does.
  Result<Buffer> take(std::size_t num_bytes, Deadline deadline, const KeepGoing& keep_going = {});

 private:
  struct Idle {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t num_bytes;
  };
  std::unique_ptr<std::byte[]> find(std::size_t num_bytes);
  void put_back(std::unique_ptr<std::byte[]> bytes, std::size_t num_bytes) noexcept;

  MemoryBudget budget_;
  std::mutex mutex_;
  std::vector<Idle> idle_;  // used last, at the end
  std::size_t allocated_ = 0, num_buffers_ = 0, num_users_ = 0;
};

BufferPool& receive_buffers();
BufferPool& send_buffers();
BufferPool& workspaces();
MemoryBudget& table_budget();

}  // namespace snug::wire
