// net/local_peer.h - processes of one host: sockets with names instead of ports, and shared memory.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "net/socket.h"

namespace snug::net {

// Abstract names of Unix sockets, which leave nothing behind in the file system.
inline constexpr std::size_t kMaxLocalName = 107;
// kUsage if the name is in use.
Result<Listener> listen_local(const std::string& name);
// kPeer if nobody listens; kTimeout if the listener's queue stays full, as any process on this host
// can make it.
Result<Socket> connect_local(const std::string& name, Deadline deadline);

// Whether the process at the other end of a local socket runs as this user. The kernel answers, not
// the peer.
bool is_same_user(const Socket& peer) noexcept;
bool is_own_process(const Socket& peer) noexcept;

// Memory that two processes map. New memory is zero, and it is sealed: neither process can shrink
// it while the other uses it.
class SharedMemory {
 public:
  // Creates memory and sends it to the peer. Errors: kIo; kPeer: the peer is gone.
  static Result<SharedMemory> create(std::size_t num_bytes, const Socket& peer);
  // Maps what the peer created. Errors: kTimeout; kIo; kPeer: it is something else, or not sealed.
  static Result<SharedMemory> receive(std::size_t num_bytes, const Socket& peer, Deadline deadline);

  SharedMemory() noexcept = default;
  SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
  }
  ~SharedMemory();
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }

 private:
  static Result<SharedMemory> map(int fd, std::size_t num_bytes);
  void* data_ = nullptr;
  std::size_t num_bytes_ = 0;
};

inline void futex_wake(std::atomic<std::uint32_t>& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}
// Returns when woken, at once if `word` is no longer `seen`, or after `limit`, less than a second.
inline void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen,
                       std::chrono::nanoseconds limit) noexcept {
  const timespec time{0, limit.count()};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

}  // namespace snug::net
