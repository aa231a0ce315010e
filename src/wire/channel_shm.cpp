// A channel through memory that two processes of one host share: a ring for each
// direction. They meet at a Unix socket, over which the dialling side hands its
// memory across; afterwards the socket only tells when the other side is gone.
//
// The other side can write anything into the rings at any time: positions are
// checked at every use, bytes are copied out before anybody looks at them, and the
// memory is sealed so that it cannot be taken away.
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>

#include "wire/endpoints.h"
#include "net/descriptor.h"
#include "net/pass_descriptor.h"

namespace snug::wire {
namespace {

using net::connect_local;
using net::Descriptor;
using net::receive_descriptor;
using net::send_descriptor;

using Clock = std::chrono::steady_clock;

constexpr std::size_t kRingBytes = std::size_t{4} << 20;
// Copies of this size overlap with the other side's.
constexpr std::size_t kPieceBytes = std::size_t{128} << 10;
constexpr auto kLook = std::chrono::milliseconds(20);

constexpr Status kGone{Code::kPeer, "the peer closed the connection"};
constexpr Status kLate{Code::kTimeout, "the peer took too long"};
constexpr Status kBroken{Code::kPeer, "the peer broke the shared memory"};

struct Ring {
  alignas(64) std::atomic<std::uint64_t> written;  // bytes since the beginning
  std::atomic<std::uint32_t> data_signal;          // changes with `written`
  alignas(64) std::atomic<std::uint64_t> read;
  std::atomic<std::uint32_t> space_signal;
  alignas(64) std::atomic<std::uint32_t> closed;
  alignas(64) std::byte bytes[kRingBytes];
};
struct SharedMemory {
  Ring to_listener, to_dialler;  // of new memory: all zero
};

void wake(std::atomic<std::uint32_t>& signal) noexcept {
  signal.fetch_add(1);
  ::syscall(SYS_futex, &signal, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Until `signal` is no longer `seen`, or a moment has passed.
void sleep_on(std::atomic<std::uint32_t>& signal, std::uint32_t seen) noexcept {
  const timespec moment{0, std::chrono::nanoseconds(kLook).count()};
  ::syscall(SYS_futex, &signal, FUTEX_WAIT, seen, &moment, nullptr, 0);
}

bool wait_until_readable(int fd, Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, static_cast<int>(std::clamp<long>(left.count(), 0, INT_MAX))) > 0;
}

class ShmChannel : public Channel {
 public:
  ShmChannel(Descriptor socket, bool dialled) : socket_(std::move(socket)), dialled_(dialled) {}
  ~ShmChannel() override {
    shut_down();
    if (SharedMemory* memory = memory_) ::munmap(memory, sizeof *memory);
  }

  // Takes the memory that the dialling side has made.
  Status open(Deadline deadline) override {
    if (!wait_until_readable(socket_.get(), deadline)) return kLate;
    const Descriptor memory = receive_descriptor(socket_.get());
    struct stat info;
    const int seals = memory.get() < 0 ? -1 : ::fcntl(memory.get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(memory.get(), &info) != 0 ||
        static_cast<std::uint64_t>(info.st_size) != sizeof(SharedMemory))
      return kBroken;
    return map(memory.get());
  }

  Status map(int memory_fd) {
    void* mapped =
        ::mmap(nullptr, sizeof(SharedMemory), PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0);
    if (mapped == MAP_FAILED) return {Code::kIo, "cannot map shared memory"};
    auto* memory = static_cast<SharedMemory*>(mapped);
    out_ = dialled_ ? &memory->to_listener : &memory->to_dialler;
    in_ = dialled_ ? &memory->to_dialler : &memory->to_listener;
    memory_ = memory;
    return {};
  }

  Status send(std::span<const std::byte> head, std::span<const std::byte> body,
              Deadline deadline) override {
    if (Status s = send_piece(head, deadline); !s.ok()) return s;
    return send_piece(body, deadline);
  }

  Status recv(std::span<std::byte> bytes, Deadline deadline) override {
    while (!bytes.empty()) {
      std::uint64_t there = 0;
      if (Status s = wait_for_data(deadline, there); !s.ok()) return s;
      const std::uint64_t at = in_->read.load(std::memory_order_relaxed) % kRingBytes;
      const std::size_t n = std::min({bytes.size(), static_cast<std::size_t>(there), kPieceBytes,
                                      static_cast<std::size_t>(kRingBytes - at)});
      std::memcpy(bytes.data(), in_->bytes + at, n);
      in_->read.fetch_add(n, std::memory_order_release);
      wake(in_->space_signal);
      bytes = bytes.subspan(n);
    }
    return {};
  }

  Status wait_readable(Deadline deadline) override {
    std::uint64_t there = 0;
    return wait_for_data(deadline, there);
  }

  void shut_down() noexcept override {
    if (SharedMemory* memory = memory_)
      for (Ring* ring : {&memory->to_listener, &memory->to_dialler}) {
        ring->closed.store(1);
        wake(ring->data_signal);
        wake(ring->space_signal);
      }
    ::shutdown(socket_.get(), SHUT_RDWR);
  }
  std::string peer_name() const override { return "shm"; }

 private:
  Status send_piece(std::span<const std::byte> bytes, Deadline deadline) {
    while (!bytes.empty()) {
      const std::uint32_t seen = out_->space_signal.load();
      const std::uint64_t written = out_->written.load(std::memory_order_relaxed);
      const std::uint64_t used = written - out_->read.load(std::memory_order_acquire);
      if (used > kRingBytes) return kBroken;
      if (out_->closed.load()) return kGone;
      if (used == kRingBytes) {
        if (Status s = check_peer(deadline); !s.ok()) return s;
        sleep_on(out_->space_signal, seen);
        continue;
      }
      const std::uint64_t at = written % kRingBytes;
      const std::size_t n = std::min({bytes.size(), static_cast<std::size_t>(kRingBytes - used),
                                      kPieceBytes, static_cast<std::size_t>(kRingBytes - at)});
      std::memcpy(out_->bytes + at, bytes.data(), n);
      out_->written.store(written + n, std::memory_order_release);
      wake(out_->data_signal);
      bytes = bytes.subspan(n);
    }
    return {};
  }

  Status wait_for_data(Deadline deadline, std::uint64_t& there) {
    for (;;) {
      const std::uint32_t seen = in_->data_signal.load();
      there =
          in_->written.load(std::memory_order_acquire) - in_->read.load(std::memory_order_relaxed);
      if (there > kRingBytes) return kBroken;
      if (there > 0) return {};
      if (in_->closed.load()) return kGone;
      if (Status s = check_peer(deadline); !s.ok()) return s;
      sleep_on(in_->data_signal, seen);
    }
  }

  // A process that was killed wakes nobody; but its socket closes.
  Status check_peer(Deadline deadline) const {
    pollfd entry{socket_.get(), POLLIN, 0};
    if (::poll(&entry, 1, 0) > 0) return kGone;
    return Clock::now() >= deadline ? kLate : Status{};
  }

  const Descriptor socket_;
  const bool dialled_;
  std::atomic<SharedMemory*> memory_{nullptr};  // a stranger is sent away without any
  Ring* out_ = nullptr;
  Ring* in_ = nullptr;
};

constexpr char kNamePrefix[] = "snug-wire-";
constexpr std::size_t kMaxName = sizeof(sockaddr_un::sun_path) - sizeof kNamePrefix;
constexpr Status kNameTooLong{Code::kUsage, "the name is too long; 97 bytes is the limit"};
static_assert(kMaxName == 97);

// Abstract names leave nothing behind in the file system.
socklen_t socket_name(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const std::string full = kNamePrefix + name;
  std::memcpy(address.sun_path + 1, full.data(), full.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + full.size());
}

Descriptor open_socket() { return Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

class ShmListener : public ChannelListener {
 public:
  ShmListener(Descriptor socket, std::string name)
      : socket_(std::move(socket)), name_(std::move(name)) {}

  Result<ChannelPtr> accept(Deadline deadline) override {
    if (!wait_until_readable(socket_.get(), deadline)) return kLate;
    Descriptor client(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (client.get() < 0) return Status{Code::kIo, "cannot accept"};
    return ChannelPtr(std::make_unique<ShmChannel>(std::move(client), false));
  }
  std::string address() const override { return "shm:" + name_; }

 private:
  const Descriptor socket_;
  const std::string name_;
};

}  // namespace

Result<ChannelPtr> dial_shm(const std::string& name, Deadline deadline) {
  if (name.size() > kMaxName) return kNameTooLong;
  Descriptor socket = open_socket();
  sockaddr_un address;
  const socklen_t length = socket_name(name, address);
  if (!connect_local(socket.get(), address, length, deadline))
    return errno == EAGAIN ? Status{Code::kTimeout, "whoever listens there answers nobody"}
                           : Status{Code::kPeer, "connection refused: nobody listens there"};
  const Descriptor memory(::memfd_create("snug-wire", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.get() < 0 || ::ftruncate(memory.get(), sizeof(SharedMemory)) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    return Status{Code::kIo, "cannot make shared memory"};
  if (!send_descriptor(socket.get(), memory.get())) return kGone;
  auto channel = std::make_unique<ShmChannel>(std::move(socket), true);
  if (Status s = channel->map(memory.get()); !s.ok()) return s;
  return ChannelPtr(std::move(channel));
}

Result<std::unique_ptr<ChannelListener>> listen_shm(const std::string& name) {
  if (name.size() > kMaxName) return kNameTooLong;
  Descriptor socket = open_socket();
  sockaddr_un address;
  const socklen_t length = socket_name(name, address);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
    return Status{Code::kUsage, "the name is in use; choose another"};
  if (::listen(socket.get(), 64) != 0) return Status{Code::kIo, "cannot listen"};
  return std::unique_ptr<ChannelListener>(std::make_unique<ShmListener>(std::move(socket), name));
}

}  // namespace snug::wire
