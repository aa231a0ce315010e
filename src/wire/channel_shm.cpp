// A channel through memory that two processes of one host share: a ring for each direction. The
// dialling side sends the memory over a Unix socket. Afterwards the socket only shows when the
// other side is gone.
//
// The other side can write anything into the rings at any time: positions are checked at every use,
// and bytes are copied out before they are read.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>

#include "net/local_peer.h"
#include "wire/channel.h"

namespace snug::wire {
namespace {

using net::futex_wait;
using net::futex_wake;
using net::SharedMemory;
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
struct Rings {
  Ring to_listener, to_dialler;
};

void wake(std::atomic<std::uint32_t>& signal) noexcept {
  signal.fetch_add(1);
  futex_wake(signal);
}

class ShmChannel : public Channel {
 public:
  ShmChannel(net::Socket socket, Side side, const Door& door)
      : socket_(std::move(socket)), side_(side), same_user_(door.same_user) {}
  ~ShmChannel() override { shut_down(); }

  // The dialling side creates the memory, the other side maps it.
  Status open(Deadline deadline, const KeepGoing& /*keep_going*/) override {
    if (same_user_ && !net::is_same_user(socket_))
      return {Code::kPeer, "the other side is a process of another user"};
    return use(side_ == Side::kDials ? SharedMemory::create(sizeof(Rings), socket_)
                                     : SharedMemory::receive(sizeof(Rings), socket_, deadline));
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
    if (Rings* rings = rings_)
      for (Ring* ring : {&rings->to_listener, &rings->to_dialler}) {
        ring->closed.store(1);
        wake(ring->data_signal);
        wake(ring->space_signal);
      }
    socket_.shut_down();
  }
  std::string peer_name() const override { return "shm"; }

 private:
  Status use(Result<SharedMemory> memory) {
    if (!memory) return memory.status();
    memory_ = std::move(*memory);
    auto* rings = memory_.as<Rings>();
    const bool dials = side_ == Side::kDials;
    out_ = dials ? &rings->to_listener : &rings->to_dialler;
    in_ = dials ? &rings->to_dialler : &rings->to_listener;
    rings_ = rings;
    return {};
  }

  Status send_piece(std::span<const std::byte> bytes, Deadline deadline) {
    while (!bytes.empty()) {
      const std::uint32_t seen = out_->space_signal.load();
      const std::uint64_t written = out_->written.load(std::memory_order_relaxed);
      const std::uint64_t used = written - out_->read.load(std::memory_order_acquire);
      if (used > kRingBytes) return kBroken;
      if (out_->closed.load()) return kGone;
      if (used == kRingBytes) {
        if (Status s = check_peer(deadline); !s.ok()) return s;
        futex_wait(out_->space_signal, seen, kLook);
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
      futex_wait(in_->data_signal, seen, kLook);
    }
  }

  // A process that was killed wakes nobody, but its socket closes.
  Status check_peer(Deadline deadline) const {
    if (socket_.wait_readable(Deadline{}).ok()) return kGone;
    return Clock::now() >= deadline ? kLate : Status{};
  }

  const net::Socket socket_;
  const Side side_;
  const bool same_user_;
  SharedMemory memory_;
  // Null until open: shut_down may come first, from another thread.
  std::atomic<Rings*> rings_{nullptr};
  Ring* out_ = nullptr;
  Ring* in_ = nullptr;
};

constexpr std::size_t kMaxName = 80;
constexpr Status kNameTooLong{Code::kUsage, "the name is too long; 80 bytes is the limit"};

constexpr std::string_view kSocketPrefix = "snug-wire-";
constexpr char kAnyUser[] = "any";

// With the user's number, so that users do not take each other's names by accident.
std::string socket_name(const std::string& name, const Door& door) {
  const std::string user = door.same_user ? std::to_string(::geteuid()) : kAnyUser;
  return std::string(kSocketPrefix) + user + "-" + name;
}
static_assert(kMaxName + sizeof "snug-wire-4294967295-" <= net::kMaxLocalName);

// Who listens under this name and is not meant, if anybody: the system lists all names.
Status explain_nobody(const Status& nobody, const std::string& name, const Door& door) {
  const std::string dialled = socket_name(name, door);
  std::ifstream list("/proc/net/unix");
  for (std::string line; std::getline(list, line);) {
    const std::size_t at = line.find("@" + std::string(kSocketPrefix));
    const std::size_t user = at + 1 + kSocketPrefix.size();
    if (at == std::string::npos || line.substr(at + 1) == dialled) continue;
    const std::size_t end = line.find('-', user);
    if (end == std::string::npos || line.substr(end + 1) != name) continue;
    if (line.substr(user, end - user) == kAnyUser)
      return {Code::kPeer, "the other side runs with --insecure, which is for both or neither"};
    if (!door.same_user)
      return {Code::kPeer, "the other side runs without --insecure, which is for both or neither"};
    return {Code::kPeer, "another user listens under this name; shm: is for one user's processes"};
  }
  return nobody;
}

class ShmListener : public ChannelListener {
 public:
  ShmListener(net::Listener listener, std::string name, const Door& door)
      : listener_(std::move(listener)), name_(std::move(name)), door_(door) {}

  Result<ChannelPtr> accept(Deadline deadline) override {
    auto socket = listener_.accept(deadline);
    if (!socket) return socket.status();
    return ChannelPtr(std::make_unique<ShmChannel>(std::move(*socket), Side::kListens, door_));
  }
  std::string address() const override { return "shm:" + name_; }

 private:
  const net::Listener listener_;
  const std::string name_;
  const Door door_;
};

}  // namespace

Result<ChannelPtr> dial_shm(const std::string& name, const Door& door, Deadline deadline) {
  if (name.size() > kMaxName) return kNameTooLong;
  auto socket = net::connect_local(socket_name(name, door), deadline);
  if (!socket && socket.status().code == Code::kPeer)
    return explain_nobody(socket.status(), name, door);
  if (!socket) return socket.status();
  return ChannelPtr(std::make_unique<ShmChannel>(std::move(*socket), Side::kDials, door));
}

Result<ChannelListenerPtr> listen_shm(const std::string& name, const Door& door) {
  if (name.size() > kMaxName) return kNameTooLong;
  auto listener = net::listen_local(socket_name(name, door));
  if (!listener) return listener.status();
  return ChannelListenerPtr(std::make_unique<ShmListener>(std::move(*listener), name, door));
}

}  // namespace snug::wire
